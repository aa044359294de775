"""``calibrate import``: measured sweeps into one Parquet of ``sweep_points``; rows kept, or rejected by reason."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.catalog.tables import contracts, facts
from kernelsight.errors import InvalidInput, RunFailed, unknown
from kernelsight.read.sweeps.bounds import impossible
from kernelsight.read.sweeps.names import with_implementation
from kernelsight.read.sweeps.points import Batch, first_reason, merged, to_contract
from kernelsight.read.sweeps.sources import READERS
from kernelsight.report.output import check_ending, note, print_rows

SUMMARY = ("family", "gpu", "read", "kept", "points", "rejected", "reason")
NO_FAMILY = "(no family)"
ROW_GROUP = 131072
# sizes that may be zero: tokens before a call, a window that is off, a kernel that multiplies nothing
MAY_BE_ZERO = {"cached_tokens", "context", "window", "width"}


def run(arguments: argparse.Namespace) -> int:
    """Import one source: write the sweep, print what was read, kept and rejected."""
    if arguments.source not in READERS:
        raise unknown("source of sweeps", arguments.source, READERS, f"Known: {', '.join(READERS)}.")
    target = check_ending(arguments.output, (".parquet",))
    path = Path(arguments.path) if arguments.path else None
    if path is not None and not path.exists():
        raise InvalidInput(f"PATH {str(path)!r} does not exist.")
    batches = READERS[arguments.source](path, _names(arguments.gpus), _names(arguments.families))
    rows, unlisted = import_sweep(batches, target)
    print_rows(rows, list(SUMMARY), arguments.format)
    read, kept, points = (sum(row[name] or 0 for row in rows) for name in ("read", "kept", "points"))
    place = f"; written to {target}" if target else ""
    note(f"{read:,} rows read, {kept:,} kept as {points:,} points, {read - kept:,} rejected{place}")
    if unlisted:
        note(f"kernels that kernel_sources does not list keep their own name: {', '.join(sorted(unlisted))}")
    return 0


def import_sweep(batches: Iterable[Batch], target: Path | None) -> tuple[list[dict[str, Any]], set[str]]:
    """Judge, name and merge batches, a batch at a time, into ``target`` (whole or not at all; None only counts).

    Returns the rows of ``SUMMARY``, one for each batch and reason (what was read and kept on the first alone), and the
    kernel names without a fact.
    """
    gpus = {row["gpu"]: row for row in facts("gpus").to_pylist()}
    summary: list[dict[str, Any]] = []
    unlisted: set[str] = set()
    with _writer(target) as write:
        for batch in batches:
            dropped, kept, points = Counter(batch.dropped), 0.0, 0
            if batch.family:
                if batch.gpu not in gpus:
                    raise unknown("GPU", batch.gpu, gpus, "A sweep may only name GPUs of the catalogue.")
                rows, names = _judged(batch, gpus[batch.gpu])
                unlisted.update(names)
                counts = rows.group_by("reason").agg(pl.col("weight").sum()).iter_rows()
                dropped.update({reason: weight for reason, weight in counts if reason})
                sound = rows.filter(pl.col("reason").is_null())
                kept = sound["weight"].sum()
                table = to_contract(merged(sound), batch.gpu, batch.family)
                points = table.num_rows
                write(table)
            if kept or dropped:
                summary += _counted(batch, dropped, kept, points)
    return summary, unlisted


@contextmanager
def _writer(target: Path | None) -> Iterator[Callable[[pa.Table], None]]:
    """Give a function that appends a table to ``target``, which appears when the block ends without a fault."""
    if target is None:
        yield lambda table: None
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    schema = contracts()["sweep_points"].schema.remove_metadata()
    try:
        with pq.ParquetWriter(draft, schema, compression="zstd", compression_level=6) as writer:
            yield lambda table: writer.write_table(table.cast(schema), row_group_size=ROW_GROUP)
        os.replace(draft, target)
    except OSError as error:
        raise RunFailed(f"{target} could not be written: {error.strerror or str(error).splitlines()[0]}.") from None
    finally:
        draft.unlink(missing_ok=True)


def _judged(batch: Batch, gpu: dict[str, Any]) -> tuple[pl.DataFrame, list[str]]:
    rows, unlisted = batch.rows, []
    if "implementation" not in rows.columns:
        rows, unlisted = with_implementation(rows, batch.family, gpu["compute_capability"])
    shape = contracts()["sweep_points"].schema.field("shape").type
    sizes = [field.name for field in shape if field.name in rows.columns]
    empty = [pl.col(name) < (0 if name in MAY_BE_ZERO else 1) for name in sizes]
    latency = pl.col("latency_us")
    checks = [
        ("empty_shape", pl.any_horizontal(pl.lit(False), *empty)),  # a launch has no size
        ("no_latency", latency.is_null() | ~latency.is_finite() | (latency <= 0)),
        *impossible(batch.family, rows, gpu),
    ]
    return first_reason(rows, *checks), unlisted


def _counted(batch: Batch, dropped: Counter[str], kept: float, points: int) -> list[dict[str, Any]]:
    lines = [(round(count), reason) for reason, count in sorted(dropped.items())] or [(0, None)]
    read = round(kept + sum(dropped.values()))
    first = {"family": batch.family or NO_FAMILY, "gpu": batch.gpu, "read": read, "kept": round(kept), "points": points}
    rest = {"family": first["family"], "gpu": batch.gpu, "read": None, "kept": None, "points": None}
    return [
        {**(first if place == 0 else rest), "rejected": count, "reason": reason}
        for place, (count, reason) in enumerate(lines)
    ]


def _names(stated: str | None) -> frozenset[str] | None:
    return None if stated is None else frozenset(name.strip() for name in stated.split(",") if name.strip())
