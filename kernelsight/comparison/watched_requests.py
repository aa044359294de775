"""Recent requests of a growing log: kept rows, which of them can be compared, and windows of their latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.measured_requests import measured_of
from kernelsight.comparison.replay import Variant, load_of_log
from kernelsight.dataflow.rows import as_table
from kernelsight.dataflow.session import Session

# rows that are kept: windows are replayed with them, and causes are searched for in them
MOST_KEPT = 3000
# requests that were sent this long before the last end are compared, however long others take
LONGEST_S = 600.0
# columns of production_requests in a kept row
COLUMNS = (
    *("sent_s", "prompt_tokens", "output_tokens", "cached_tokens", "ttft_ms", "tpot_ms", "e2e_ms", "ttft_clock"),
    "status",
)
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
Row = list[Any]


class RecentRequests(NamedTuple):
    """Recent requests in order of sending, rows of COLUMNS; the first ``compared`` of them were in a window already."""

    rows: list[Row]
    compared: int = 0


def with_requests(recent: RecentRequests, requests: pl.DataFrame) -> RecentRequests:
    """Return the kept rows with new requests sorted in; a log writes requests in the order in which they end.

    A new request that was sent before compared ones is compared with the next window.
    """
    new = [list(row) for row in requests.select(COLUMNS).iter_rows() if row[0] is not None]
    compared, waiting = recent.rows[: recent.compared], recent.rows[recent.compared :] + new
    return RecentRequests(compared + sorted(waiting, key=lambda row: row[0]), recent.compared)


def due_count(recent: RecentRequests) -> int:
    """Return the number of kept rows that can be compared: those sent before any request that may still be running.

    A log holds only requests that have ended. Of those sent within the longest duration before the last end some may
    be missing, and with them a part of the load.
    """
    ends_s = [row[0] + _duration_s(row) for row in recent.rows]
    if not ends_s:
        return 0
    longest = min(max(_duration_s(row) for row in recent.rows), LONGEST_S)
    due = sum(row[0] <= max(ends_s) - longest for row in recent.rows[recent.compared :])
    # compare early when more rows wait than are kept
    return recent.compared + max(due, len(recent.rows) - recent.compared - MOST_KEPT // 2)


def without_compared(recent: RecentRequests, due: int) -> RecentRequests:
    """Return the kept rows after the first ``due`` were compared; the last of these stay as load for what follows."""
    first_kept = max(min(due, len(recent.rows) - MOST_KEPT // 2), 0)
    return RecentRequests(recent.rows[first_kept:], due - first_kept)


def window_of(
    recent: RecentRequests, due: int, flags: Mapping[str, Any], session: Session
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return a window of the rows from ``recent.compared`` to ``due``: figures by metric, and counts with times, s.

    Of each metric: n, mean, p50, p90 and p99, measured and expected, ms, and ``log_factor``, the median logarithm of
    measured over expected.
    """
    # rows that are not compared yet are load too
    rows = sorted(recent.rows, key=lambda row: row[0])
    table = requests_table(rows)
    measured, new_ids = measured_of(table), {id(row) for row in recent.rows[recent.compared : due]}
    is_new = np.array([id(row) in new_ids for row in rows])
    (served,) = LogReplayer(session, load_of_log(table)).serve([Variant(flags)], with_parts=False)
    measured_ms, expected_ms = measured_by_metric(measured), predicted_of(served, measured.output_tokens)
    figures = {}
    for metric in METRICS:
        in_both = (
            is_new & np.isfinite(measured_ms[metric]) & np.isfinite(expected_ms[metric]) & (measured_ms[metric] > 0.0)
        )
        if in_both.any():
            figures[metric] = _figures(measured_ms[metric][in_both], expected_ms[metric][in_both])
    sent_s = measured.sent_s[is_new]
    counts = {"requests": float(is_new.sum()), "failed": float((is_new & ~measured.ok).sum())}
    return figures, counts | {"start_s": float(sent_s.min()), "end_s": float(sent_s.max())}


def requests_table(rows: Sequence[Row]) -> pa.Table:
    """Return rows of COLUMNS as ``production_requests``."""
    request_rows = [
        {"log_id": "watched", "request_id": index, "arrival_s": row[0], **dict(zip(COLUMNS, row, strict=True))}
        for index, row in enumerate(rows)
    ]
    return as_table(contracts()["production_requests"], request_rows)


def _figures(measured: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Return n, means and percentiles of measured and expected times, and their log_factor; see ``window_of``."""
    figures = {"n": float(measured.size), "log_factor": float(np.median(np.log(measured / np.maximum(expected, 1e-9))))}
    for name, values in (("measured", measured), ("expected", expected)):
        figures[f"{name}_mean"] = float(values.mean())
        figures |= {
            f"{name}_{quantile_name}": float(np.quantile(values, quantile))
            for quantile_name, quantile in SHARES.items()
        }
    return figures


def _duration_s(row: Row) -> float:
    """Return the E2E of a request, s; TTFT without it, 0 without both."""
    e2e_ms, ttft_ms = row[COLUMNS.index("e2e_ms")], row[COLUMNS.index("ttft_ms")]
    return ((ttft_ms if e2e_ms is None else e2e_ms) or 0.0) / 1e3
