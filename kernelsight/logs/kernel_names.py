"""Families of kernels by the names that profilers give them."""

from __future__ import annotations

import polars as pl

from kernelsight.catalog.tables import facts
from kernelsight.logs.found import Faults


def with_families(kernels: pl.DataFrame, faults: Faults, names: str = "name") -> pl.DataFrame:
    """Return kernels with the column family: of the first pattern of ``kernel_name_patterns`` that their names fit.

    >>> frame = pl.DataFrame({"name": ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "my_kernel"]})
    >>> with_families(frame, Faults())["family"].to_list()
    ['all_reduce', None]
    """
    patterns = facts("kernel_name_patterns")
    assert patterns is not None
    family = pl.lit(None, pl.String)
    for row in reversed(patterns.to_pylist()):
        family = (
            pl.when(pl.col(names).str.contains(f"(?i){row['pattern']}")).then(pl.lit(row["family"])).otherwise(family)
        )
    made = kernels.with_columns(family.alias("family"))
    unknown = made.filter(pl.col("family").is_null())
    faults.add("no_family", unknown.height, unknown["name"].first() if unknown.height else None)
    return made
