"""Tables of a log and its baseline: log_changes, change_causes, change_latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.comparison.compared_log import of_logs, tables_beside
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.log_changes import Changes, LogPair, changes_between
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.measured_requests import Measured, measured_of
from kernelsight.comparison.power import mean_power, measured_power
from kernelsight.comparison.question import Question, question_of
from kernelsight.comparison.replay import Replayed, Variant, load_of_log
from kernelsight.comparison.sample import in_order_of_sending
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

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
    return {row["setting"]: row["found"] for row in settings.to_pylist() if row["found"] is not None}


def _rows(
    changes: Changes, requests: Sequence[pa.Table], measured: Sequence[Measured]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the TABLES by name."""
    causes = []
    for index, cause in enumerate(changes.causes):
        word = cause.value if isinstance(cause.value, str) else None
        causes.append(
            {**cause._asdict(), "place": index, "value": None if word is not None else cause.value, "word": word}
        )
    return {
        "log_changes": [{"place": index, **row} for index, row in enumerate(changes.rows)],
        "change_causes": causes,
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
