"""Constants of power by least squares over measured servers, and power that was left out of the fit.

Powers are shares of the limit of the board, so that a GPU that is not measured has constants, too. What an active GPU
draws beside idle is a property of the architecture; the other constants are common to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.kernels.energy import DRAWN_BY_WORK, Work, held

# share of the limit of the board that an idle GPU draws, where its own figure is not known (energy_constants)
IDLE = 0.1
# the part of links is too small on these servers to be seen: it is not fitted
FITTED = tuple(name for name in DRAWN_BY_WORK if name != "link_w")
# start, least and largest value
BOUNDS = {
    "active": (0.1, 0.0, 1.0),
    "memory_w": (0.6, 0.0, 3.0),
    "compute_w": (1.0, 0.0, 5.0),
    "expand_w": (0.0, 0.0, 3.0),
    "cap": (0.97, 0.85, 1.0),
    "cap_sharpness": (6.0, 2.0, 60.0),
}
SOFT = 0.05  # a log error beyond which runs count less
# what keeps a constant at its start where no server shows it (expanded weights without gpt-oss), a share of its range;
# too weak to move those that servers show
PULL = 1e-3


class Servers(NamedTuple):
    """Measured servers: work of their steps, power of a GPU, its limit and idle power in W, architecture and model."""

    work: Work
    power: np.ndarray
    limit: np.ndarray
    idle: np.ndarray
    architecture: np.ndarray
    model: np.ndarray

    def of(self, rows: np.ndarray) -> Servers:
        """Return some of the servers."""
        return Servers(Work(*(each[rows] for each in self.work)), *(each[rows] for each in self[1:]))


class Constants(NamedTuple):
    """Constants by name, powers as shares of the limit; ``active`` by architecture, the mean of them for others."""

    active: dict[str, float]
    common: dict[str, float]


def power_of(constants: Constants, servers: Servers) -> np.ndarray:
    """Return the power of a GPU of each server, W."""
    idle = np.where(np.isnan(servers.idle), IDLE, servers.idle / servers.limit)
    other = float(np.mean(list(constants.active.values())))
    active = np.array([constants.active.get(name, other) for name in servers.architecture])
    work = servers.work._asdict()
    drawn = sum(constants.common[name] * work[name.removesuffix("_w")] for name in FITTED)
    free = idle + active + drawn
    return held(free, constants.common["cap"], constants.common["cap_sharpness"]) * servers.limit


def fit(servers: Servers) -> Constants:
    """Return the constants that fit the power of servers best: least squares of logarithms, far ones counting less.

    A constant that no server shows stays where it starts.
    """
    from scipy.optimize import least_squares

    architectures = sorted(set(servers.architecture.tolist()))
    common = [*FITTED, "cap", "cap_sharpness"]
    bounds = np.array([*([BOUNDS["active"]] * len(architectures)), *(BOUNDS[name] for name in common)])

    def constants(values: np.ndarray) -> Constants:
        fitted_values = values.tolist()
        return Constants(
            dict(zip(architectures, fitted_values[: len(architectures)], strict=True)),
            dict(zip(common, fitted_values[len(architectures) :], strict=True)),
        )

    start, least, most = bounds.T

    def errors(values: np.ndarray) -> np.ndarray:
        pull = PULL * (values - start) / (most - least)
        return np.concatenate([np.log(power_of(constants(values), servers) / servers.power), pull])

    return constants(least_squares(errors, start, bounds=(least, most), loss="soft_l1", f_scale=SOFT).x)


def left_out(servers: Servers, groups: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Return power predicted without the group of each server; ``fitted``: those that may be fitted on."""
    predicted = np.full(servers.power.size, np.nan)
    for group in sorted(set(groups.tolist())):
        in_group = groups == group
        predicted[in_group] = power_of(fit(servers.of(fitted & ~in_group)), servers.of(in_group))
    return predicted


def baselines(servers: Servers, groups: np.ndarray, fitted: np.ndarray) -> dict[str, np.ndarray]:
    """Return power by simpler rules, each fitted without the group of the server.

    The limit of the board; a constant share of it; and four constants by least squares: one, memory, compute, and one
    for the architecture that comes last.
    """
    share, linear = np.full(servers.power.size, np.nan), np.full(servers.power.size, np.nan)
    last = servers.architecture == max(servers.architecture.tolist())
    columns = np.stack([np.ones(last.size), servers.work.memory, servers.work.compute, last.astype(float)], axis=1)
    drawn = servers.power / servers.limit
    for group in sorted(set(groups.tolist())):
        in_group, others = groups == group, fitted & (groups != group)
        share[in_group] = np.median(drawn[others])
        solved, *_ = np.linalg.lstsq(columns[others], drawn[others], rcond=None)
        linear[in_group] = columns[in_group] @ solved
    return {"limit": servers.limit, "constant_share": share * servers.limit, "four_constants": linear * servers.limit}


def family_of(runs: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return the model of each run; instruction-tuned, reasoning and quantised checkpoints of one shape are one.

    >>> family_of([{"model": "Qwen/Qwen3-235B-A22B-Thinking-2507"}, {"model": "a/B-FP8"}]).tolist()
    ['Qwen/Qwen3-235B-A22B', 'a/B']
    """
    names = [run["model"] for run in runs]
    for word in ("-Instruct", "-Thinking", "-2507", "-FP8", "-it"):
        names = [name.replace(word, "") for name in names]
    return np.array(names)
