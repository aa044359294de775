"""Views of `benches/results/sensitivities.json`: derivatives against central differences."""

from __future__ import annotations

from figures.blocks import result
from figures.text import count, percent, table

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def distances() -> str:
    """How far derivatives are from central differences, by how they were found."""
    found = result("sensitivities")
    rows = [
        [row["method"], _metric(row["metric"]), count(row["n"]), f"{row['median']:.4f}", f"{row['p90']:.3f}"]
        + [percent(row["within"], 0)]
        for row in found["rows"]
    ]
    header = ["method", "metric", "n", "median distance", "90th percentile", f"within {found['close']}"]
    return f"{count(found['scenarios'])} random scenarios:\n\n" + table(header, rows)


def _metric(name: str) -> str:
    metric, _, statistic = name.removesuffix("_ms").partition("_")
    return f"{METRICS[metric]} {statistic}" if metric in METRICS else name.replace("_", " ")
