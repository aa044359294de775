"""Accuracy of power and energy on measured servers, with models or architectures left out, and against baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.evaluation.runs.run_scores import score
from kernelsight.laboratory.energy.fit import Servers, baselines, family_of, fit, left_out
from kernelsight.laboratory.energy.mean_steps import architectures, drawn_power, mean_steps_of
from kernelsight.laboratory.energy.simulated import simulated

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

NOMINAL = 0.9
USERS = ((1, 64), (65, 256), (257, 4096))


def evaluate(session: Session, runs: Sequence[Mapping[str, Any]], every: int = 1) -> dict[str, Any]:
    """Return the report: scores by rule and group of runs, coverage, constants of all runs, half widths of intervals.

    ``runs``: rows of ``measured_runs``, of which those with power are used; ``every``: simulate every n-th run only.
    Data-parallel deployments are scored and never fitted on: most of their time goes to steps with prompts, whose
    lengths no file states.
    """
    measured = [run for run in runs if run.get("mean_power_w")]
    steady = mean_steps_of(session, measured)
    power, limit, idle = drawn_power(steady.runs, session.table("gpus"))
    architecture_of, models = architectures(steady.runs, session.table("gpus")), family_of(steady.runs)
    servers = Servers(steady.work, power, limit, idle, architecture_of, models)
    fitted = np.array([run["dp"] == 1 for run in steady.runs])
    power_by_model = left_out(servers, models, fitted)
    power_by_architecture = left_out(servers, architecture_of, fitted)
    served_power, served_energy = _served(session, steady.runs, servers, models, fitted, every)
    architecture_power, architecture_energy = _served(session, steady.runs, servers, architecture_of, fitted, every)
    energy = np.array([run["energy_per_output_token_j"] for run in steady.runs])
    errors = {
        "power, measured step time, model left out": power_by_model / power,
        "power, measured step time, architecture left out": power_by_architecture / power,
        "power, predicted step time, model left out": served_power / power,
        "energy per output token, predicted step time, model left out": served_energy / energy,
        "power, predicted step time, architecture left out": architecture_power / power,
        "energy per output token, predicted step time, architecture left out": architecture_energy / energy,
        **{f"power, {name}": watts / power for name, watts in baselines(servers, models, fitted).items()},
    }
    halves = {
        "power": _half(served_power / power, fitted),
        "energy": _half(served_energy / energy, fitted),
        # only two architectures were measured: the wider half width, of measured and predicted step times, is taken
        "power_other": max(
            _half(predicted_power / power, fitted) for predicted_power in (power_by_architecture, architecture_power)
        ),
        "energy_other": _half(architecture_energy / energy, fitted),
    }
    constants = fit(servers.subset(fitted))
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
    """Return power of one GPU, W, and energy per output token, J, of each run, simulated with others' constants.

    Constants are fitted without the run's group. NaN: the run was not simulated.
    """
    power, energy = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    count = np.array([run["tp"] * run["pp"] * run["dp"] for run in runs])
    for group in sorted(set(groups.tolist())):
        members = np.flatnonzero(groups == group)[::every]
        served = simulated(session, [runs[i] for i in members], fit(servers.subset(fitted & (groups != group))))
        power[members], energy[members] = served.power_w / count[members], served.joules_per_token
    return power, energy


def _gpus_by(architecture_of: np.ndarray, gpus: Sequence[str]) -> dict[str, list[str]]:
    """Return the GPUs of fitted servers by architecture."""
    pairs = sorted(set(zip(architecture_of.tolist(), gpus, strict=True)))
    return {name: [gpu for architecture, gpu in pairs if architecture == name] for name in dict(pairs)}


def _scores(
    ratio: np.ndarray, runs: Sequence[Mapping[str, Any]], architecture_of: np.ndarray, fitted: np.ndarray
) -> dict:
    """Return scores of ``ratio``, predicted over measured, by group of runs: all, users, task, GPU."""
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
    """Return the half width of the 90 % interval around the prediction, as a logarithm, of masked rows."""
    return float(np.quantile(np.abs(np.log(ratio[rows & np.isfinite(ratio)])), NOMINAL))


def _coverage(ratio: np.ndarray, models: np.ndarray, fitted: np.ndarray) -> float:
    """Return the coverage of 90 % intervals: the share of runs within a half width that other models determine."""
    is_covered = []
    for model in sorted(set(models.tolist())):
        is_model = (models == model) & fitted & np.isfinite(ratio)
        is_covered += (np.abs(np.log(ratio[is_model])) <= _half(ratio, fitted & (models != model))).tolist()
    return float(np.mean(is_covered))
