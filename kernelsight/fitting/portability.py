"""How η of each kernel varies between the measured GPUs: whether it carries over from one to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.fitting.cells import generation_of, is_serving
from kernelsight.fitting.expressions import read_rows
from kernelsight.fitting.splits import shape_columns
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.latency import roofline_and_bound


def portability_rows(family: str, table: pa.Table, *tables: pa.Table) -> list[dict[str, Any]]:
    """Return ``eta_coefficients`` rows of part portability: of each kernel, and of all kernels of a family.

    geometric_mean: of η = measured latency / roofline over serving shapes and GPUs. spread: the median over shapes of
    the largest η of a GPU / the smallest, where GPUs of two generations measured a shape; without it, no row.
    ``table``: training rows; ``tables``: kernel_implementations, gpus, fabrics.
    """
    table = table.filter(pa.array(is_serving(family, table)))
    rows = read_rows(FAMILIES[family].latency_model, table, family_facts(family, *tables[:2]), *tables[1:])
    roofline_us, _ = roofline_and_bound(np, FAMILIES[family].wire_share, rows.call, rows.gpu)
    shape = ["dtype", "distribution", *shape_columns(family)]
    gpus = sorted(table["gpu"].unique().to_pylist())
    lineages = np.array([leaf["lineage"] for leaf in rows.leaves], dtype=object)
    log_eta = pl.col("log_eta")
    measured = pl.from_arrow(table.select(["gpu", "implementation", *shape])).with_columns(
        pl.Series("lineage", lineages[rows.leaf_of_row].tolist(), pl.String),
        pl.Series("log_eta", np.log(rows.latency_us / roofline_us)),
        pl.col("gpu").replace_strict({gpu: generation_of(gpu) for gpu in gpus}).alias("chip"),
    )
    made = []
    for level, kernel in (("family", []), ("implementation", ["implementation", "lineage"])):
        by_gpu = measured.group_by([*kernel, *shape, "gpu", "chip"]).agg(log_eta.median())
        ranges = (log_eta.max() - log_eta.min()).alias("range")
        by_shape = by_gpu.group_by([*kernel, *shape]).agg(log_eta.mean(), ranges, pl.col("chip").n_unique())
        several = pl.col("range").filter(pl.col("chip") > 1)
        # the same number for every order of the rows
        ordered = by_shape.sort(by_shape.columns).with_columns(pl.lit(family).alias("family"))
        groups = ordered.group_by(["family", *kernel]).agg(
            geometric_mean=log_eta.mean().exp(), spread=several.median().exp()
        )
        common = {"part": "portability", "level": level, "unit": "1", "source": f"measured on {', '.join(gpus)}"}
        for row in groups.sort(kernel or "family").to_dicts():
            names = {name: row[name] for name in ("family", *kernel)}
            figures = {name: row[name] for name in ("geometric_mean", "spread") if row[name] is not None}
            made += [
                {**names, **common, "coefficient": name, "value": float(np.float32(value))}
                for name, value in figures.items()
            ]
    return made
