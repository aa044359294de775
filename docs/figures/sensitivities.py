"""Table of errors of derivatives against central differences, and a sentence on the designed GPUs."""

from __future__ import annotations

from figures.blocks import result
from figures.text import count, percent, table

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def distances() -> str:
    """Table of distances of derivatives from central differences, by method and metric."""
    recorded = result("sensitivities")
    rows = [
        [row["method"], _metric(row["metric"]), count(row["n"]), f"{row['median']:.4f}", f"{row['p90']:.3f}"]
        + [percent(row["within"], 0)]
        for row in recorded["rows"]
    ]
    header = ["method", "metric", "n", "median distance", "90th percentile", f"within {recorded['close']}"]
    return f"{count(recorded['scenarios'])} random scenarios:\n\n" + table(header, rows)


def design() -> str:
    """Sentence on the ends of the optimiser's walks, and on the best GPU of a grid."""
    recorded = result("design")
    best = max((row for row in recorded["grid"] if row["kept"]), key=lambda row: row["per_1000_usd"])
    ends = " and ".join(f"{walk[-1][0]:.2f} TB/s with {walk[-1][1]:,.0f} TFLOP/s" for walk in recorded["walks"])
    evaluations = " and ".join(str(len(walk)) for walk in recorded["walks"])
    return (
        f"The walks end at {ends}, after {evaluations} rows; the best of {len(recorded['grid'])} simulated GPUs within the budgets has "
        f"{best['bandwidth']:.2f} TB/s and {best['arithmetic']:,.0f} TFLOP/s."
    )


def _metric(name: str) -> str:
    """Return a metric's title."""
    metric, _, statistic = name.removesuffix("_ms").partition("_")
    return f"{METRICS[metric]} {statistic}" if metric in METRICS else name.replace("_", " ")
