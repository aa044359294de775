"""Figures of serving: 8 (kernel time as a request goes on), 9 (measured and simulated runs), 12 (error by load)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kernelsight.fitting.metrics import score
from kernelsight.laboratory.paper.chart import LOG, amount, chart, dashes, dots, kind, tips
from kernelsight.laboratory.paper.kernels import rounded
from kernelsight.laboratory.paper.sources import DEPLOYMENT, TARGET, Sources, most_loads, of_deployment
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Figure
from kernelsight.session import connect

# as in the paper: one request of Qwen3-8B on GB200; its lengths are not published
REQUEST = {"model": "qwen3-8b", "gpu": TARGET, "input_len": 8192, "output_len": 32_000}
METRICS = {"ttft": "TTFT (ms)", "tpot": "TPOT (ms)", "throughput": "output throughput (tok/s)"}
SCALE = LOG | {"nice": False}


def figure_8(sources: Sources) -> tuple[dict[str, Any], list[Figure]]:
    """GPU time by kernel family of one request: of its prompt, then of each twentieth of its output."""
    composition = figures_of("run")["Kernels as output grows"]
    with connect() as session:
        run = session.simulate(**REQUEST, num_prompts=1, request_rate="inf")
        rows = run.session.query(composition.sql).to_pylist()
    rows = [{**row, "share": rounded(row["share"], 3)} for row in rows]
    title = f"{REQUEST['model']} on {REQUEST['gpu']}: GPU time of one request"
    return {"request": REQUEST, "rows": rows}, [Figure(title, "", spec=composition.spec, rows=rows)]


def figure_9(sources: Sources) -> tuple[dict[str, Any], list[Figure]]:
    """Measured against simulated TTFT, TPOT and throughput of published runs, by GPU."""
    points = [point for row in sources.runs() if not row["fitting"] for point in points_of(row)]
    errors = [
        {"gpu": gpu, "kind": how, "metric": metric, **scored(own)}
        for gpu in sorted({point["gpu"] for point in points})
        for how in ("aggregated", "disaggregated")
        for metric in METRICS
        if (own := [p for p in points if (p["gpu"], p["kind"], p["metric"]) == (gpu, how, metric)])
    ]
    figures = []
    for metric, title in METRICS.items():
        x = amount("measured", f"measured {title}", scale=SCALE)
        y = amount("simulated", f"simulated {title}", scale=SCALE)
        color = {"color": kind("gpu"), "shape": kind("kind", "deployment"), "tooltip": tips("run_id", "error")}
        spec = {"layer": [chart(dots(12, opacity=0.5), x=x, y=y, **color), chart(dashes(), x=x, y=amount("measured"))]}
        figures.append(Figure(title, "", spec=spec, rows=[point for point in points if point["metric"] == metric]))
    shown = ("gpu", "kind", "metric", "measured", "simulated")
    return {"errors": errors, "points": [{name: point[name] for name in shown} for point in points]}, figures


def points_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a run's measured and simulated figures, one row per metric; none if it was not simulated.

    The published files hold no throughput: both sides are concurrency x output / (TTFT + TPOT x (output - 1)).
    """
    names = ("ttft_ms", "tpot_ms", "ttft_mean_ms", "tpot_mean_ms", "max_concurrency", "osl")
    if row["status"] != "served" or any(row[name] is None for name in names):
        return []
    users, tokens = row["max_concurrency"], row["osl"]
    measured, simulated = {}, {}
    for times, end in ((measured, "ms"), (simulated, "mean_ms")):
        times |= {metric: row[f"{metric}_{end}"] for metric in ("ttft", "tpot")}
        times["throughput"] = 1e3 * users * tokens / (times["ttft"] + times["tpot"] * (tokens - 1))
    how = "disaggregated" if row["prefill_workers"] else "aggregated"
    common = {name: row[name] for name in ("run_id", "gpu", "max_concurrency")} | {"kind": how}
    points = []
    for metric in METRICS:
        low, high = (row["interval_factors"] or {}).get(metric, (None, None))
        point = common | {
            "metric": metric,
            "measured": rounded(measured[metric]),
            "simulated": rounded(simulated[metric]),
        }
        point["error"] = rounded(100.0 * (simulated[metric] / measured[metric] - 1.0), 3)
        # error of the ends of the 90 % interval
        ends = [rounded(100.0 * (simulated[metric] * end / measured[metric] - 1.0), 3) for end in (low, high) if end]
        points.append(point | dict(zip(("low", "high"), ends, strict=False)))
    return points


def scored(points: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores of some points."""
    return score(*(np.array([point[name] for point in points]) for name in ("measured", "simulated")))


def figure_12(sources: Sources) -> tuple[dict[str, Any], list[Figure]]:
    """Error against offered load of one deployment: of Qwen3 on one GPU, and of the one with most loads."""
    rows = sources.runs()
    points, figures = [], []
    for deployment in most_loads(rows):
        runs = [
            row for row in rows if of_deployment(row) == deployment and row["campaign"] and not row["prefill_workers"]
        ]
        words = dict(zip(DEPLOYMENT, deployment, strict=True))
        name = (
            f"{words['model'].split('/')[-1]}, {words['quantization'] or 'bf16'}, {words['engine']}, "
            f"{words['gpu']} × {words['tp']}, {words['isl']} / {words['osl']} tokens"
        )
        own = [{**point, "deployment": name} for row in runs for point in points_of(row)]
        points += own
        load = amount("max_concurrency", "concurrency", scale=SCALE | {"base": 2})
        lines = chart({"type": "line", "point": True}, x=load, y=amount("error", "error (%)"), color=kind("metric"))
        ends = chart({"type": "rule", "opacity": 0.5}, {"filter": "isValid(datum.low)"}, x=load, y=amount("low"),
                     y2={"field": "high"}, color=kind("metric"))  # fmt: skip
        figures.append(Figure(name, "", spec={"layer": [lines, ends]}, rows=own))
    return {"points": points}, figures
