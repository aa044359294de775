"""Requests of a log that grows: those that are still compared, those that load others, and windows of both."""

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

# rows that are kept: what a window is replayed with, and what causes are looked for in
MOST_KEPT = 3000
# a request that takes longer than this does not hold back those that were sent after it
LONGEST_S = 600.0
# columns of production_requests that a kept row has
COLUMNS = (
    *("sent_s", "prompt_tokens", "output_tokens", "cached_tokens", "ttft_ms", "tpot_ms", "e2e_ms", "ttft_clock"),
    "status",
)
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
Row = list[Any]


class Kept(NamedTuple):
    """Rows in order of sending, of COLUMNS each; the first ``compared`` of them were in a window already."""

    rows: list[Row]
    compared: int = 0


def with_requests(kept: Kept, requests: pl.DataFrame) -> Kept:
    """Return the kept rows with new requests, which a log writes in the order in which they end.

    One that was sent before others that were compared is compared with the next window.
    """
    new = [list(row) for row in requests.select(COLUMNS).iter_rows() if row[0] is not None]
    done, waiting = kept.rows[: kept.compared], kept.rows[kept.compared :] + new
    return Kept(done + sorted(waiting, key=lambda row: row[0]), kept.compared)


def is_due(kept: Kept) -> int:
    """Return how many of the kept rows can be compared: all that were sent before those still under way may have been.

    A log holds requests that have ended. What was sent less than the longest time before the last end may be missing,
    and with it a part of the load.
    """
    ends_s = [row[0] + _duration_s(row) for row in kept.rows]
    if not ends_s:
        return 0
    longest = min(max(_duration_s(row) for row in kept.rows), LONGEST_S)
    due = sum(row[0] <= max(ends_s) - longest for row in kept.rows[kept.compared :])
    # more than can be kept are compared early
    return kept.compared + max(due, len(kept.rows) - kept.compared - MOST_KEPT // 2)


def without_compared(kept: Kept, due: int) -> Kept:
    """Return what is kept once the first ``due`` rows were compared: the last of them load those that follow."""
    first_kept = max(min(due, len(kept.rows) - MOST_KEPT // 2), 0)
    return Kept(kept.rows[first_kept:], due - first_kept)


def window_of(
    kept: Kept, due: int, flags: Mapping[str, Any], session: Session
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return measured and expected times of the rows from ``kept.compared`` to ``due``, by metric, ms; and the counts.

    Of each metric: n, mean, p50, p90, p99 of both, and ``log_factor``, the median of measured over expected.
    """
    # what is not compared yet loads what is
    rows = sorted(kept.rows, key=lambda row: row[0])
    table = requests_table(rows)
    measured, new = measured_of(table), {id(row) for row in kept.rows[kept.compared : due]}
    fresh = np.array([id(row) in new for row in rows])
    (served,) = LogReplayer(session, load_of_log(table)).serve([Variant(flags)], with_parts=False)
    real, ours = measured_by_metric(measured), predicted_of(served, measured.output_tokens)
    figures = {}
    for metric in METRICS:
        in_both = fresh & np.isfinite(real[metric]) & np.isfinite(ours[metric]) & (real[metric] > 0.0)
        if in_both.any():
            figures[metric] = _figures(real[metric][in_both], ours[metric][in_both])
    times = measured.sent_s[fresh]
    counts = {"requests": float(fresh.sum()), "failed": float((fresh & ~measured.ok).sum())}
    return figures, counts | {"start_s": float(times.min()), "end_s": float(times.max())}


def requests_table(rows: Sequence[Row]) -> pa.Table:
    """Return kept rows as ``production_requests``."""
    request_rows = [
        {"log_id": "watched", "request_id": index, "arrival_s": row[0], **dict(zip(COLUMNS, row, strict=True))}
        for index, row in enumerate(rows)
    ]
    return as_table(contracts()["production_requests"], request_rows)


def _figures(real: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    figures = {"n": float(real.size), "log_factor": float(np.median(np.log(real / np.maximum(ours, 1e-9))))}
    for name, values in (("measured", real), ("expected", ours)):
        figures[f"{name}_mean"] = float(values.mean())
        figures |= {
            f"{name}_{quantile_name}": float(np.quantile(values, quantile))
            for quantile_name, quantile in SHARES.items()
        }
    return figures


def _duration_s(row: Row) -> float:
    """Return how long a request took, as far as the log says."""
    e2e_ms, ttft_ms = row[COLUMNS.index("e2e_ms")], row[COLUMNS.index("ttft_ms")]
    return ((ttft_ms if e2e_ms is None else e2e_ms) or 0.0) / 1e3
