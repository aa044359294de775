"""Samples of results about measured servers: a few runs of each campaign, with the shipped constants."""

from __future__ import annotations

import contextlib
from functools import cache, partial
from typing import Any

import numpy as np
from record import ROOT, SERVERS, read

import kernelsight as ks
from kernelsight.evaluation.runs.backtests import replay
from kernelsight.evaluation.runs.campaigns import scored_of_campaigns
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.run_scores import is_fitting, is_scored_separately
from kernelsight.laboratory.decisions import decisions_of
from kernelsight.laboratory.energy.fit import Constants
from kernelsight.laboratory.energy.simulated import simulated
from kernelsight.laboratory.runs.levels import fit_levels
from kernelsight.laboratory.runs.run_classes import spread_runs
from sampled import first_by_hash

RUNS = 10
ACROSS = 3
A_CAMPAIGN = 2
ML_ENERGY = "../shared/data/servers/mlenergy.csv"


def published(count: int) -> list[dict[str, Any]]:
    """Return ``count`` of the scored published runs."""
    runs = read_runs("aiconfigurator").table.to_pylist()
    scored = [run for run in runs if not is_fitting(run["run_id"]) and not is_scored_separately(run)]
    return first_by_hash(scored, lambda run: run["run_id"], count)


def errors(runs: list[dict[str, Any]], levels: tuple[str, ...], tier: str | None = None) -> dict[str, float]:
    """Return mean absolute errors of runs by level of host constants and metric."""
    with ks.connect() as session:
        replayed, _ = replay(session, runs, tier, partial(fit_levels, levels=levels))
    return {
        f"{level} {metric}": float(np.mean([abs(row["errors"][metric]) for row in rows]))
        for level, rows in replayed.items()
        for metric in ("ttft", "tpot")
    }


def end_to_end() -> dict[str, float]:
    """Return mean errors of ten published runs, with the shipped constants and without any."""
    return errors(published(RUNS), ("shipped", "none"))


def end_to_end_across() -> dict[str, float]:
    """Return mean errors of published runs with kernels predicted across generations, without constants."""
    return errors(published(ACROSS), ("none",), "cross-generation")


@cache
def runs_of_campaigns() -> list[Any]:
    """Return scored runs of each campaign in ``../shared``, simulated with the shipped constants."""
    with contextlib.chdir(ROOT), ks.connect() as session:
        session.progress = None
        runs = read_runs(*SERVERS).table.to_pylist()
        replayed, _ = replay(session, [runs[number] for number in spread_runs(runs, A_CAMPAIGN)])
    return scored_of_campaigns(replayed["shipped"])


def campaigns() -> dict[str, float]:
    """Return mean errors of two runs per campaign, by metric."""
    errors_of: dict[str, list[float]] = {}
    for row in runs_of_campaigns():
        for metric, each in row["compared"].items():
            errors_of.setdefault(f"{row['campaign']} {metric}", []).append(abs(each["error"]))
    return {name: float(np.mean(values)) for name, values in errors_of.items()}


def decisions() -> dict[str, float]:
    """Return mean probabilities of decisions on the same runs, and the share that held, by campaign."""
    decisions_of_campaign: dict[str, list[Any]] = {}
    for each in decisions_of(runs_of_campaigns()):
        decisions_of_campaign.setdefault(each.campaign, []).append(each)
    return {
        f"{campaign} {name}": float(np.mean([getattr(each, name) for each in members]))
        for campaign, members in decisions_of_campaign.items()
        for name in ("probability", "holds")
    }


def energy() -> dict[str, float]:
    """Return the power and energy per token of three servers, simulated with the recorded constants."""
    runs = [run for run in read_runs(str(ROOT / ML_ENERGY)).table.to_pylist() if run["mean_power_w"] and run["dp"] == 1]
    runs = [run for run in runs if run["max_concurrency"] <= 64]
    chosen = first_by_hash(runs, lambda run: run["run_id"], 3)
    constants = read("energy")["figures"]["constants"]
    with ks.connect() as session:
        prediction = simulated(session, chosen, Constants(constants["active"], constants["common"]))
    return {
        f"{run['model']} {name}": float(getattr(prediction, name)[number])
        for number, run in enumerate(chosen)
        for name in ("power_w", "joules_per_token")
    }


def peers() -> dict[str, float]:
    """Return mean errors of the steps that peers predict, by part of the data."""
    from peers import errors as errors_of_steps

    return {part: errors_of_steps(part)[part]["ours"]["mape"] for part in ("sglang_prefill", "sglang_decode")}
