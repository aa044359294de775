"""Batches of measurements during an import into ``sweep_points``: of one family on one GPU, with rejection reasons.

A reader yields batches. ``reason`` is null for a valid row, else the first reason to reject it. ``weight`` is the share
of a file's row that a measurement represents, so that rows read = rows kept + rows rejected even if one row of a file
has two measurements.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import open_file, unpacked_file

# columns that only `calibrate measure` writes: a published sweep may lack them
MEASURED_HERE = (
    *("working_set_bytes", "relative_error", "outliers", "gap_us", "memory_clock_hz", "temperature_c", "limits"),
    *("repeated", "driver", "versions", "power_w", "worked_s"),
)
SHAPE = tuple(field.name for field in contracts()["sweep_points"].schema.field("shape").type)
LABELS = ("engine", "engine_version", "kernel_source", "dtype", "format", "math", "distribution")
LATENCY_DECIMALS = 6  # a picosecond: below any clock's resolution, above the rounding of unit conversions


class Batch(NamedTuple):
    """Measurements of one family on one GPU.

    ``rows``: columns ``LABELS``, the family's fields of ``SHAPE``, latency_us, source, weight, reason. A table of no
    kernel family has family "" and no rows, only ``dropped`` counts by reason. ``unread``: names of columns that the
    reader does not know.
    """

    gpu: str
    family: str
    rows: pl.DataFrame
    dropped: dict[str, int]
    unread: tuple[str, ...] = ()


# (PATH or None, for some sources several; GPUs or None for all; families or None for all) -> batches by family and GPU
Reader = Callable[[Path | Sequence[Path] | None, frozenset[str] | None, frozenset[str] | None], Iterator[Batch]]


def first_reason(rows: pl.DataFrame, *checks: tuple[str, pl.Expr]) -> pl.DataFrame:
    """Set the reason of rows without one: of the first of ``checks`` (reason, true if bad) that fails; null passes."""
    verdicts = [pl.when(bad.fill_null(False)).then(pl.lit(reason)) for reason, bad in checks]
    return rows.with_columns(pl.coalesce("reason", *verdicts).alias("reason"))


def merged(rows: pl.DataFrame) -> pl.DataFrame:
    """Merge rows of the same key: median latency, count, and standard deviation / mean (null for a single row).

    Points with their own ``samples`` and ``cv`` keep them. Rows are ordered by key, so that equal input gives equal
    bytes.
    """
    labels = [
        name
        for name in rows.columns
        if name in {"implementation", "not_fitted", "working_set_bytes", "worked_s", *LABELS}
    ]
    key = [*labels, *(name for name in SHAPE if name in rows.columns)]
    ordered = rows.sort([*key, "latency_us", "source"], nulls_last=True)
    latency = pl.col("latency_us")
    spread = (latency.std() / latency.mean()).round(LATENCY_DECIMALS)
    columns = {name for name in ("samples", "cv", "sm_clock_hz") if name in rows.columns}
    return ordered.group_by(key, maintain_order=True).agg(
        latency.median().round(LATENCY_DECIMALS),
        (pl.col("samples").sum() if "samples" in columns else pl.len().cast(pl.Int64)).alias("samples"),
        (pl.coalesce(spread, pl.col("cv").first()) if "cv" in columns else spread).alias("cv"),
        *([pl.col("sm_clock_hz").median()] if "sm_clock_hz" in columns else []),
        *(pl.col(name).first() for name in MEASURED_HERE if name in rows.columns and name not in key),
        pl.col("source").first(),
    )


def to_contract(rows: pl.DataFrame, gpu: str, family: str) -> pa.Table:
    """Convert merged rows to an Arrow table with the columns and types of ``sweep_points``."""
    schema = contracts()["sweep_points"].schema
    fields = [pl.col(name) if name in rows.columns else pl.lit(None, pl.Int64).alias(name) for name in SHAPE]
    keyed_rows = rows.with_columns(
        pl.lit(gpu).alias("gpu"), pl.lit(family).alias("family"), pl.struct(fields).alias("shape")
    )
    missing = [pl.lit(None).alias(field.name) for field in schema if field.name not in keyed_rows.columns]
    return keyed_rows.with_columns(missing).select(schema.names).to_arrow().cast(schema)


def joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Concatenate batches of the same (family, GPU) and yield them in that order; those without a family come last."""
    rows: dict[tuple[str, str], list[pl.DataFrame]] = {}
    dropped: dict[tuple[str, str], Counter[str]] = {}
    for batch in batches:
        if batch.rows.height:
            rows.setdefault((batch.family, batch.gpu), []).append(batch.rows)
        dropped.setdefault((batch.family, batch.gpu), Counter()).update(batch.dropped)
    for family, gpu in sorted(dropped, key=lambda key: (key[0] == "", key)):
        frames = rows.get((family, gpu), [])
        table = pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()
        if frames or dropped[family, gpu]:
            yield Batch(gpu, family if frames else "", table, dict(dropped[family, gpu]))


def reader(publisher: str, source: str, place: str, batches: Callable[[Path], Iterable[Batch]]) -> Reader:
    """Return the reader of a publisher whose sweeps are CSV files below a folder; ``batches``: reads one file.

    For errors, ``source`` is the publisher's name in `calibrate import`, and ``place`` describes its PATH.
    """

    def read(path: Path | None, gpus: frozenset[str] | None, families: frozenset[str] | None) -> Iterator[Batch]:
        """Yield the measurements of every CSV file at or below ``path``, by family and GPU."""
        if path is None:
            raise InvalidInput(f"{source} needs PATH: {place}.")
        yield from joined(
            batch
            for file in csv_files(path, "*.csv", publisher)
            for batch in batches(file)
            if (gpus is None or batch.gpu in gpus) and (families is None or batch.family in families)
        )

    return read


def without_family(gpu: str, reason: str, count: int) -> Batch:
    """Return a batch that counts ``count`` rows of no kernel family."""
    return Batch(gpu, "", pl.DataFrame(), {reason: count} if count else {})


def measured(
    rows: pl.DataFrame,
    shape: Mapping[str, pl.Expr],
    labels: Mapping[str, str | pl.Expr],
    latency_us: pl.Expr,
) -> pl.DataFrame:
    """Convert the rows of a file to flat measurements by expressions over them; missing labels are null."""
    label_columns = {name: pl.lit(value) if isinstance(value, str) else value for name, value in labels.items()}
    missing = {name: pl.lit(None, pl.String) for name in LABELS if name not in label_columns}
    return rows.select(
        *(value.cast(pl.String).alias(name) for name, value in (label_columns | missing).items()),
        *(value.cast(pl.Int64).alias(name) for name, value in shape.items()),
        latency_us.cast(pl.Float64).alias("latency_us"),
        pl.lit(1.0).alias("weight"),
        pl.lit(None, pl.String).alias("reason"),
    )


def csv_files(root: Path, name: str, publisher: str) -> list[Path]:
    """Return the CSV files ``name`` (a pattern) at or below ``root``, sorted; InvalidInput if there are none."""
    files = [root] if root.is_file() else sorted(root.rglob(name))
    if not files:
        raise InvalidInput(f"{root} has no sweep of {publisher}: no file matches {name} in it or below.")
    return files


def read_csv(file: Path, needed: Iterable[str], publisher: str) -> pl.DataFrame:
    """Read a CSV with a header; InvalidInput lists all missing columns of ``needed``."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{file} {problem}; give a sweep of {publisher}.")

    try:
        with open_file(file, refuse) as content:
            is_gzip = content.read(2) == b"\x1f\x8b"
        for _ in unpacked_file(file, refuse) if is_gzip else ():
            pass  # checks the limit of its size: polars unpacks without one
        rows = pl.read_csv(file, infer_schema_length=None, glob=False)
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        raise refuse(f"cannot be read as CSV ({str(error).splitlines()[0]})") from None
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise InvalidInput(f"{file} is not a sweep of {publisher}: missing columns {', '.join(missing)}.")
    return rows
