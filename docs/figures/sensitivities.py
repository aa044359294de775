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


def design() -> str:
    """What the walks over rows of a GPU have found, beside the best of a grid."""
    found = result("design")
    best = max((row for row in found["grid"] if row["kept"]), key=lambda row: row["per_1000_usd"])
    ends = " and ".join(f"{walk[-1][0]:.2f} TB/s with {walk[-1][1]:,.0f} TFLOP/s" for walk in found["walks"])
    asked = " and ".join(str(len(walk)) for walk in found["walks"])
    return (
        f"The walks end at {ends}, after {asked} rows; the best of {len(found['grid'])} simulated GPUs within the budgets has "
        f"{best['bandwidth']:.2f} TB/s and {best['arithmetic']:,.0f} TFLOP/s."
    )


def _metric(name: str) -> str:
    metric, _, statistic = name.removesuffix("_ms").partition("_")
    return f"{METRICS[metric]} {statistic}" if metric in METRICS else name.replace("_", " ")
