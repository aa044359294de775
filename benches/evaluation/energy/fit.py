"""Power model: constants by least squares over measured servers, and cross-validated (left-out) power.

Powers are shares of the board's limit, so that the constants hold for unmeasured GPUs too. The extra power of an active
GPU over an idle one is a property of the architecture; the other constants are common to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.kernels.energy import DRAWN_BY_WORK, Work, held

# share of the board's limit that an idle GPU draws, where its own figure is not known (energy_constants)
IDLE = 0.1
# the power of links is too small on these servers to be fitted
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
# weak regularisation towards the start, a share of a constant's range: keeps constants that no server determines
# (expanded weights without gpt-oss), and does not move the others
PULL = 1e-3


class Servers(NamedTuple):
    """Measured servers, shape [servers] each: work of their steps; power of one GPU, its limit and idle power, W."""

    work: Work
    power: np.ndarray
    limit: np.ndarray
    idle: np.ndarray
    architecture: np.ndarray
    model: np.ndarray

    def subset(self, rows: np.ndarray) -> Servers:
        """Return the servers of a mask or of indices."""
        return Servers(Work(*(values[rows] for values in self.work)), *(values[rows] for values in self[1:]))


class Constants(NamedTuple):
    """Constants of the power model by name, powers as shares of the limit; ``active``: by architecture.

    Other architectures have the mean of ``active``.
    """

    active: dict[str, float]
    common: dict[str, float]


def power_of(constants: Constants, servers: Servers) -> np.ndarray:
    """Return the predicted power of one GPU of each server, W, shape [servers]."""
    idle = np.where(np.isnan(servers.idle), IDLE, servers.idle / servers.limit)
    default_active = float(np.mean(list(constants.active.values())))
    active = np.array([constants.active.get(name, default_active) for name in servers.architecture])
    work = servers.work._asdict()
    work_power = sum(constants.common[name] * work[name.removesuffix("_w")] for name in FITTED)
    uncapped = idle + active + work_power
    return held(uncapped, constants.common["cap"], constants.common["cap_sharpness"]) * servers.limit


def fit(servers: Servers) -> Constants:
    """Return the constants that fit the power of servers: robust (soft L1) least squares of logarithms.

    A constant that no server determines stays at its start.
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
    """Return the power of each server, W, predicted by a fit without its group.

    ``groups``: of each server; ``fitted``: mask of the servers that may be fitted on.
    """
    predicted = np.full(servers.power.size, np.nan)
    for group in sorted(set(groups.tolist())):
        in_group = groups == group
        predicted[in_group] = power_of(fit(servers.subset(fitted & ~in_group)), servers.subset(in_group))
    return predicted


def baselines(servers: Servers, groups: np.ndarray, fitted: np.ndarray) -> dict[str, np.ndarray]:
    """Return the power of each server, W, by simpler rules, each fitted without the server's group.

    The board's limit; a constant share of it; and least squares of four constants: intercept, memory, compute, and an
    intercept of the architecture that is last by name.
    """
    share, linear = np.full(servers.power.size, np.nan), np.full(servers.power.size, np.nan)
    is_newest = servers.architecture == max(servers.architecture.tolist())
    columns = np.stack(
        [np.ones(is_newest.size), servers.work.memory, servers.work.compute, is_newest.astype(float)], axis=1
    )
    power_share = servers.power / servers.limit
    for group in sorted(set(groups.tolist())):
        in_group, others = groups == group, fitted & (groups != group)
        share[in_group] = np.median(power_share[others])
        solved, *_ = np.linalg.lstsq(columns[others], power_share[others], rcond=None)
        linear[in_group] = columns[in_group] @ solved
    return {"limit": servers.limit, "constant_share": share * servers.limit, "four_constants": linear * servers.limit}


def family_of(runs: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return the base model of each run: instruction-tuned, reasoning and quantised checkpoints count as one.

    >>> family_of([{"model": "Qwen/Qwen3-235B-A22B-Thinking-2507"}, {"model": "a/B-FP8"}]).tolist()
    ['Qwen/Qwen3-235B-A22B', 'a/B']
    """
    names = [run["model"] for run in runs]
    for word in ("-Instruct", "-Thinking", "-2507", "-FP8", "-it"):
        names = [name.replace(word, "") for name in names]
    return np.array(names)
