"""Maps a sweep's kernel names to implementations (library kernels) by the table ``kernel_sources``."""

from __future__ import annotations

import re
from functools import cache

import polars as pl

from kernelsight.catalog.tables import facts

MATCHED = ("engine", "kernel_source", "compute_capability", "dtype", "engine_version")
ANY = "*"


def with_implementation(
    rows: pl.DataFrame, family: str, compute_capability: str | None
) -> tuple[pl.DataFrame, list[str]]:
    """Add the column ``implementation`` and correct ``math``; also return the names that ``kernel_sources`` lacks.

    An unlisted name is its own implementation: lower case, with underscores.
    """
    labels = ["engine", "kernel_source", "dtype", "engine_version"]
    unlisted, resolved = [], []
    for engine, kernel_source, dtype, version in rows.select(labels).unique().sort(labels).iter_rows():
        fact = _fact(family, (engine, kernel_source, compute_capability or "-", dtype, version))
        if fact is None:
            unlisted.append(f"{engine} {family} {kernel_source}")
        implementation = fact["implementation"] if fact else plain_name(kernel_source)
        resolved.append((engine, kernel_source, dtype, version, implementation, fact and fact["math"]))
    types = dict.fromkeys([*labels, "implementation", "ran"], pl.String)
    names = pl.DataFrame(resolved, schema=types, orient="row")
    joined = rows.join(names, on=labels, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.coalesce("ran", "math").alias("math")).drop("ran", "kernel_source"), unlisted


def plain_name(kernel_source: str) -> str:
    """Normalise a kernel name to lower-case words joined by underscores.

    >>> plain_name("vllm.utils.deep_gemm.fp8_mqa")
    'vllm_utils_deep_gemm_fp8_mqa'
    """
    return re.sub(r"[^a-z0-9]+", "_", kernel_source.lower()).strip("_")


def _fact(family: str, wanted: tuple[str, ...]) -> dict[str, str | None] | None:
    """Return the most specific matching row: one that sets an earlier column of MATCHED precedes one that does not."""
    matching = [
        row
        for row in _facts(family)
        if all(row[name] in (ANY, value) for name, value in zip(MATCHED, wanted, strict=True))
    ]
    return min(matching, key=lambda row: [row[name] == ANY for name in MATCHED], default=None)


@cache
def _facts(family: str) -> list[dict[str, str | None]]:
    return [row for row in facts("kernel_sources").to_pylist() if row["family"] == family]
