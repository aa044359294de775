"""Figures of kernels: 3 (roofline), 7 (fabrics), 10 (η by shape), 11 (η's magnitude and spread)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import predict_family
from kernelsight.fitting.metrics import score
from kernelsight.fitting.portability import portability_rows
from kernelsight.fitting.splits import HEADLINE_TRAIN, shape_columns
from kernelsight.kernels.families import FAMILIES, MEASURED
from kernelsight.kernels.pack import default_pack, pack_table
from kernelsight.laboratory.kernels.versions import packed_latency
from kernelsight.laboratory.paper.chart import LOG, amount, chart, dashes, dots, kind, tips
from kernelsight.laboratory.paper.sources import GPUS, TARGET, Sources
from kernelsight.present.page import Figure
from kernelsight.present.pages.predict import RATES, roofs_of
from kernelsight.session import connect

# points of a family in a picture, and most sizes of a GPU in figure 10; families with fewer than FEWEST have no curve
POINTS, SIZES, FEWEST = 60, 24, 4
# the size that a family's calls grow by, in figure 10; collectives grow by their bytes
AXES = {
    **dict.fromkeys(("gemm", "batched_gemm"), "m"),
    **dict.fromkeys(("prefill_attention", "encoder_attention", "mla_prefill"), "new_tokens"),
    **dict.fromkeys(("decode_attention", "mla_decode"), "context"),
    **{"moe": "tokens", "quantize": "rows", "linear_attention": "rows", "sparse_attention": "queries"},
}
NVLINK = ("a100_sxm", "h100_sxm", "b200_sxm", TARGET)
PCIE = ("l40s", "rtx_pro_6000_server")
LOG_SCALE = LOG | {"nice": False}
BLUE = {"condition": {"test": f"datum.gpu == '{TARGET}'", "value": "#2a6fb0"}, "value": "#bbb"}


def figure_3(sources: Sources, gpu: str = "a100_sxm") -> tuple[dict[str, Any], list[Figure]]:
    """Measured kernels of a GPU under its roofline: ceilings of device memory and of each number format."""
    points = []
    for family in MEASURED:
        rows = sources.measured(family, [gpu], "not_fitted is null")
        rows = rows.filter(pc.greater(rows["flops"], 0.0)) if rows.num_rows else rows
        ordered = rows.take(pc.sort_indices(pc.divide(rows["flops"], rows["bytes"])))
        chosen = np.unique(np.linspace(0, rows.num_rows - 1, POINTS).astype(int)) if rows.num_rows else []
        for row in ordered.take(pa.array(chosen, pa.int64())).to_pylist():
            figures = {"intensity": row["flops"] / row["bytes"], "tflops": row["flops"] / row["latency_us"] / 1e6}
            points.append({"family": family, "math": row["math"]} | {name: rounded(n) for name, n in figures.items()})
    facts_of_gpu = next(row for row in facts("gpus").to_pylist() if row["gpu"] == gpu)
    roofs = roofs_of(facts_of_gpu, [point["intensity"] for point in points])
    spec = {
        "layer": [
            chart(
                {"type": "line", "strokeWidth": 1.5},
                {"filter": "datum.roof"},
                x=amount("intensity", "FLOP / byte", scale=LOG_SCALE),
                y=amount("tflops", "TFLOP/s", scale=LOG_SCALE),
                strokeDash=kind("roof", "roof"),
                color={"value": "#888"},
            ),
            chart(dots(14, opacity=0.6), {"filter": "datum.family"}, x=amount("intensity"), y=amount("tflops"),
                  color=kind("family", scale={"scheme": "tableau20"})),
        ]
    }  # fmt: skip
    title = f"Measured kernels of {gpu} under its roofline"
    ceilings = {"memory_bytes_per_s": facts_of_gpu["memory_bandwidth_bytes_per_s"]}
    ceilings |= {name: facts_of_gpu[column] for name, column in RATES.items() if facts_of_gpu.get(column)}
    return {"gpu": gpu, "ceilings": ceilings, "points": points}, [Figure(title, "", spec=spec, rows=[*roofs, *points])]


def figure_7(sources: Sources) -> tuple[dict[str, Any], list[Figure]]:
    """All-reduce over NVLink and over PCIe: time, and share of the link's rate, by message; measured and model."""
    points, pack = [], default_pack()
    for gpu in (*NVLINK, *PCIE):
        rows = sources.measured("all_reduce", [gpu], "implementation = 'nccl' and dtype = 'fp16'")
        if not rows.num_rows:
            continue
        predicted = packed_latency("all_reduce", gpu, rows.drop_columns(["roofline_us"]), pack)[0]
        largest = max(rows["group_size"].to_pylist()) if gpu in PCIE else 4
        for row, model_us in zip(rows.to_pylist(), predicted.tolist(), strict=True):
            if row["group_size"] == min(largest, 4):
                points.append({
                    "gpu": gpu, "fabric": "PCIe" if gpu in PCIE else "NVLink", "gpus": int(row["group_size"]),
                    "bytes": row["bytes"], "us": rounded(row["latency_us"]), "model_us": rounded(model_us),
                    "efficiency": rounded(row["roofline_us"] / row["latency_us"]),
                    "model_efficiency": rounded(row["roofline_us"] / model_us),
                })  # fmt: skip
    points += both_fabrics()
    size = amount("bytes", "message (bytes)", scale=LOG_SCALE)
    color = {"color": kind("gpu"), "shape": kind("fabric"), "detail": [{"field": "fabric"}]}

    def over(measured: str, model: str, title: str) -> dict[str, Any]:
        y = amount(measured, title, scale=LOG_SCALE)
        lines = chart({"type": "line", "strokeWidth": 1}, x=size, y=amount(model, title, scale=LOG_SCALE), **color)
        return {"layer": [chart(dots(16), {"filter": f"datum.{measured}"}, x=size, y=y, **color), lines]}

    notes = "Points: measured; lines: the shipped model."
    figures = [
        Figure("All-reduce: time", notes, spec=over("us", "model_us", "µs"), rows=points),
        Figure("All-reduce: share of the link's rate", notes,
               spec=over("efficiency", "model_efficiency", "roofline / time"), rows=points),
    ]  # fmt: skip
    return {"points": points}, figures


def both_fabrics(gpu: str = "h100_sxm") -> list[dict[str, Any]]:
    """Return the model's all-reduces of one GPU over NVLink and over PCIe; no sweep measured both on one GPU."""
    sizes = 2.0 ** np.arange(10, 31, 2)
    gpus = facts("gpus").filter(pc.equal(facts("gpus")["gpu"], gpu)).to_pylist()
    points = []
    for fabric in ("NVLink", "PCIe"):
        slow = {"link_fabric": None, "link_bytes_per_s": gpus[0]["pcie_bytes_per_s"]} if fabric == "PCIe" else {}
        table = pa.Table.from_pylist([gpus[0] | slow], facts("gpus").schema)
        words = {"gpu": gpu, "implementation": "nccl", "engine": "nccl", "engine_version": "", "dtype": "fp16"}
        columns = {name: pa.repeat(word, sizes.size) for name, word in words.items()}
        columns |= {"math": pa.nulls(sizes.size, pa.string()), "latency_us": np.ones(sizes.size), "bytes": sizes}
        rows = pa.table(columns | {"group_size": np.full(sizes.size, 4.0), "flops": np.zeros(sizes.size)})
        tables = default_pack(), facts("kernel_implementations"), table, facts("fabrics")
        model_us = predict_family("all_reduce", FAMILIES["all_reduce"].latency_model, rows, *tables, measured=False)
        rate = slow.get("link_bytes_per_s") or gpus[0]["link_bytes_per_s"]
        roofline_us = sizes * FAMILIES["all_reduce"].wire_share(4.0) / rate * 1e6
        points += [
            {"gpu": f"{gpu}, model alone", "fabric": fabric, "gpus": 4, "bytes": size, "model_us": rounded(us),
             "model_efficiency": rounded(least / us)}
            for size, us, least in zip(sizes.tolist(), model_us.tolist(), roofline_us.tolist(), strict=True)
        ]  # fmt: skip
    return points


def figure_10(sources: Sources) -> tuple[dict[str, Any], list[Figure]]:
    """η of each family along its dominant shape on all GPUs, the target in colour, its prediction dashed."""
    chosen, points = {}, []
    for family in MEASURED:
        axis = AXES.get(family, "bytes")
        rows = sources.measured(family, GPUS, "not_fitted is null")
        if not rows.num_rows or TARGET not in rows["gpu"].unique().to_pylist():
            continue
        fixed = dominant(family, pl.from_arrow(rows), axis)
        if len(along(pl.from_arrow(rows), fixed, axis, "latency_us")) < FEWEST * len(rows["gpu"].unique()):
            continue
        chosen[family] = fixed
        with_eta = pl.from_arrow(rows).with_columns(eta=pl.col("latency_us") / pl.col("roofline_us"))
        for row in along(with_eta, fixed, axis, "eta"):
            points.append({"family": family, "axis": axis, **row})
        scored = pl.from_arrow(sources.scored([family])[family])
        scored = scored.with_columns(predicted=pl.col("unmeasured_us") / pl.col("roofline_us"))
        for row in along(scored, fixed, axis, "predicted"):
            points.append({"family": family, "axis": axis, **row})
    return {"fixed": chosen, "points": points}, [
        eta_chart(family, axis_of(points, family), points) for family in chosen
    ]


def axis_of(points: Iterable[Mapping[str, Any]], family: str) -> str:
    """Return the axis of a family in the points of figure 10."""
    return next(point["axis"] for point in points if point["family"] == family)


def dominant(family: str, rows: pl.DataFrame, axis: str) -> dict[str, Any]:
    """Return engine, formats and shape that most GPUs measured at most sizes; of equals BF16, then the median work.

    The rule sees no prediction. Values by column, without ``axis``.
    """
    names = [
        "engine",
        "dtype",
        *(name for name in shape_columns(family) if name not in (axis, "pairs", "visible_pairs")),
    ]
    groups = rows.group_by(names).agg(
        gpus=pl.col("gpu").n_unique(), sizes=pl.struct("gpu", axis).n_unique(), work=pl.col("bytes").sum()
    )
    groups = groups.with_columns(pl.col("dtype").str.contains("^(bf16|fp16)").alias("wide"))
    for name in ("gpus", "wide", "sizes"):
        groups = groups.filter(pl.col(name) == pl.col(name).max())
    groups = groups.sort("work", *names)
    return groups.select(names).row(groups.height // 2, named=True)


def along(rows: pl.DataFrame, fixed: Mapping[str, Any], axis: str, value: str) -> list[dict[str, Any]]:
    """Return the median of a column by GPU and size, of the rows with the fixed values."""
    for name, wanted in fixed.items():
        rows = rows.filter(pl.col(name).eq_missing(pl.lit(wanted)))
    rows = rows.filter(pl.col(value).is_finite())
    medians = rows.group_by("gpu", pl.col(axis).alias("size")).agg(pl.col(value).median()).sort("gpu", "size")
    rows_of_gpu = [own for _, own in medians.group_by("gpu", maintain_order=True)]
    kept = [own[np.unique(np.linspace(0, own.height - 1, SIZES).astype(int)).tolist()] for own in rows_of_gpu]
    return [row | {value: rounded(row[value])} for own in kept for row in own.to_dicts()]


def eta_chart(family: str, axis: str, points: Iterable[Mapping[str, Any]]) -> Figure:
    """Return the chart of one family in figure 10."""
    plain = {"scale": LOG_SCALE, "axis": {"grid": False}}
    x, y = amount("size", axis, **plain), plain
    measured = chart(
        {"type": "line", "point": {"size": 12}, "strokeWidth": 1},
        {"filter": "datum.eta"},
        x=x,
        y=amount("eta", "η = latency / roofline", **y),
        color=BLUE,
        detail=[{"field": "gpu"}],
        tooltip=tips("gpu", size=".4g", eta=".3g"),
    )
    predicted = chart(dashes(color="#2a6fb0"), {"filter": "datum.predicted"}, x=x, y=amount("predicted", **y))
    rows = [row for row in points if row["family"] == family]
    return Figure(family, "", spec={"layer": [measured, predicted]}, rows=rows)


def figure_11(sources: Sources) -> tuple[dict[str, Any], list[Figure]]:
    """η's magnitude and spread over A100, L40S, H100 and H200; the error on GB200 in each region."""
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    rows = []
    for family in MEASURED:
        table = sources.fitted_rows(family, HEADLINE_TRAIN)
        rows += portability_rows(family, table, *tables) if table.num_rows else []
    with connect() as session:
        session.give("eta_coefficients", pack_table(rows))
        portability = session.table("eta_portability").to_pylist()
    regions = {(row["family"], row["implementation"]): row["region"] for row in portability}
    errors = errors_by_region(sources.scored(), regions)
    for row in portability:
        row |= {name: rounded(row[name]) for name in ("geometric_mean", "spread") if row[name] is not None}
    families = [row | {"shown": row["spread"] or 1.0} for row in portability if row["implementation"] is None]
    x = amount("geometric_mean", "η, geometric mean over GPUs (1: the roofline is exact)", scale=LOG_SCALE)
    y = amount("shown", "η, largest / smallest GPU (1: it carries over)", scale=LOG_SCALE)
    danger = {"data": {"values": [{"x": 2, "x2": 200, "y": 2, "y2": 12}]}}
    danger |= chart({"type": "rect", "opacity": 0.12, "color": "#e07b39"}, x=amount("x"), y=amount("y"))
    danger["encoding"] |= {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    names = chart({"type": "text", "dx": 6, "align": "left", "fontSize": 9}, x=x, y=y, text={"field": "family"})
    spec = {"layer": [danger, chart(dots(60), x=x, y=y, color=kind("region")), names]}
    figure = Figure("Magnitude and spread of η over A100, L40S, H100 and H200", "", spec=spec, rows=families)
    return {"portability": portability, "errors": errors}, [figure]


def errors_by_region(
    scored: Mapping[str, pa.Table], regions: Mapping[tuple[str, str | None], str]
) -> list[dict[str, Any]]:
    """Return the errors on the target, nothing known of it, by region of the kernel that it ran; pooled over rows."""
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for family, table in scored.items():
        table = table.filter(pc.and_(table["serving"], table["covered"]))
        kernels = table["implementation"].to_pylist()
        region = np.array([regions.get((family, kernel)) or regions.get((family, None)) or "" for kernel in kernels])
        for name in {*region.tolist()} - {""}:
            own = table.filter(pa.array(region == name))
            parts.setdefault(name, []).append((own["latency_us"].to_numpy(), own["unmeasured_us"].to_numpy()))
    return [
        {"region": name, **score(*(np.concatenate(columns) for columns in zip(*pairs, strict=True)))}
        for name, pairs in sorted(parts.items())
    ]


def rounded(value: float, digits: int = 4) -> float:
    """Return a number with some digits, for files.

    >>> rounded(123456.0), rounded(0.00123456)
    (123500.0, 0.001235)
    """
    return float(f"{value:.{digits}g}")
