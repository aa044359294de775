"""Backtests: measured runs, planned with their flags and recipes, simulated with host constants, and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kernelsight import laboratory
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.campaigns import compared
from kernelsight.evaluation.runs.measured_runs import Runs
from kernelsight.evaluation.runs.recipes import flags_of, is_prose, prompt_text_of
from kernelsight.evaluation.runs.report import report_of
from kernelsight.evaluation.runs.run_scores import (
    GROUP,
    METRICS,
    group_of,
    is_fitting,
    is_scored_separately,
    measured_both,
    with_errors,
)
from kernelsight.evaluation.runs.simulate_runs import HostConstants, Planned, plan_runs, serve_runs, settings_of
from kernelsight.scenario.stated_flags import object_text

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


TABLES = ("backtest_reports", "backtest_scores", "replayed_runs")
# names of METRICS among a run's measured figures
COMPARED = ("ttft_mean", "tpot_mean", "throughput")
SHOWN = ("run_id", "status", "fitting", "is_moe", "ttft_mean_ms", "tpot_mean_ms")


@reads("recipes", "serving_spread", "scenario_summary", "scenario_intervals", "kernel_breakdown")
@produces("backtest_reports", "backtest_scores", "replayed_runs")
def backtest_tables(
    backtests: pa.Table, measured_runs: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, list[dict[str, Any]]]:
    """Simulate measured runs, and score their TTFT, TPOT and throughput: reports and scores of backtests.

    ``fork``: returns a session for each. InvalidInput: none of a backtest's runs can be simulated.
    """
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for row in backtests.to_pylist():
        key = {"backtest_id": row["backtest_id"]}
        with fork() as session:
            report, replayed = _report_and_runs(session, row, measured_runs)
        tables["backtest_reports"].append(key | {"report": object_text(report)})
        tables["backtest_scores"] += [key | row_values for row_values in _score_rows(report)]
        tables["replayed_runs"] += [key | _run_row(row_values) for row_values in replayed]
    return tables


def _report_and_runs(
    session: Session, backtest: Mapping[str, Any], measured: pa.Table
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the report of one backtest, and its runs replayed with the first level of host constants."""
    levels, tier = backtest["constants"], backtest["tier"]
    excluded = [(exclusion["reason"], exclusion["n"]) for exclusion in backtest["excluded"] or ()]
    runs = Runs(measured, measured.num_rows if backtest["rows_read"] is None else backtest["rows_read"], excluded)
    replayed, fitted = replay(session, measured.to_pylist(), tier, **_fit_of(levels))
    rows = replayed[levels[0]]
    if all(row["status"] != "served" for row in rows):
        raise InvalidInput(f"none of the {len(rows)} runs could be simulated: {rows[0]['status']}")
    basis = dict(zip(*(session.table("recipes")[name].to_pylist() for name in ("recipe", "basis")), strict=True))
    report = report_of(runs, rows, tier, basis)
    report |= {"constants": levels[0], "fitted_constants": _constant_rows(fitted[levels[0]], rows)}
    if laboratory.is_here():
        scoring, spread = laboratory.part("runs.level_scores", "a level"), session.table("serving_spread").to_pylist()
        report["serving_spread"] = scoring.spread_rows(rows, spread)
        report["levels"] = {level: scoring.level_scores(replayed[level], spread, basis) for level in levels}
    if backtest["leave_out"]:
        campaign_fit = laboratory.part("runs.campaign_fit", "--leave-out campaign")
        report["campaigns_shipped"] = report["campaigns"]
        report |= campaign_fit.left_out_report(session, measured.to_pylist(), tier)
    if backtest["against"]:
        report |= laboratory.part("runs.peer_scores", f"--against {backtest['against']}").peer_reports(replayed)
    return report, rows


def check_options(levels: Sequence[str], against: str | None) -> None:
    """Check levels of host constants and a peer before anything is simulated.

    UnknownName: a level. InvalidInput, RunFailed: the peer cannot be started; or only a checkout has what is requested.
    """
    if list(levels) != [SHIPPED]:
        laboratory.part("runs.levels", f"--constants {','.join(levels)}").check_levels(levels)
    if against:
        laboratory.part("runs.peer", f"--against {against}").predictions([])


def _fit_of(levels: Sequence[str]) -> dict[str, FitLevels]:
    """Return the argument of ``replay`` that fits host constants at some levels: none for the catalogue's alone."""
    if list(levels) == [SHIPPED]:
        return {}
    fitting = laboratory.part("runs.levels", f"--constants {','.join(levels)}")
    return {"fit_levels": partial(fitting.fit_levels, levels=levels)}


def _constant_rows(fitted: Mapping[tuple, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per group of the runs: its fitted constants."""
    groups = {group_of(row) for row in rows}
    return [
        {**dict(zip(GROUP, group, strict=True)), **constants._asdict()}
        for group, constants in sorted(fitted.items(), key=lambda item: str(item[0]))
        if group in groups
    ]


def scopes(report: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], Mapping[str, Any]]]:
    """Yield (scope, columns that name its group, scores by metric) of a report: all, dense, moe, groups, axes."""
    yield "all", {}, report
    for model_class in ("dense", "moe"):
        yield model_class, {}, report[model_class]
    for group in report["groups"]:
        yield "group", {name: group.get(name) for name in GROUP}, group
    for axis, groups in report["by"].items():
        for group in groups:
            yield f"{axis} {group[axis]}", {}, group


def _score_rows(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for scope, names, metric_scores in scopes(report):
        for metric in METRICS:
            yield {"scope": scope, **names, "metric": metric, **metric_scores[metric]}


def _run_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: row.get(name) for name in SHOWN}, **_error_columns(row), "run": object_text(row)}


def _error_columns(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the errors of a replayed run by column; those of a run that measured one metric alone as well."""
    compared, both = row.get("compared") or {}, row.get("errors") or {}
    return {
        f"{metric}_error": both.get(metric, compared.get(name, {}).get("error"))
        for metric, name in zip(METRICS, COMPARED, strict=True)
    }


def flat_rows(rows: Sequence[Mapping[str, Any]], nested: Sequence[str]) -> list[dict[str, Any]]:
    """Return replayed runs as flat rows: columns ``nested`` left out, recipes as one string, one error per metric."""
    flat = []
    for row in rows:
        columns = {name: value for name, value in row.items() if name not in nested}
        flat.append({**columns, "recipes": " ".join(row["recipes"]), **_error_columns(row)})
    return flat
