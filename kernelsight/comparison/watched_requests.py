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
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class KeptRequest(NamedTuple):
    """A request that is kept: columns of ``production_requests``, times in s of the log's clock, durations in ms."""

    sent_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    ttft_clock: str | None
    status: str

    @property
    def duration_s(self) -> float:
        """E2E of the request, s; TTFT without it, 0 without both."""
        return ((self.ttft_ms if self.e2e_ms is None else self.e2e_ms) or 0.0) / 1e3


class RecentRequests(NamedTuple):
    """Recent requests in order of sending; the first ``compared`` of them were in a window already."""

    rows: list[KeptRequest]
    compared: int = 0


def with_requests(recent: RecentRequests, requests: pl.DataFrame) -> RecentRequests:
    """Return the kept rows with new requests sorted in; a log writes requests in the order in which they end.

    A new request that was sent before compared ones is compared with the next window.
    """
    new = [KeptRequest(*row) for row in requests.select(KeptRequest._fields).iter_rows() if row[0] is not None]
    compared, waiting = recent.rows[: recent.compared], recent.rows[recent.compared :] + new
    return RecentRequests(compared + sorted(waiting, key=lambda row: row.sent_s), recent.compared)


def due_count(recent: RecentRequests) -> int:
    """Return the number of kept rows that can be compared: those sent before any request that may still be running.

    A log holds only requests that have ended. Of those sent within the longest duration before the last end some may
    be missing, and with them a part of the load.
    """
    ends_s = [row.sent_s + row.duration_s for row in recent.rows]
    if not ends_s:
        return 0
    longest = min(max(row.duration_s for row in recent.rows), LONGEST_S)
    due = sum(row.sent_s <= max(ends_s) - longest for row in recent.rows[recent.compared :])
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
    rows = sorted(recent.rows, key=lambda row: row.sent_s)
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


def requests_table(rows: Sequence[KeptRequest]) -> pa.Table:
    """Return kept requests as ``production_requests``."""
    request_rows = [
        {"log_id": "watched", "request_id": index, "arrival_s": row.sent_s, **row._asdict()}
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
