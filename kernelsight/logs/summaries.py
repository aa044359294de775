"""Rows of ``production_summaries``: statistics that logs state in addition to or instead of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

METRICS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms", "e2e_latency": "e2e_ms"}
_STATED = re.compile(r"(mean|median|std|p[0-9.]+)_(\w+)_ms")


def statistic(part: str, metric: str, name: str, value: Any) -> list[dict[str, Any]]:
    """Return the row of one statistic in a list, empty if its value is not a finite number; a median is p50.

    >>> statistic("run", "ttft_ms", "median", 12)
    [{'part': 'run', 'metric': 'ttft_ms', 'statistic': 'p50', 'value': 12.0}]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        return []
    statistic_name = {"median": "p50", "avg": "mean", "count": "total"}.get(name, name)
    return [{"part": part, "metric": metric, "statistic": statistic_name, "value": float(value)}]


def milliseconds_by_name(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statistics in a result of vLLM's or SGLang's client, such as ``p99_ttft_ms``, and its totals.

    >>> milliseconds_by_name({"mean_e2el_ms": 5.0, "completed": 3})[0]["metric"]
    'e2e_ms'
    """
    rows = []
    for name, value in result.items():
        match = _STATED.fullmatch(name)
        if match and match.group(2) in METRICS and match.group(1) != "std":
            rows += statistic("run", METRICS[match.group(2)], match.group(1), value)
    rows += statistic("run", "requests", "total", result.get("completed"))
    rows += statistic("run", "failed", "total", result.get("failed"))
    rows += statistic("run", "output_tokens_per_s", "mean", result.get("output_throughput"))
    rows += statistic("run", "max_concurrency", "mean", result.get("max_concurrency"))
    rows += statistic("run", "duration_s", "total", result.get("duration"))
    rows += statistic("run", "prompt_tokens", "total", result.get("total_input_tokens"))
    rows += statistic("run", "output_tokens", "total", result.get("total_output_tokens"))
    return list({(row["part"], row["metric"], row["statistic"]): row for row in rows}.values())
