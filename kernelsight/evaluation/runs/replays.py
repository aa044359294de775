"""Replays of measured runs: planned with their flags and recipes, simulated with host constants, with errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernelsight import laboratory
from kernelsight.evaluation.runs.campaigns import compared
from kernelsight.evaluation.runs.recipes import flags_of, is_prose, prompt_text_of
from kernelsight.evaluation.runs.run_scores import (
    group_of,
    is_fitting,
    is_scored_separately,
    measured_both,
    with_errors,
)
from kernelsight.evaluation.runs.simulate_runs import HostConstants, Planned, plan_runs, serve_runs, settings_of

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


SHIPPED = "shipped"
# by level of host constants: constants of groups of runs, which replace the catalogue's
Levels = Mapping[str, Mapping[tuple, HostConstants]]
FitLevels = Callable[["Session", Sequence[Mapping[str, Any]], Sequence[Planned]], Levels]


def replay(
    session: Session,
    runs: Sequence[Mapping[str, Any]],
    tier: str | None = None,
    fit_levels: FitLevels = lambda *_: {SHIPPED: {}},
) -> tuple[dict[str, list[dict[str, Any]]], Levels]:
    """Return the runs with flags, recipes, predictions and errors, by level of host constants; and the constants.

    ``runs``: rows of ``measured_runs``; ``tier``: of kernel latencies, None: the best available; ``fit_levels``:
    returns the host constants of planned runs by level, default: those of the catalogue alone. A run that cannot be
    simulated has the reason as its ``status``. InvalidInput: malformed recipes.
    """
    replayed, planned = planned_runs(session, runs, tier)
    fitted = fit_levels(session, replayed, planned)
    levels = list(fitted)
    if laboratory.is_here():
        _acceptance().fill_acceptance_rates(session, replayed, planned, fitted[levels[0]])
    hosts = [[fitted[level].get(group_of(run)) for run in replayed] for level in levels]
    served = _served(session, replayed, planned, hosts)
    scored = {
        level: [scored_row(run, served_run) for run, served_run in zip(replayed, rows, strict=True)]
        for level, rows in zip(levels, served, strict=True)
    }
    return scored, fitted


def planned_runs(
    session: Session, runs: Sequence[Mapping[str, Any]], tier: str | None = None
) -> tuple[list[dict[str, Any]], list[Planned]]:
    """Return the runs with their flags, recipes and resolved settings, and the plan of each.

    InvalidInput: malformed recipes.
    """
    recipes = session.table("recipes").to_pylist()
    flags_and_recipes = [flags_of(run, recipes) for run in runs]
    flags = [{**flags, **({"tier": tier} if tier else {})} for flags, _ in flags_and_recipes]
    to_plan = [_acceptance().with_acceptance_rate(one, None) for one in flags] if laboratory.is_here() else flags
    planned = plan_runs(session, to_plan)
    versions, experts = (settings_of(session, planned, "host_settings", name) for name in ("from_version", "experts"))
    vendors = dict(zip(*(session.table("gpus")[name].to_pylist() for name in ("gpu", "vendor")), strict=True))
    budgets = settings_of(session, planned, "deployment_settings", "max_num_batched_tokens")
    replayed = [
        {
            **run,
            "host_version": version,
            "step_tokens": tokens,
            "engine_version_used": run_flags.get("engine_version") or f"newest ({version})",
            **{"flags": run_flags, "recipes": names, "fitting": is_fitting(run["run_id"])},
            "is_moe": bool(is_moe),
            "vendor": vendors[plan.deployments[0]["gpu"]] if plan.deployments else None,
            "prompt_text": prompt_text_of(run, recipes),
        }
        for run, plan, run_flags, (_, names), version, is_moe, tokens in zip(
            runs, planned, flags, flags_and_recipes, versions, experts, budgets, strict=True
        )
    ]
    return replayed, planned


def _acceptance() -> ModuleType:
    """Return the laboratory's fit of the acceptance rates that published runs do not state."""
    return laboratory.part("runs.acceptance", "an acceptance rate that no run states")


def _served(
    session: Session,
    runs: Sequence[Mapping[str, Any]],
    planned: Sequence[Planned],
    hosts: Sequence[Sequence[HostConstants | None]],
) -> list[list[dict[str, Any]]]:
    """Return the predictions of every run by level; separately scored runs are simulated at the first level only."""
    not_simulated = "scored separately, with the first level of --constants alone"
    rows_by_level: list[list[dict[str, Any]]] = [[{"status": not_simulated} for _ in runs] for _ in hosts]
    for is_separate, levels in ((False, len(hosts)), (True, 1)):
        indices = [index for index, run in enumerate(runs) if is_scored_separately(run) == is_separate]
        chosen = [[level[index] for index in indices] for level in hosts[:levels]]
        prose = [is_prose(runs[index]) for index in indices]
        chosen_runs, plans = [runs[i] for i in indices], [planned[i] for i in indices]
        if laboratory.is_here():
            lengths = laboratory.part("runs.unknown_lengths", "runs of unknown lengths")
            served_levels = lengths.served_with_lengths(session, chosen_runs, plans, chosen, prose)
        else:
            served_levels = serve_runs(session, plans, chosen, prose)
        for level, served in zip(rows_by_level, served_levels, strict=False):
            for index, row in zip(indices, served, strict=True):
                level[index] = row
    return rows_by_level


def scored_row(run: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run with its predictions, and with ``compared`` and ``errors`` if it was served."""
    row = {**run, **{name: value for name, value in served.items() if name not in ("predicted", "factors")}}
    if served["status"] == "served" and served.get("tpot_mean_ms") is not None:
        row["compared"] = compared(run, served)
        if measured_both(run):
            row["errors"] = with_errors(run, served["ttft_mean_ms"], served["tpot_mean_ms"])
    elif served["status"] == "served":
        row["status"] = "served, but outputs of one token have no TPOT"
    return row
