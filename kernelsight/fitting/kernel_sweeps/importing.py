"""Imports measured sweeps into one table ``sweep_points``: rows are checked, named and merged, batch by batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file
from kernelsight.catalog.tables import contracts, facts
from kernelsight.errors import InvalidInput, unknown
from kernelsight.fitting.kernel_sweeps.bounds import impossible
from kernelsight.fitting.kernel_sweeps.points import Batch, first_reason, merged, to_contract

MATCHED = ("engine", "kernel_source", "compute_capability", "dtype", "engine_version")
ANY = "*"

SUMMARY = ("family", "gpu", "read", "kept", "points", "rejected", "reason")
NO_FAMILY = "(no family)"
ROW_GROUP = 131072
# sizes that may be zero: cached tokens, a disabled window, a kernel without a matrix product
MAY_BE_ZERO = {"cached_tokens", "context", "window", "width"}


class Imported(NamedTuple):
    """The summary of an import.

    ``rows``: of the columns ``SUMMARY``, one per batch and reason (rows read and kept only on the first); ``unlisted``:
    kernel names that kernel_sources does not list; ``unread``: columns of the files that no reader knows.
    """

    rows: list[dict[str, Any]]
    unlisted: set[str]
    unread: set[str]


def import_sweep(batches: Iterable[Batch], target: Path | None, refuse_empty: bool = False) -> Imported:
    """Check, name and merge batches into the Parquet file ``target``, written atomically (None: only count).

    InvalidInput, with ``refuse_empty``: every row is rejected.
    """
    with _writer(target) as write:
        imported = _import(batches, write)
        if refuse_empty and imported.rows and not any(row["kept"] for row in imported.rows):
            reasons = ", ".join(f"{row['rejected']:,} of {row['family']} {row['reason']}" for row in imported.rows)
            raise InvalidInput(f"all rows are rejected ({reasons}); nothing is written.")
        return imported


def imported_points(batches: Iterable[Batch]) -> pa.Table:
    """Return batches as a table ``sweep_points``: checked, named and merged."""
    schema = contracts()["sweep_points"].schema.remove_metadata()
    tables = [schema.empty_table()]
    _import(batches, lambda table: tables.append(table.cast(schema)))
    return pa.concat_tables(tables)


def _import(batches: Iterable[Batch], write: Callable[[pa.Table], None]) -> Imported:
    gpus = {row["gpu"]: row for row in facts("gpus").to_pylist()}
    summary: list[dict[str, Any]] = []
    unlisted: set[str] = set()
    unread: set[str] = set()
    for batch in batches:
        dropped, kept, points = Counter(batch.dropped), 0.0, 0
        unread.update(batch.unread)
        if batch.family:
            if batch.gpu not in gpus:
                raise unknown("GPU", batch.gpu, gpus, "The GPUs of a sweep must be in the catalogue.")
            rows, names = checked(batch, gpus[batch.gpu])
            unlisted.update(names)
            counts = rows.group_by("reason").agg(pl.col("weight").sum()).iter_rows()
            dropped.update({reason: weight for reason, weight in counts if reason})
            valid = rows.filter(pl.col("reason").is_null())
            kept = valid["weight"].sum()
            table = to_contract(merged(valid), batch.gpu, batch.family)
            points = table.num_rows
            write(table)
        if kept or dropped:
            summary += _summary_rows(batch, dropped, kept, points)
    return Imported(summary, unlisted, unread)


@contextmanager
def _writer(target: Path | None) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends a table to ``target``, which is created when the block ends without an error."""
    if target is None:
        yield lambda table: None
        return
    schema = contracts()["sweep_points"].schema.remove_metadata()
    with (
        durable_file(target) as draft,
        pq.ParquetWriter(draft, schema, compression="zstd", compression_level=6) as writer,
    ):
        yield lambda table: writer.write_table(table.cast(schema), row_group_size=ROW_GROUP)


def checked(batch: Batch, gpu: dict[str, Any]) -> tuple[pl.DataFrame, list[str]]:
    """Return a batch's rows with implementations and with reasons to reject some, and the unlisted kernel names."""
    rows, unlisted = batch.rows, []
    if "implementation" not in rows.columns:
        rows, unlisted = with_implementation(rows, batch.family, gpu["compute_capability"])
    shape = contracts()["sweep_points"].schema.field("shape").type
    sizes = [field.name for field in shape if field.name in rows.columns]
    is_empty = [pl.col(name) < (0 if name in MAY_BE_ZERO else 1) for name in sizes]
    checks = [("empty_shape", pl.any_horizontal(pl.lit(False), *is_empty))]  # a size of the launch is 0
    if "latency_us" in rows.columns:
        latency = pl.col("latency_us")
        checks.append(("no_latency", latency.is_null() | ~latency.is_finite() | (latency <= 0)))
        checks += impossible(batch.family, rows, gpu)
    return first_reason(rows, *checks), unlisted


def _summary_rows(batch: Batch, dropped: Counter[str], kept: float, points: int) -> list[dict[str, Any]]:
    """Return the rows of SUMMARY of a batch: one per reason, or one without a reason."""
    lines = [(round(count), reason) for reason, count in sorted(dropped.items())] or [(0, None)]
    read = round(kept + sum(dropped.values()))
    first = {"family": batch.family or NO_FAMILY, "gpu": batch.gpu, "read": read, "kept": round(kept), "points": points}
    rest = {"family": first["family"], "gpu": batch.gpu, "read": None, "kept": None, "points": None}
    return [
        {**(first if number == 0 else rest), "rejected": count, "reason": reason}
        for number, (count, reason) in enumerate(lines)
    ]


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
