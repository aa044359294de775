"""Summary of a comparison: the dictionary that `kernelsight compare` prints, built from the comparison's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kernelsight.comparison.compared_log import ComparedLog, compared_logs, rows_of, tables_beside
from kernelsight.comparison.errors import (
    METRICS,
    as_distribution,
    cached_of,
    errors_of,
    interval_factors,
    measured_by_metric,
    predicted_of,
)
from kernelsight.comparison.measured_requests import LEAST_REQUESTS, LEAST_SECONDS
from kernelsight.comparison.power import other_gpus, power_answer
from kernelsight.comparison.replayed_log import base_of
from kernelsight.comparison.verdict import fault_counts, not_judged, not_separated, rejected, verdict_of
from kernelsight.dataflow.python_nodes import produces, reads, takes

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

MOST_KERNELS = 12
WINDOWS = "metrics of the server are held against max_num_seqs alone; table production_windows has them"
# the cause of a log that agrees with its prediction, or of which no cause holds
NO_CAUSE = {"kind": "none", "name": None, "value": None, "from_s": None, "to_s": None, "share": None}


def answer_of(log: ComparedLog, table: Callable[[str], pa.Table]) -> dict[str, Any]:
    """Return the summary of one comparison, as ``compare --format json`` prints it; times in ms, power in W.

    ``table``: returns a table of the comparison by its name.
    """

    def rows(name: str) -> list[dict[str, Any]]:
        table_rows = rows_of(table(name), log.comparison_id)
        return table_rows.drop_columns(["comparison_id"]).to_pylist()

    measured, base = log.measured, base_of(table("log_replays"), log.comparison_id)
    measured_ms, predicted_ms = measured_by_metric(measured), predicted_of(base, measured.output_tokens)
    if measured.drawn:
        predicted_ms = {name: as_distribution(values, measured_ms[name]) for name, values in predicted_ms.items()}
    intervals = interval_factors(rows("log_intervals"))
    dropped = fault_counts(log.tables["log_faults"].to_pylist())
    rejected_rows = measured.ok & ~base.served
    if rejected_rows.any():
        longest = (measured.prompt_tokens + measured.output_tokens)[rejected_rows].max()
        dropped.append(rejected(int(rejected_rows.sum()), int(longest), log.settings["max_model_len"]))
    miss_parts = rows("miss_by_part")
    answer: dict[str, Any] = {
        "requests": int(measured.ok.sum()),
        "dropped": dropped,
        "files": log.tables["production_files"].to_pylist(),
        **{f"{name}_ms": errors_of(measured_ms[name], predicted_ms[name], intervals.get(name)) for name in METRICS},
        "cached_tokens": cached_of(measured, base),
        "parts": miss_parts,
        "suspects": rows("setting_suspects"),
        "fit": _fit(rows("correction_scores")),
        "drift": [row for row in rows("drift_over_time") if row["change"]],
    }
    e2e = answer["e2e_ms"]
    answer["causes"] = [as_cause(row) for row in rows("causes")]
    answer["cause"] = answer["causes"][0] if answer["causes"] else dict(NO_CAUSE)
    answer["percentiles"] = _percentiles(rows("latency_percentiles"))
    answer["occupancy"] = _occupancy(rows("occupancy_over_time"))
    answer["power_w"] = power_answer(rows("power_vs_production"))
    answer |= rows("log_tiers")[0]
    kernels = log.tables.get("production_kernels")  # not read for findings
    answer["kernels"] = [] if kernels is None else longest_kernels(kernels)
    windows = log.tables["production_windows"]
    has_server_metrics = windows.num_rows > windows["power_w"].length() - windows["power_w"].null_count
    answer["evidence"] = _evidence(rows("log_evidence"), has_server_metrics, other_gpus(answer["power_w"]))
    answer["not_separated"] = [
        *not_judged(answer),
        *not_separated(miss_parts, e2e["predicted"], answer["evidence"]),
    ]
    return answer | {"verdict": verdict_of(answer, _why_no_cause_search(log))}


def longest_kernels(kernels: pa.Table) -> list[dict[str, Any]]:
    """Return the MOST_KERNELS kernels of a profile with the most GPU time: name, family, calls, total_us and share."""
    names = [("calls", "sum"), ("total_us", "sum")]
    summed = kernels.group_by(["name", "family"]).aggregate(names).sort_by([("total_us_sum", "descending")])
    whole_us = sum(summed["total_us_sum"].to_pylist())
    return [
        {"name": row["name"], "family": row["family"], "calls": row["calls_sum"], "total_us": row["total_us_sum"],
         "share": row["total_us_sum"] / whole_us if whole_us else 0.0}
        for row in summed.slice(0, MOST_KERNELS).to_pylist()
    ]  # fmt: skip


def _why_no_cause_search(log: ComparedLog) -> str | None:
    """Return why causes were not searched for, "" where the question wants none; None where they were."""
    if log.measured.drawn:
        return "the log holds no times of sending: they were drawn at its rate, and distributions are compared"
    if log.question.fit == "none":
        return ""
    if not log.enough:
        return f"fewer than {LEAST_REQUESTS} requests or {LEAST_SECONDS:g} s of load, so that no cause was looked for"
    return None


@takes(
    *("comparisons", "log_settings", "compared_requests", "log_replays", "log_intervals", "log_tiers", "miss_by_part"),
    *("drift_over_time", "setting_suspects", "causes", "latency_percentiles", "occupancy_over_time"),
    *("correction_scores", "log_evidence", "power_vs_production"),
)
@reads("production_windows", "production_files", "log_faults")
@produces("comparison_findings")
def finding_rows(*, tables: Mapping[str, pa.Table], read: Reader) -> list[dict[str, Any]]:
    """Findings of each comparison, one sentence a row: the verdict first, then the limits of its evidence."""
    logs = (tables[name] for name in ("comparisons", "log_settings", "compared_requests"))
    rows = []
    for log in compared_logs(*logs, tables_beside(read)):
        summary = answer_of(log, tables.__getitem__)
        sentences = (summary["verdict"], *summary["not_separated"], *summary["evidence"].get("not_used", ()))
        rows += [
            {"comparison_id": log.comparison_id, "place": index, "sentence": f"{sentence[0].upper()}{sentence[1:]}"}
            for index, sentence in enumerate(sentences)
        ]
    return rows


def as_cause(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of ``causes`` as the summary has it: one ``value``, a number or a word; settings as integers."""
    value = row["value"] if row["word"] is None else row["word"]
    is_whole_number = row["kind"] == "setting" and isinstance(value, float) and value.is_integer()
    return {name: row[name] for name in NO_CAUSE} | {"value": int(value) if is_whole_number else value}


def _percentiles(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return measured and predicted percentiles, ms, by metric and percentile (p50, p90, ...)."""
    by_metric: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in rows:
        by_metric.setdefault(row["metric"], {})[row["percentile"]] = {
            name: row[name] for name in ("measured", "predicted")
        }
    return by_metric


def _occupancy(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the maximum number of requests that decoded at once, measured and predicted; empty without rows."""
    if not rows:
        return {}
    columns = {"measured": "running_max", "predicted": "predicted_running_max"}
    return {"running_max": {origin: max(row[name] for row in rows) for origin, name in columns.items()}}


def _fit(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return held-out scores (median absolute percentage error, bias) by kind of correction and metric."""
    scores: dict[str, Any] = {"held_out": rows[0]["held_out"]} if rows else {}
    for row in rows:
        scores.setdefault(row["corrections"], {})[row["metric"]] = {key: row[key] for key in ("median_ape", "bias")}
    return scores


def _evidence(rows: Sequence[Mapping[str, Any]], has_windows: bool, not_compared: Sequence[str]) -> dict[str, Any]:
    """Return the counts of engine steps and kernels that factors rest on, and sentences on what was not used.

    ``not_compared``: sentences on GPUs whose power is not compared, which are added to the latter.
    """
    counts: dict[str, Any] = {row["evidence"]: row["n"] for row in rows if row["n"] is not None}
    unused = [row["sentence"] for row in rows if row["sentence"]] + ([WINDOWS] if has_windows else [])
    unused += not_compared
    return counts | ({"not_used": unused} if rows or unused else {})
