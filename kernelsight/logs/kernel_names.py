"""Kernel families by kernel names in profiles, from the patterns in ``kernel_name_patterns``."""

from __future__ import annotations

import polars as pl

from kernelsight.catalog.tables import facts
from kernelsight.files.row_faults import Faults

MOST = 1e15  # largest plausible time in us (30 years) and number of calls


def family_of(name: str) -> str | None:
    """Return the kernel family of a name, or None.

    >>> family_of("fused_moe_kernel"), family_of("mm(4096x4096, 4096x4096)"), family_of("conv")
    ('moe', 'gemm', None)
    """
    return with_families(pl.DataFrame({"name": [name]}), Faults())["family"].item()


def with_families(kernels: pl.DataFrame, faults: Faults, names: str = "name") -> pl.DataFrame:
    """Return kernels with the column ``family``: of the first row of ``kernel_name_patterns`` that matches their name.

    ``names``: the column with names. Kernels whose rank, calls or time is negative or above MOST are dropped, and
    counted in ``faults`` as impossible_kernel; those without a family as no_family.

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
    times = [pl.col(name).cast(pl.Float64) for name in ("total_us", "span_us") if name in kernels.columns]
    counts = [pl.col(name).cast(pl.Float64) for name in ("rank", "calls") if name in kernels.columns]
    is_possible = pl.all_horizontal(
        pl.lit(True), *(value.fill_null(0.0).is_between(0.0, MOST) for value in (*times, *counts))
    )
    impossible = kernels.filter(~is_possible)
    faults.add("impossible_kernel", impossible.height, impossible["name"].first() if impossible.height else None)
    possible = kernels.filter(is_possible).with_columns(family.alias("family"))
    unknown = possible.filter(pl.col("family").is_null())
    faults.add("no_family", unknown.height, unknown["name"].first() if unknown.height else None)
    return possible
