"""Reader of sweeps that already have the columns of ``sweep_points``: your own measurements, or an earlier import."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa

from kernelsight.catalog.gpu_names import plain_gpus
from kernelsight.catalog.tables import contracts, facts
from kernelsight.dataflow.contract import check_values
from kernelsight.errors import InvalidInput, breaks_contract
from kernelsight.files.bounded_files import check_file
from kernelsight.files.parquet_files import check_parquet, read_parquet, read_schema, unreadable
from kernelsight.fitting.kernel_sweeps.devices import NOT_IN_CATALOGUE
from kernelsight.fitting.kernel_sweeps.points import MEASURED_HERE, Batch, without_family

MAY_LACK = ("cv", "sm_clock_hz", "not_fitted", *MEASURED_HERE)


def read(path: Path | None, gpus: frozenset[str] | None, families: frozenset[str] | None) -> Iterator[Batch]:
    """Yield the points of a Parquet file, by family and GPU. ContractBroken: its columns or values are invalid."""
    if path is None:
        raise InvalidInput("parquet needs PATH: a Parquet file with the columns of sweep_points.")
    columns = _check(path)
    catalogue_gpus = set(facts("gpus")["gpu"].to_pylist())
    points = pl.scan_parquet(path, glob=False).with_columns(
        # a column without any value may have the null type
        pl.col(field.name).cast(pl.String)
        for field in contracts()["sweep_points"].schema
        if pa.types.is_string(field.type) and field.name in columns
    )
    _check_nulls(path, points)
    check_figures(path, columns)
    counts = _collected(path, points.group_by("family", "gpu").len().sort("family", "gpu"))
    for family, name, count in counts.iter_rows():
        (gpu,) = plain_gpus([name]) or (name,)
        if (gpus is None or gpu in gpus) and (families is None or family in families):
            if gpu in catalogue_gpus:
                rows = _collected(path, points.filter((pl.col("family") == family) & (pl.col("gpu") == name)))
                yield Batch(gpu, family, _flat(rows), {})
            else:
                yield without_family(gpu, NOT_IN_CATALOGUE, count)


def _check(path: Path) -> set[str]:
    """Return the columns of the file; ContractBroken where they are not those of sweep_points."""
    contract = contracts()["sweep_points"]
    refuse = partial(_refused, path)
    check_parquet(path, check_file(path, refuse), refuse)
    schema = read_schema(path, refuse)
    needed = [name for name in contract.column_names if name not in MAY_LACK]
    faults = [f"missing column {name}" for name in needed if name not in schema.names]
    faults += [f"unknown column {name}" for name in schema.names if name not in contract.column_names]
    for name in contract.column_names:
        if name not in schema.names:
            continue
        column, column_type = contract.schema.field(name), schema.field(name).type
        if not (_same_kind(column.type, column_type) or (column.nullable and pa.types.is_null(column_type))):
            expected = "a struct of sizes" if pa.types.is_struct(column.type) else column.type
            faults.append(f"column {name} is {column_type}, not {expected}")
    if faults:
        raise breaks_contract("sweep_points", faults, str(path))
    return set(schema.names)


def _refused(path: Path, problem: str) -> InvalidInput:
    return InvalidInput(f"{path} {problem}; give a Parquet file with the columns of sweep_points.")


def _collected(path: Path, points: pl.LazyFrame) -> pl.DataFrame:
    try:
        return points.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _refused(path, unreadable(error)) from None


def _check_nulls(path: Path, points: pl.LazyFrame) -> None:
    """Raise ContractBroken for nulls in required columns."""
    contract = contracts()["sweep_points"]
    required = [column.name for column in contract.columns if not column.nullable and column.name not in MAY_LACK]
    nulls = _collected(path, points.select(pl.col(required).null_count())).row(0, named=True)
    faults = [f"column {name} has {count} rows without a value" for name, count in nulls.items() if count]
    if faults:
        raise breaks_contract("sweep_points", faults, str(path))


def check_figures(path: Path, file_columns: Collection[str]) -> None:
    """Raise ContractBroken for numbers of a file that fail the contract's checks, with the first row of each.

    ``file_columns``: columns of the file. Latencies are not checked: an import counts those that it rejects.
    """
    contract = contracts()["sweep_points"]
    columns = [column for column in contract.columns if column.name in file_columns and column.name != "latency_us"]
    figures = [column.name for column in columns if column.check or pa.types.is_floating(column.arrow_type)]
    check_values(read_parquet(path, partial(_refused, path), figures), contract, str(path))


def _same_kind(expected: pa.DataType, given_type: pa.DataType) -> bool:
    """Return whether a column's type is of the contract's kind: text, numbers, or a struct of numbers."""
    if pa.types.is_struct(expected):
        return pa.types.is_struct(given_type) and all(_is_number(field.type) for field in given_type)
    if pa.types.is_string(expected):
        return pa.types.is_string(given_type) or pa.types.is_large_string(given_type) or _is_encoded(given_type)
    return _is_number(given_type)


def _is_encoded(arrow: pa.DataType) -> bool:
    return pa.types.is_dictionary(arrow) and pa.types.is_string(arrow.value_type)


def _is_number(arrow: pa.DataType) -> bool:
    return pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_null(arrow)


def _flat(points: pl.DataFrame) -> pl.DataFrame:
    rows = points.drop("family", "gpu").unnest("shape")
    sizes = [name for name in rows.columns if rows[name].null_count() < rows.height or name in points.columns]
    unknown_fields = [
        name
        for name in set(rows.columns) - set(points.columns)
        if name not in contracts()["sweep_points"].schema.field("shape").type.names
    ]
    if unknown_fields:
        faults = [f"shape has the unknown field {name}" for name in sorted(unknown_fields)]
        raise breaks_contract("sweep_points", faults)
    return rows.select(sizes).with_columns(pl.lit(1.0).alias("weight"), pl.lit(None, pl.String).alias("reason"))
