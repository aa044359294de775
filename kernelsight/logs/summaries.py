"""Rows of ``production_summaries``: statistics that logs state in addition to or instead of requests."""

from __future__ import annotations

from typing import Any

import polars as pl

QUANTILES = (50, 90, 95, 99)


def statistic(part: str, metric: str, name: str, value: Any) -> list[dict[str, Any]]:
    """Return the row of one statistic in a list, empty if its value is not a finite number; a median is p50.

    >>> statistic("run", "ttft_ms", "median", 12)
    [{'part': 'run', 'metric': 'ttft_ms', 'statistic': 'p50', 'value': 12.0}]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        return []
    statistic_name = {"median": "p50", "avg": "mean", "count": "total"}.get(name, name)
    return [{"part": part, "metric": metric, "statistic": statistic_name, "value": float(value)}]


def statistics_of_requests(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the number of requests, and means and percentiles of their latencies and lengths, as rows of a run.

    ``frame``: columns of ``production_requests``.
    """
    rows = statistic("run", "requests", "total", frame.height)
    between_ms = (pl.col("e2e_ms") - pl.col("ttft_ms")) / (pl.col("output_tokens") - 1)
    frame = frame.with_columns(pl.when(pl.col("output_tokens") > 1).then(between_ms).alias("tpot_ms"))
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "prompt_tokens", "output_tokens"):
        values = frame[name].cast(pl.Float64).drop_nulls()
        for stated, value in (
            ("mean", values.mean()),
            *((f"p{p}", values.quantile(p / 100, "linear")) for p in QUANTILES),
        ):
            rows += statistic("run", name, stated, value)
    return rows
