"""Reads Parquet files of kernel calls (``predict --calls``) as ``kernel_calls``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.dataflow.array_expressions import in_one_piece
from kernelsight.dataflow.contract import Column, conform
from kernelsight.errors import ContractBroken, InvalidInput
from kernelsight.files.bounded_files import Refuse, check_file
from kernelsight.files.parquet_files import check_parquet, unreadable

if TYPE_CHECKING:
    from kernelsight.dataflow.contract import Contract

# string columns with few distinct values: read dictionary-encoded
WORDS = ("deployment_id", "family", "name", "gpu", "engine", "format", "math")
# optional columns of a file, and their defaults
DEFAULTS = {"deployment_id": "calls", "engine": "vllm"}
KERNEL = Column(
    "implementation", "string", "kernel asked for, as in sweep_points; null: the engine's choice", nullable=True
)


def not_read(path: Path, problem: str) -> InvalidInput:
    """Return the error for a file of --calls; ``problem``: what is wrong with it, as a predicate."""
    return InvalidInput(f"file {path} {problem}; --calls takes a CSV, JSON or Parquet table of kernels.")


def read_calls(path: Path, gpu: str, contract: Contract) -> pa.Table:
    """Return the file's rows in the ``kernel_calls`` contract, every row on ``gpu``, in the file's order.

    deployment_id, step_shape_id, call, name, count, gpu and engine may be missing, and shape fields that no row uses;
    a column implementation, which requests kernels by name, is kept. String columns may be dictionary-encoded.
    InvalidInput: no such file, or not Parquet; ContractBroken lists all missing columns and wrong values.
    """

    refuse = partial(not_read, path)
    size = check_file(path, refuse)
    try:
        table = _read(path, size, refuse)
        table.validate(full=True)
        _ = table.column_names  # raises for names that are not UTF-8
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise refuse(unreadable(error)) from None
    rows = table.num_rows
    defaults = {
        **{name: partial(_repeated, value, rows) for name, value in DEFAULTS.items()},
        "step_shape_id": partial(pa.repeat, pa.scalar(0, pa.int64()), rows),
        "count": partial(pa.repeat, pa.scalar(1, pa.int64()), rows),
        "call": lambda: pa.array(np.arange(rows)).cast(pa.string()),
    }
    is_numbered = "call" not in table.column_names
    if "family" in table.column_names:
        family = table["family"]
        defaults["name"] = lambda: family
    for name, column in defaults.items():
        if name not in table.column_names:
            table = table.append_column(name, column())
    if "gpu" in table.column_names:
        table = table.drop_columns(["gpu"])
    table = table.append_column("gpu", _repeated(gpu, rows))
    if "shape" in table.column_names and pa.types.is_struct(table["shape"].type):
        table = table.set_column(table.column_names.index("shape"), "shape", _whole_shape(table["shape"], contract))
    if KERNEL.name in table.column_names:
        contract = replace(contract, columns=(*contract.columns, KERNEL))
    if is_numbered:  # rows that were numbered here are not checked for duplicates
        contract = replace(contract, columns=tuple(replace(column, key=False) for column in contract.columns))
    try:
        return conform(table, contract, encoded=True, origin=str(path))
    except ContractBroken as error:
        raise ContractBroken(f"{error} `kernelsight tables kernel_calls` lists the columns.") from None


def _read(path: Path, size: int, refuse: Refuse) -> pa.Table:
    """Return the file's rows, columns in WORDS dictionary-encoded; ``size``: of the file, bytes."""
    with pq.ParquetFile(path) as file:
        strings = {field.name for field in file.schema_arrow if pa.types.is_string(field.type)}
        words = [name for name in (*WORDS, KERNEL.name) if name in strings]
        check_parquet(path, size, refuse, [name for name in file.schema_arrow.names if name not in words])
        with pq.ParquetFile(path, metadata=file.metadata, read_dictionary=words, pre_buffer=True) as encoded:
            return encoded.read()


def _repeated(word: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([word]))


def _whole_shape(shape: pa.ChunkedArray, contract: Contract) -> pa.Array:
    """Return shapes with missing fields as null; InvalidInput: an unknown field, or one that is no whole number."""
    wanted = next(column for column in contract.columns if column.name == "shape").arrow_type
    array = in_one_piece(shape)
    fields = {array.type.field(i).name: array.field(i) for i in range(array.type.num_fields)}
    known = {wanted.field(i).name for i in range(wanted.num_fields)}
    if unknown := sorted(set(fields) - known):
        raise InvalidInput(f"shape has unknown fields {', '.join(unknown)}; known fields: {', '.join(sorted(known))}.")
    arrays = []
    for i in range(wanted.num_fields):
        field = fields.get(wanted.field(i).name)
        try:
            arrays.append(pa.nulls(len(array), pa.int64()) if field is None else field.cast(pa.int64()))
        except pa.ArrowException as error:
            raise InvalidInput(
                f"the shape field {wanted.field(i).name} must hold whole numbers ({str(error).splitlines()[0]})."
            ) from None
    return pa.StructArray.from_arrays(arrays, fields=[wanted.field(i) for i in range(wanted.num_fields)])
