"""Rows of ``production_summaries``: statistics that logs state in addition to or instead of requests."""

from __future__ import annotations

from typing import Any


def statistic(part: str, metric: str, name: str, value: Any) -> list[dict[str, Any]]:
    """Return the row of one statistic in a list, empty if its value is not a finite number; a median is p50.

    >>> statistic("run", "ttft_ms", "median", 12)
    [{'part': 'run', 'metric': 'ttft_ms', 'statistic': 'p50', 'value': 12.0}]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        return []
    statistic_name = {"median": "p50", "avg": "mean", "count": "total"}.get(name, name)
    return [{"part": part, "metric": metric, "statistic": statistic_name, "value": float(value)}]
