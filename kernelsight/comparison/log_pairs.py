"""A log and an earlier one (baseline): tables of what changed in load, speed and settings, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.comparison.answer import NO_CAUSE, as_cause
from kernelsight.comparison.compared_log import Question, in_order_of_sending, of_logs, question_of, tables_beside
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.log_changes import LENGTHEN, Changes, LogPair, changes_between
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.measured_requests import Measured, measured_of
from kernelsight.comparison.power import mean_power, measured_power
from kernelsight.comparison.replay import Replayed, Variant, load_of_log
from kernelsight.comparison.signature_causes import SPELLINGS, with_kernels
from kernelsight.comparison.verdict import AGREES, cause_sentence, fault_counts, unused_clause
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.number_format import number, percent

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# prefix of the earlier log's name, which distinguishes its rows in tables of both logs
EARLIER = "before/"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# a stream with at most this many tokens a chunk has one gap per token
MOST_TOKENS_A_CHUNK = 1.01


def requests_of(question: Question, requests: pa.Table, logs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the requests of the earlier and the later log, each in order of sending, times from its own first request.

    InvalidInput: one of them has none.
    """
    pair = []
    for name, ids in (("earlier", question.baseline or ()), ("later", question.log_ids)):
        one_log = question._replace(log_ids=ids)
        log_requests = in_order_of_sending(of_logs(requests, one_log), of_logs(logs, one_log))
        if not log_requests.num_rows:
            raise InvalidInput(
                f"the {name} log holds no requests with a prompt length; give logs of requests to --log and --baseline."
            )
        pair.append(log_requests)
    return pair[0], pair[1]


@reads("production_logs", "production_settings", "production_windows", "step_costs", "knot_corrections")
@produces("log_changes", "change_causes", "change_latencies")
def change_rows(
    comparisons: pa.Table, production_requests: pa.Table, *, read: Reader, fork: Callable[[], Session]
) -> dict[str, list[dict[str, Any]]]:
    """Changes between a log and its baseline: load, speed, settings, and the causes of the change in latency."""
    with one_blas_thread(), fork() as session:
        return _rows_of_pairs(comparisons, {**tables_beside(read), "production_requests": production_requests}, session)


def _rows_of_pairs(
    comparisons: pa.Table, tables: Mapping[str, pa.Table], session: Session
) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in change_rows.produces}
    for row in comparisons.to_pylist():
        question = question_of(row)
        if question.baseline is None:
            continue
        requests = requests_of(question, tables["production_requests"], tables["production_logs"])
        measured = [measured_of(log_requests) for log_requests in requests]
        tables_of_logs = [
            {name: of_logs(table, question._replace(log_ids=ids)) for name, table in tables.items()}
            for ids in (question.baseline, question.log_ids)
        ]
        settings = [_settings(log_tables["production_settings"]) for log_tables in tables_of_logs]
        power = [
            mean_power(measured_power(log_requests, log_measured, log_tables), log_measured)
            for log_requests, log_measured, log_tables in zip(requests, measured, tables_of_logs, strict=True)
        ]
        gaps = requests[1]["chunk_gaps_ms"]
        pair = LogPair(*measured, (settings[0], settings[1]), gaps, (power[0], power[1]))
        changes = changes_between(pair, _replays(question, requests, session) if question.flags else None)
        changes = changes._replace(causes=with_kernels(changes.causes, changes.rows, question.flags, session))
        for name, table_rows in _rows(changes, requests, measured).items():
            rows[name] += [{"comparison_id": row["comparison_id"], **values} for values in table_rows]
    return rows


def _replays(question: Question, requests: Sequence[pa.Table], session: Session) -> Any:
    """Return a function that replays both logs on the deployment."""

    def replay() -> tuple[Replayed, Replayed]:
        variant = [Variant(question.flags)]
        earlier, later = (
            LogReplayer(session, load_of_log(log_requests)).serve(variant, with_parts=False)[0]
            for log_requests in requests
        )
        return earlier, later

    return replay


def _settings(settings: pa.Table) -> dict[str, str]:
    """Return the values that logs state of settings, by setting."""
    found = {row["setting"]: row["found"] for row in settings.to_pylist() if row["found"] is not None}
    return {SPELLINGS.get(name, name): value for name, value in found.items()}


def _rows(
    changes: Changes, requests: Sequence[pa.Table], measured: Sequence[Measured]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables of changes by name."""
    return {
        "log_changes": [{"place": index, **row} for index, row in enumerate(changes.rows)],
        "change_causes": [cause.as_row(index) for index, cause in enumerate(changes.causes)],
        "change_latencies": _latencies(requests, measured, changes.base),
    }


def _latencies(
    requests: Sequence[pa.Table], measured: Sequence[Measured], base: Replayed | None
) -> list[dict[str, Any]]:
    """Return rows of ``change_latencies``, ms: means and percentiles of both logs, and the mean that ``base`` has."""
    by_log = [measured_by_metric(log_measured) for log_measured in measured]
    expected = predicted_of(base, measured[1].output_tokens) if base else {}
    by_metric = {f"{name}_ms": [pair_of_times[name] for pair_of_times in by_log] for name in METRICS}
    by_metric["itl_ms"] = [_gaps(log_requests) for log_requests in requests]
    rows = []
    for metric, pair_of_times in by_metric.items():
        measured_times = [times_ms[np.isfinite(times_ms)] for times_ms in pair_of_times]
        if not any(times_ms.size for times_ms in measured_times):
            continue
        expected_ms = expected.get(metric.removesuffix("_ms"))
        expected_mean_ms = (
            float(np.nanmean(expected_ms)) if expected_ms is not None and np.isfinite(expected_ms).any() else None
        )
        means = [float(times_ms.mean()) if times_ms.size else None for times_ms in measured_times]
        rows.append(
            {"metric": metric, "statistic": "mean", "before": means[0], "after": means[1], "expected": expected_mean_ms}
        )
        for name, quantile in PERCENTILES.items():
            pair = [
                float(np.quantile(times_ms, quantile, method="nearest")) if times_ms.size else None
                for times_ms in measured_times
            ]
            rows.append({"metric": metric, "statistic": name, "before": pair[0], "after": pair[1]})
    return rows


def _gaps(requests: pa.Table) -> np.ndarray:
    """Return the gaps between tokens (ITL) of a log's successful requests, ms, where a chunk is one token."""
    single = pc.less(pc.fill_null(requests["tokens_per_chunk"], 1.0), MOST_TOKENS_A_CHUNK)
    gaps = requests.filter(pc.and_(single, pc.equal(requests["status"], "ok")))["chunk_gaps_ms"]
    return pc.list_flatten(gaps).to_numpy().astype(float)


def merged_logs(
    after: Mapping[str, pa.Table], before: Mapping[str, pa.Table]
) -> tuple[dict[str, pa.Table], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the tables of two logs as one set, the earlier log's names beginning with EARLIER, and the names of each.

    Names are those of the later log's files, then those of the earlier log's.
    """

    def renamed(table: pa.Table) -> pa.Table:
        if "log_id" not in table.column_names:
            return table
        column_index = table.column_names.index("log_id")
        names = [f"{EARLIER}{name}" for name in table["log_id"].to_pylist()]
        return table.set_column(column_index, table.schema.field(column_index), pa.array(names, pa.string()))

    earlier = {name: renamed(table) for name, table in before.items()}
    later_ids, earlier_ids = (tuple(tables["production_logs"]["log_id"].to_pylist()) for tables in (after, earlier))
    return {name: pa.concat_tables([table, earlier[name]]) for name, table in after.items()}, (later_ids, earlier_ids)


def answer_of(table: Callable[[str], pa.Table]) -> dict[str, Any]:
    """Return the summary of two logs, as ``kernelsight compare --format json`` prints it.

    ``table``: returns a table of the comparison by its name; ``predicted`` is the earlier log.
    """

    def rows(name: str) -> list[dict[str, Any]]:
        return table(name).drop_columns(["comparison_id"]).to_pylist()

    latencies = rows("change_latencies")
    causes = [as_cause(row) for row in rows("change_causes")]
    faults = table("log_faults").to_pylist()
    requests = table("production_requests")
    is_earlier = np.array([name.startswith(EARLIER) for name in requests["log_id"].to_pylist()])
    ok = np.array([status == "ok" for status in requests["status"].to_pylist()])
    counts = {"after": int((ok & ~is_earlier).sum()), "before": int((ok & is_earlier).sum())}
    by_metric = {(row["metric"], row["statistic"]): row for row in latencies}
    summary: dict[str, Any] = {
        "requests": counts["after"],
        "baseline": {"requests": counts["before"]},
        "dropped": fault_counts(row for row in faults if not row["log_id"].startswith(EARLIER)),
        "files": table("production_files").to_pylist(),
        **{f"{name}_ms": _errors(by_metric.get((f"{name}_ms", "mean")), counts) for name in METRICS},
        "changes": rows("log_changes"),
        "causes": causes,
        "cause": causes[0] if causes else dict(NO_CAUSE),
        "percentiles": _percentiles(latencies),
    }
    e2e = by_metric.get(("e2e_ms", "mean"))
    summary["parts"] = _parts_of_miss(e2e)
    running_max = next((row for row in summary["changes"] if row["what"] == "running_max"), None)
    summary["occupancy"] = {"running_max": _pair(running_max)} if running_max else {}
    summary |= {"suspects": [], "fit": {}, "drift": [], "cached_tokens": {}, "evidence": {}, "not_separated": []}
    return summary | {"verdict": _verdict(summary)}


def _pair(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {"measured": row["after"], "predicted": row["before"]}


def _errors(mean: Mapping[str, Any] | None, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the mean latencies of both logs, ms, and their bias; errors by request are None.

    Requests of one log have no counterpart in the other.
    """
    no_errors = dict.fromkeys(("median_ape", "p90_ape", "coverage_90"))
    if mean is None or mean["before"] is None or mean["after"] is None:
        return {"n": 0, "measured": None, "predicted": None, "bias": None, **no_errors}
    bias = mean["before"] / mean["after"] - 1.0 if mean["after"] else None
    return {"n": counts["after"], **_pair(mean), "bias": bias, **no_errors}


def _percentiles(latencies: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    percentiles: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in latencies:
        if row["statistic"] != "mean":
            percentiles.setdefault(row["metric"], {})[row["statistic"]] = _pair(row)
    return percentiles


def _parts_of_miss(e2e: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the difference of mean E2E, ms, split into the part of the workload and the unexplained rest."""
    if e2e is None or e2e["before"] is None or e2e["after"] is None or e2e["expected"] is None:
        return []
    load, unexplained = e2e["expected"] - e2e["before"], e2e["after"] - e2e["expected"]
    total = abs(load) + abs(unexplained)
    rows = [
        {"part": name, "miss_ms": miss, "share": abs(miss) / total if total else None, "posterior_ratio": None}
        for name, miss in (("workload", load), ("unexplained", unexplained))
    ]
    return sorted(rows, key=lambda row: -abs(row["miss_ms"]))


def _verdict(summary: Mapping[str, Any]) -> str:
    """Return the verdict, one sentence: change of the mean latency, the workload's part of it, and the causes."""
    name = next((name for name in ("E2E", "TPOT", "TTFT") if summary[f"{name.lower()}_ms"]["n"]), None)
    if name is None:
        return "the two logs have no latency in common, so that nothing is compared."
    latency = summary[f"{name.lower()}_ms"]
    change = latency["measured"] / latency["predicted"] - 1.0 if latency["predicted"] else 0.0
    times = f"({number(latency['measured'])} ms, before {number(latency['predicted'])} ms)"
    agrees = abs(change) < AGREES and not summary["causes"]
    clauses = [
        f"both logs agree: mean {name} {times}"
        if agrees
        else f"mean {name} is {percent(abs(change), 1)} {'longer' if change > 0 else 'shorter'} than before {times}"
    ]
    load = next((row["miss_ms"] for row in summary["parts"] if row["part"] == "workload"), None)
    changed = {row["what"] for row in summary["changes"] if row["certain"]}
    is_load = load is not None and bool(changed & set(LENGTHEN))
    if is_load and name == "E2E" and not agrees and abs(load) >= AGREES * latency["predicted"]:
        clauses.append(f"the load makes {'+' if load >= 0 else '-'}{number(abs(load), 3)} ms of it")
    clauses += [cause_sentence(cause, "what it was before", "before") for cause in summary["causes"]]
    power_change = next((row for row in summary["changes"] if row["what"] == "power_w" and row["certain"]), None)
    if power_change is not None:
        clauses.append(
            f"its GPUs drew {number(power_change['after'], 3)} W, before {number(power_change['before'], 3)} W"
        )
    if not changed and not summary["causes"] and not agrees:
        clauses.append("no change beyond chance")
    elif not summary["causes"] and not agrees:
        unexplained = next((row["miss_ms"] for row in summary["parts"] if row["part"] == "unexplained"), None)
        if unexplained is None:
            clauses.append("too few requests with times of sending for a cause")
        elif abs(unexplained) < AGREES * latency["measured"]:
            clauses.append("at the same load the engine is as fast as before")
        else:
            clauses.append("no cause holds")
    return f"{'; '.join(clauses)}{unused_clause(summary['dropped'])}."
