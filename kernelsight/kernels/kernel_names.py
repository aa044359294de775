"""Kernel families by kernel names, from the patterns in ``kernel_name_patterns``: for logs, fits and searches."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kernelsight.catalog.tables import facts

if TYPE_CHECKING:
    import polars as pl


def family_column(names: str) -> pl.Expr:
    """Return the family of the kernel names in a column, of the first pattern that matches; null: of none."""
    import polars as pl

    family = pl.lit(None, pl.String)
    for row in reversed(facts("kernel_name_patterns").to_pylist()):
        fits = pl.col(names).str.contains(f"(?i){row['pattern']}")
        family = pl.when(fits).then(pl.lit(row["family"])).otherwise(family)
    return family.alias("family")


@cache
def family_of(name: str) -> str | None:
    """Return the kernel family of a name, or None."""
    import polars as pl

    return pl.DataFrame({"name": [name]}).select(family_column("name")).item()
