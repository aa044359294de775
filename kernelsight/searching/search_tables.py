"""The tables of one search, as rows: measurements, decisions, rounds, forecasts and summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight import laboratory
from kernelsight.catalog.tables import contracts
from kernelsight.searching.arrays import OK, STATUS, Measured
from kernelsight.searching.forecasts import bin_probabilities, chance_faster, quantiles
from kernelsight.searching.history import finite_or_none
from kernelsight.searching.rounds import Measure, Propose, Round, rounds
from kernelsight.searching.targets import Target

TABLES = ("kernel_forecasts", "search_decisions", "search_measurements", "search_rounds", "search_summary")


class SearchRows(NamedTuple):
    """Rows of each table of one search."""

    kernel_forecasts: list[pa.Table]
    search_decisions: list[dict[str, Any]]
    search_measurements: list[dict[str, Any]]
    search_rounds: list[dict[str, Any]]
    search_summary: list[dict[str, Any]]


def search_rows(
    target: Target,
    scenario: Mapping[str, Any],
    measure: Measure,
    truth: Measured | None,
    forecasts: bool = False,
    source: str = "replay",
    propose: Propose | None = None,
) -> SearchRows:
    """Run a search and return its rows.

    ``truth``: in a replay, the recorded measurements in the target's order, for scores; ``forecasts``: return rows of
    forecasts too; ``propose``: the external proposer.
    """
    course = SearchRows([], [], [], [], [])
    logs = None if truth is None else np.log(truth.latency_us)
    best: list[int] = []
    last_round: Round | None = None
    forecast_count = 0
    for search_round in rounds(target, scenario, measure, propose):
        best += search_round.best.tolist()
        forecast_count += 0 if search_round.forecast is None else len(search_round.forecast.rows)
        target = search_round.target
        _add_round(course, target, scenario, search_round, logs, source)
        if forecasts and search_round.forecast is not None:
            course.kernel_forecasts.append(_decided(target, scenario, search_round, logs))
        last_round = search_round
    if forecasts and last_round is not None and last_round.forecast is not None:
        course.kernel_forecasts[-1] = forecast_table(target, scenario, last_round, last_round.forecast.rows, logs)
    course.search_summary.append(
        _summary(target, scenario, last_round, np.array(best, dtype=np.int64), logs, forecast_count)
    )
    return course


def regrets(best: Sequence[int] | np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the regret after each measurement: true latency of the believed best over the fastest's, minus 1.

    ``best``: rows, -1 where none worked (regret of the slowest); ``truth``: (candidates,) log latencies, nan: failed.
    """
    fastest, slowest = np.nanmin(truth), np.nanmax(truth)
    rows = np.asarray(best, dtype=np.int64)
    logs = np.where(rows >= 0, truth[np.maximum(rows, 0)], slowest)
    return np.expm1(logs - fastest)


def _add_round(
    course: SearchRows,
    target: Target,
    scenario: Mapping[str, Any],
    search_round: Round,
    logs: np.ndarray | None,
    source: str,
) -> None:
    key = {"search_id": scenario["search_id"], "round": search_round.number}
    chosen, history = search_round.decisions, search_round.history
    before = len(history.rows) - len(chosen.rows)
    believed = np.exp(search_round.believed_log)
    for index, row in enumerate(chosen.rows):
        name = str(target.ids[row])
        gain = chosen.gains[index]
        course.search_decisions.append(
            key
            | {"candidate_id": name, "decision": "measure", "reason": chosen.reasons[index], "rank": index + 1}
            | {"expected_gain_us": finite_or_none(np.expm1(gain) * believed)}
        )
        outcome, status = search_round.outcome, int(search_round.outcome.status[index])
        course.search_measurements.append(
            key
            | {"candidate_id": name, "run": int(history.runs[before + index]), "status": STATUS[status]}
            | {"latency_us": float(outcome.latency_us[index]) if status == OK else None}
            | {name: finite_or_none(getattr(outcome, name)[index]) for name in ("cv", "compile_s", "benchmark_s")}
            | {"samples": _integer(outcome.samples[index]), "source": source}
        )
    fastest = int(search_round.best[-1])
    regret = None if logs is None or fastest < 0 else float(regrets([fastest], logs)[0])
    course.search_rounds.append(
        key
        | {
            "proposed": search_round.step.proposed,
            "forecast": 0 if search_round.forecast is None else len(search_round.forecast.rows),
        }
        | {"measured": len(history.rows), "failed": len(history.failed), "gpu_s": float(history.cost_s.sum())}
        | {"best_candidate": str(target.ids[fastest]) if fastest >= 0 else None, "best_us": finite_or_none(believed)}
        | {"believed_regret": _believed_regret(search_round), "expected_better": finite_or_none(search_round.better)}
        | {"regret": regret, "stopped": False}
    )


def _integer(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None


def _believed_regret(search_round: Round) -> float | None:
    """Return the largest expected gain at the beginning of the round, over the latency of the best."""
    gains = search_round.decisions.gains[np.isfinite(search_round.decisions.gains)]  # nan: measured for another reason
    return float(np.expm1(np.max(gains))) if len(gains) else None


def anchor_log(target: Target, scenario: Mapping[str, Any], search_round: Round, logs: np.ndarray | None) -> float:
    """Return the log latency that speed-up bins are relative to: the anchor's, or the median of the measurements."""
    if scenario.get("anchor") is not None:
        row = int(np.flatnonzero(target.ids == scenario["anchor"])[0])
        measured = search_round.history.logs[search_round.history.rows == row]
        if len(measured) and not np.isnan(measured).all():
            return float(np.nanmedian(measured))
        if logs is not None and np.isfinite(logs[row]):
            return float(logs[row])
    worked = search_round.history.logs[~np.isnan(search_round.history.logs)]
    return float(np.median(worked)) if len(worked) else 0.0


def _decided(target: Target, scenario: Mapping[str, Any], search_round: Round, logs: np.ndarray | None) -> pa.Table:
    return forecast_table(target, scenario, search_round, search_round.decisions.rows, logs)


def forecast_table(
    target: Target, scenario: Mapping[str, Any], search_round: Round, rows: np.ndarray, logs: np.ndarray | None
) -> pa.Table:
    """Return the ``kernel_forecasts`` of a round for the candidates ``rows``."""
    forecast = search_round.forecast
    assert forecast is not None
    indices = np.searchsorted(forecast.rows, rows)
    mean, sd, works = forecast.mean[indices], forecast.sd[indices], forecast.works[indices]
    latencies = quantiles(mean, sd)
    bins = bin_probabilities(mean, sd, anchor_log(target, scenario, search_round, logs))
    best = search_round.believed_log if np.isfinite(search_round.believed_log) else np.inf
    count = len(rows)
    columns = {
        **{"search_id": [scenario["search_id"]] * count, "round": [search_round.number] * count},
        **{"candidate_id": [str(target.ids[row]) for row in rows], "forecaster": [forecast.forecaster] * count},
        **{"latency_us": np.exp(latencies.middle), "p05_us": np.exp(latencies.low), "p50_us": np.exp(latencies.middle)},
        **{"p95_us": np.exp(latencies.high), "log_sd": sd, "p_ok": works},
        **{"p_faster": chance_faster(mean, sd, works, best), "confidence": bins.max(1)},
        **{f"bin_{bin_index + 1}": bins[:, bin_index] for bin_index in range(bins.shape[1])},
        **{"evidence": [forecast.evidence] * count, "measured_n": [forecast.measured] * count},
    }
    schema = contracts()["kernel_forecasts"].schema
    nulls = {name: pa.nulls(count, schema.field(name).type) for name in schema.names if name not in columns}
    return pa.table({**columns, **nulls}).select(schema.names).cast(schema)


def _summary(
    target: Target,
    scenario: Mapping[str, Any],
    last_round: Round | None,
    best: np.ndarray,
    logs: np.ndarray | None,
    forecast_count: int,
) -> dict[str, Any]:
    count = len(best)
    fastest = int(best[-1]) if count else -1
    history = None if last_round is None else last_round.history
    notes = [*target.notes]
    if last_round is not None:
        notes += [f"source {name} is not used: {why}" for name, why in last_round.dropped.items()]
    row: dict[str, Any] = {
        **{
            "search_id": scenario["search_id"],
            "measured": count,
            "failed": 0 if history is None else len(history.failed),
        },
        **{"stopped": count < int(scenario["budget_measurements"]) and scenario["stop_expected_gain"] is not None},
        **{"best_candidate": str(target.ids[fastest]) if fastest >= 0 else None, "best_us": None},
        **{"candidates_per_measurement": forecast_count / count if count else None},
        **{"gpu_s": None if history is None else float(history.cost_s.sum()), "notes": "; ".join(notes) or None},
    }
    if history is not None and fastest >= 0:
        times = history.logs[history.rows == fastest]
        row["best_us"] = float(np.exp(np.nanmedian(times)))
    if logs is None or not count:
        return row
    regret = regrets(best, logs)
    row["regret"] = float(regret[-1])
    if laboratory.is_here():
        scoring = laboratory.part("searches.scores", "scores of a replayed search")
        row |= scoring.replay_scores(best, regret, last_round, logs)
    return row
