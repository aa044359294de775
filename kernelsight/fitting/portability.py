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

KERNEL = ["implementation", "lineage"]


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
    lineages = [leaf["lineage"] for leaf in rows.leaves]
    measured = pl.from_arrow(table.select(["gpu", "implementation", *shape])).with_columns(
        pl.Series("lineage", np.array(lineages, dtype=object)[rows.leaf_of_row].tolist(), pl.String),
        pl.Series("log_eta", np.log(rows.latency_us / roofline_us)),
        pl.col("gpu")
        .replace_strict({gpu: generation_of(gpu) for gpu in table["gpu"].unique().to_pylist()})
        .alias("chip"),
    )
    made = []
    for level, kernel in (("family", []), ("implementation", KERNEL)):
        by_gpu = measured.group_by([*kernel, *shape, "gpu", "chip"]).agg(pl.col("log_eta").median())
        log_eta = pl.col("log_eta")
        by_shape = by_gpu.group_by([*kernel, *shape]).agg(
            log_eta.mean().alias("mean"), (log_eta.max() - log_eta.min()).alias("range"), pl.col("chip").n_unique()
        )
        several = pl.col("range").filter(pl.col("chip") > 1)
        means = {"geometric_mean": pl.col("mean").mean().exp(), "spread": several.median().exp()}
        # the same number for every order of the rows
        figures = by_shape.sort(by_shape.columns).with_columns(pl.lit(family).alias("family"))
        for row in figures.group_by(["family", *kernel]).agg(**means).sort(kernel or "family").to_dicts():
            made += [
                {
                    **{name: row[name] for name in ("family", *kernel)},
                    **{
                        "part": "portability",
                        "level": level,
                        "coefficient": name,
                        "value": float(np.float32(row[name])),
                    },
                    **{"unit": "1", "source": f"measured on {', '.join(sorted(set(table['gpu'].to_pylist())))}"},
                }
                for name in means
                if row[name] is not None
            ]
    return made
