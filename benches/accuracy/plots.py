"""Pictures of an evaluation: kernels under their roofline, latency / roofline by size, predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROWS = 1500  # points of one family in one picture
# one shape per family and the size along the axis, as in figure 10 of arXiv 2606.28565
SWEEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm": ("m", {"dtype": "bf16", "engine": "sglang", "n": 4096, "k": 4096}),
    "prefill_attention": (
        "new_tokens",
        {
            "dtype": "bf16/bf16",
            "engine": "trtllm",
            "batch": 1,
            "heads": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "window": 0,
        },
    ),
    "decode_attention": (
        "context",
        {
            "dtype": "bf16/bf16",
            "engine": "trtllm",
            "batch": 8,
            "heads": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "window": 0,
        },
    ),
}


def draw(scored: Mapping[str, pa.Table], folder: Path, ending: str = "png") -> list[Path]:
    """Write the pictures of scored rows (tables by family) into a folder; return their paths."""
    charts = {"roofline": roofline(scored), "eta": eta(scored), "predicted": predicted(scored)}
    paths = []
    for name, chart in charts.items():
        path = folder / f"{name}.{ending}"
        chart.configure_axis(grid=False).save(str(path), scale_factor=2)
        paths.append(path)
    return paths


def roofline(scored: Mapping[str, pa.Table]) -> Any:
    """Return the chart of achieved FLOP/s by arithmetic intensity, with each GPU's roofline in black."""
    import altair as alt

    rows = _points(scored, lambda table: pc.greater(table["flops"], 0.0))
    for row in rows:
        row["intensity"] = row["flops"] / row["bytes"]
        row["achieved"] = row["flops"] / row["latency_us"] / 1e6
        row["roof"] = row["flops"] / row["roofline_us"] / 1e6
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("intensity:Q", scale=alt.Scale(type="log", nice=False), title="arithmetic intensity (FLOP/byte)")
    )
    points = base.mark_point(size=6, opacity=0.35).encode(
        y=alt.Y("achieved:Q", scale=alt.Scale(type="log", nice=False), title="achieved TFLOP/s"), color="family:N"
    )
    roofs = base.mark_point(size=3, color="black", filled=True).encode(y="roof:Q")
    return (points + roofs).properties(width=420, height=320, title="Measured kernels under their roofline")


def eta(scored: Mapping[str, pa.Table]) -> Any:
    """Return the chart of latency / roofline by size and GPU: measured points, predicted lines."""
    import altair as alt

    rows = []
    for family, (axis, fixed) in SWEEPS.items():
        table = scored.get(family)
        if table is None:
            continue
        for name, value in fixed.items():
            table = table.filter(pc.equal(table[name], value))
        for row in table.sort_by([("gpu", "ascending"), (axis, "ascending")]).to_pylist():
            rows.append(
                {
                    **{"family": f"{family}, by {axis}", "size": max(row[axis], 1.0), "gpu": row["gpu"]},
                    **{"measured": row["latency_us"] / row["roofline_us"]},
                    **{"predicted": row["predicted_us"] / row["roofline_us"], "kernel": row["implementation"]},
                }
            )
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("size:Q", scale=alt.Scale(type="log", nice=False), title="size"), color="gpu:N"
    )
    measured = base.mark_point(size=14).encode(
        y=alt.Y("measured:Q", scale=alt.Scale(type="log", nice=False), title="η = latency / roofline")
    )
    lines = base.mark_line(strokeWidth=1).encode(y="predicted:Q", detail="kernel:N")
    layers = (measured + lines).properties(width=260, height=220)
    return layers.facet(column=alt.Column("family:N", title=None)).resolve_scale(x="independent", y="independent")


def predicted(scored: Mapping[str, pa.Table]) -> Any:
    """Return the chart of predicted by measured latency of each family, on logarithmic axes."""
    import altair as alt

    rows = _points(scored, lambda table: pc.is_finite(table["predicted_us"]))
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("latency_us:Q", scale=alt.Scale(type="log", nice=False), title="measured (µs)"),
    )
    points = base.mark_point(size=6, opacity=0.35).encode(
        y=alt.Y("predicted_us:Q", scale=alt.Scale(type="log", nice=False), title="predicted (µs)"), color="seen:N"
    )
    exact = base.mark_line(color="black", strokeWidth=0.7).encode(y="latency_us:Q")
    layers = (points + exact).properties(width=190, height=190)
    return layers.facet(facet=alt.Facet("family:N", title=None), columns=4)


def _points(scored: Mapping[str, pa.Table], condition: Any) -> list[dict[str, Any]]:
    """Return up to ROWS evenly spaced rows of each family."""
    names = ("family", "gpu", "seen", "flops", "bytes", "latency_us", "predicted_us", "roofline_us")
    rows: list[dict[str, Any]] = []
    for table in scored.values():
        matching = table.select(list(names)).filter(condition(table))
        indices = np.unique(np.linspace(0, matching.num_rows - 1, ROWS).astype(np.int64)) if matching.num_rows else []
        rows += matching.take(pa.array(indices, pa.int64())).to_pylist()
    return rows
