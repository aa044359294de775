"""Imports measured sweeps into one table ``sweep_points``: rows are checked, named and merged, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file
from kernelsight.catalog.tables import contracts, facts
from kernelsight.errors import unknown
from kernelsight.fitting.kernel_sweeps.bounds import impossible
from kernelsight.fitting.kernel_sweeps.names import with_implementation
from kernelsight.fitting.kernel_sweeps.points import Batch, first_reason, merged, to_contract

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


def import_sweep(batches: Iterable[Batch], target: Path | None) -> Imported:
    """Check, name and merge batches into the Parquet file ``target``, written atomically (None: only count)."""
    with _writer(target) as write:
        return _import(batches, write)


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
            rows, names = _checked(batch, gpus[batch.gpu])
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


def _checked(batch: Batch, gpu: dict[str, Any]) -> tuple[pl.DataFrame, list[str]]:
    """Return a batch's rows with implementations and with reasons to reject some, and the unlisted kernel names."""
    rows, unlisted = batch.rows, []
    if "implementation" not in rows.columns:
        rows, unlisted = with_implementation(rows, batch.family, gpu["compute_capability"])
    shape = contracts()["sweep_points"].schema.field("shape").type
    sizes = [field.name for field in shape if field.name in rows.columns]
    is_empty = [pl.col(name) < (0 if name in MAY_BE_ZERO else 1) for name in sizes]
    latency = pl.col("latency_us")
    checks = [
        ("empty_shape", pl.any_horizontal(pl.lit(False), *is_empty)),  # a size of the launch is 0
        ("no_latency", latency.is_null() | ~latency.is_finite() | (latency <= 0)),
        *impossible(batch.family, rows, gpu),
    ]
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
