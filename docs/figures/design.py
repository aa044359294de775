"""Views of `benches/results/design_gpu.json` and `sensitivities.json`: a GPU under budgets, derivatives against differences."""

from __future__ import annotations

from figures.blocks import result
from figures.text import count, percent, table

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def steps() -> str:
    """The rows that the optimiser tried, from each start."""
    rows = []
    for run in result("design_gpu")["runs"]:
        for number, tried in enumerate(run["tried"], start=1):
            bandwidth, rate = tried["facts"]
            figures = (count(tried["tokens_per_s"]), count(tried["price"]), f"{tried['per_1000']:.1f}")
            rows.append([str(number), f"{bandwidth:.2f}", count(rate), *figures])
    return table(["step", "TB/s", "TFLOP/s", "tokens/s", "$", "tokens/s per 1,000 $"], rows)


def ends() -> str:
    """Where it ended from each start."""
    ends = []
    for run in result("design_gpu")["runs"]:
        start, best = (f"{each[0]:.2f} TB/s and {count(each[1])} TFLOP/s" for each in (run["start"], run["best"]))
        last = run["tried"][-1]["per_1000"]
        ends.append(f"From {start} it ends at {best}: {last:.1f} tokens/s per 1,000 $, bound by {run['bound_by']}.")
    return " ".join(ends)


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
