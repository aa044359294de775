"""Scores of power and energy on measured servers: a model left out, an architecture left out, baselines, coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.evaluation.energy.fit import Servers, baselines, family_of, fit, left_out
from kernelsight.evaluation.energy.simulated import simulated
from kernelsight.evaluation.energy.steady_steps import architectures, drawn_power, steady_of
from kernelsight.evaluation.runs.scores import score

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

NOMINAL = 0.9
USERS = ((1, 64), (65, 256), (257, 4096))


def evaluate(session: Session, runs: Sequence[Mapping[str, Any]], every: int = 1) -> dict[str, Any]:
    """Return scores, constants fitted on all runs, and half widths of intervals.

    ``runs``: ``measured_runs`` with their power. Data-parallel ranks are scored, and never fitted on: most of their
    time goes to steps with prompts, whose lengths no file states. ``every``: which runs are served, each one or fewer.
    """
    measured = [run for run in runs if run.get("mean_power_w")]
    steady = steady_of(session, measured)
    power, limit, idle = drawn_power(steady.runs, session.table("gpus"))
    architecture_of, models = architectures(steady.runs, session.table("gpus")), family_of(steady.runs)
    servers = Servers(steady.work, power, limit, idle, architecture_of, models)
    fitted = np.array([run["dp"] == 1 for run in steady.runs])
    by_model = left_out(servers, models, fitted)
    by_gpu = left_out(servers, architecture_of, fitted)
    served_power, served_energy = _served(session, steady.runs, servers, models, fitted, every)
    other_power, other_energy = _served(session, steady.runs, servers, architecture_of, fitted, every)
    energy = np.array([run["energy_per_output_token_j"] for run in steady.runs])
    errors = {
        "power, measured step time, model left out": by_model / power,
        "power, measured step time, architecture left out": by_gpu / power,
        "power, predicted step time, model left out": served_power / power,
        "energy per output token, predicted step time, model left out": served_energy / energy,
        "power, predicted step time, architecture left out": other_power / power,
        "energy per output token, predicted step time, architecture left out": other_energy / energy,
        **{f"power, {name}": watts / power for name, watts in baselines(servers, models, fitted).items()},
    }
    halves = {
        "power": _half(served_power / power, fitted),
        "energy": _half(served_energy / energy, fitted),
        # two architectures say little: the wider of both, with measured and with predicted step times
        "power_other": max(_half(each / power, fitted) for each in (by_gpu, other_power)),
        "energy_other": _half(other_energy / energy, fitted),
    }
    constants = fit(servers.of(fitted))
    return {
        "runs": len(measured),
        "served": int(np.isfinite(served_power).sum()),
        "not_planned": len(measured) - len(steady.runs),
        "scores": {name: _scores(ratio, steady.runs, architecture_of, fitted) for name, ratio in errors.items()},
        "coverage": {
            "power": _coverage(served_power / power, models, fitted),
            "energy": _coverage(served_energy / energy, models, fitted),
        },
        "constants": {"active": constants.active, "common": constants.common},
        "gpus": _gpus_by(
            architecture_of[fitted],
            [run["gpu"] for run, is_fitted in zip(steady.runs, fitted, strict=True) if is_fitted],
        ),
        "log_halves": halves,
    }


def _served(
    session: Session,
    runs: Sequence[dict[str, Any]],
    servers: Servers,
    groups: np.ndarray,
    fitted: np.ndarray,
    every: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return power of a GPU and energy per token of each run, simulated with constants of the other groups."""
    power, energy = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    count = np.array([run["tp"] * run["pp"] * run["dp"] for run in runs])
    for group in sorted(set(groups.tolist())):
        members = np.flatnonzero(groups == group)[::every]
        served = simulated(session, [runs[i] for i in members], fit(servers.of(fitted & (groups != group))))
        power[members], energy[members] = served.power_w / count[members], served.joules_per_token
    return power, energy


def _gpus_by(architecture_of: np.ndarray, gpus: Sequence[str]) -> dict[str, list[str]]:
    """Return by architecture the GPUs whose servers are fitted on."""
    pairs = sorted(set(zip(architecture_of.tolist(), gpus, strict=True)))
    return {kind: [gpu for architecture, gpu in pairs if architecture == kind] for kind in dict(pairs)}


def _scores(
    ratio: np.ndarray, runs: Sequence[Mapping[str, Any]], architecture_of: np.ndarray, fitted: np.ndarray
) -> dict:
    users = np.array([run["max_concurrency"] for run in runs])
    tasks, gpus = (np.array([run[name] for run in runs]) for name in ("task", "gpu"))
    groups = {"all": np.ones(users.size, bool), "without data-parallel ranks": fitted}
    groups |= {f"{least} to {most} users": (users >= least) & (users <= most) for least, most in USERS}
    groups |= {name: tasks == name for name in sorted(set(tasks.tolist()))}
    groups |= {name: gpus == name for name in sorted(set(gpus.tolist()))}
    is_finite = np.isfinite(ratio)
    return {
        name: score((ratio[rows & is_finite] - 1.0).tolist())
        for name, rows in groups.items()
        if (rows & is_finite).any()
    }


def _half(ratio: np.ndarray, rows: np.ndarray) -> float:
    """Return the half width, as a logarithm, that holds nine of ten of these rows."""
    return float(np.quantile(np.abs(np.log(ratio[rows & np.isfinite(ratio)])), NOMINAL))


def _coverage(ratio: np.ndarray, models: np.ndarray, fitted: np.ndarray) -> float:
    """Return the share of runs within an interval whose width the other models give."""
    inside = []
    for model in sorted(set(models.tolist())):
        of_model = (models == model) & fitted & np.isfinite(ratio)
        inside += (np.abs(np.log(ratio[of_model])) <= _half(ratio, fitted & (models != model))).tolist()
    return float(np.mean(inside))
