"""Converts rows (lists of dicts) to Arrow tables of a contract's types, and tables to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.files.numbers import is_number

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.contract import Contract


def is_rows(data: Any) -> bool:
    """Return whether data is a list of dicts, one per row."""
    return isinstance(data, list) and all(isinstance(row, Mapping) for row in data)


def as_table(contract: Contract, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert rows to an Arrow table of the contract's columns and types; a column that no row has is null.

    InvalidInput: a value does not fit the type of its column. Keys that are no column are dropped.
    """
    import pyarrow as pa

    columns, keys = {}, set().union(*rows)
    for column in contract.columns:
        if column.name not in keys:
            columns[column.name] = pa.nulls(len(rows), column.arrow_type)
            continue
        values = [row.get(column.name) for row in rows]
        types = set(map(type, values)) - {type(None)}
        if not types:
            columns[column.name] = pa.nulls(len(rows), column.arrow_type)
            continue
        if column.arrow_type == pa.float64() and int in types:
            values = [float(value) if type(value) is int and is_number(value) else value for value in values]
        elif column.arrow_type == pa.int64() and float in types:
            values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
        try:
            # whether Arrow would change a value depends only on its type
            examples = {type(value): value for value in values}.values()
            if not all(_keeps_value(value, column.arrow_type) for value in examples):
                raise pa.ArrowInvalid("a value would be changed")
            columns[column.name] = pa.array(values, column.arrow_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            wrong = next(value for value in values if not _fits(value, column.arrow_type))
            raise InvalidInput(f"{column.name} is {wrong!r}; give a value of type {column.type}.") from None
    return pa.table(columns)


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Convert a table to rows, one dict each; values as :func:`python_values` converts them."""
    columns = [python_values(column) for column in table.columns]
    if not columns:
        return [{} for _ in range(table.num_rows)]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(values: pa.ChunkedArray) -> list[Any]:
    """Convert a column to Python values; all become text if Python has no value for their type or their dates."""
    if not _is_text(values.type):
        try:
            return values.to_pylist()
        except (OverflowError, ValueError, KeyError):  # the last for an unknown zone, until Arrow 21
            pass
    return _as_text(values)


def _is_text(arrow_type: pa.DataType) -> bool:
    """Return whether values are converted to text: with nanoseconds, intervals and bytes.

    Arrow converts nanoseconds to pandas types, or fails without pandas, and intervals to ``pa.MonthDayNano``.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(arrow_type):
        return _is_text(arrow_type.value_type)
    fields = [arrow_type.field(number).type for number in range(arrow_type.num_fields)]
    is_time = getattr(arrow_type, "unit", None) == "ns" or pa.types.is_interval(arrow_type)
    is_bytes = pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type)
    return is_time or is_bytes or any(map(_is_text, fields))


def _as_text(values: pa.ChunkedArray) -> list[str | None]:
    """Convert values to text as DuckDB writes them, or as Arrow does where DuckDB cannot read them."""
    import duckdb
    import pyarrow as pa

    from kernelsight.dataflow.databases import cursor_for_values

    # a time that DuckDB cannot hold makes a database unusable
    with cursor_for_values() as database:
        database.register("shown", pa.table({"value": values}))
        try:
            return database.sql("select value::varchar as value from shown").to_arrow_table()["value"].to_pylist()
        except (duckdb.Error, UnicodeDecodeError):
            return [_arrow_text(value) for value in values]


def _arrow_text(value: pa.Scalar) -> str | None:
    import pyarrow as pa

    return pa.array([value], value.type).to_string(indent=0)[1:-1].strip() if value.is_valid else None


def _keeps_value(value: Any, arrow_type: pa.DataType) -> bool:
    """Return whether Arrow would convert a value unchanged: it truncates 1.5 to 1, and turns true into 1.0."""
    import pyarrow as pa

    if isinstance(value, bool):
        return pa.types.is_boolean(arrow_type)
    return not (pa.types.is_integer(arrow_type) and isinstance(value, float))


def _fits(value: Any, arrow_type: pa.DataType) -> bool:
    import pyarrow as pa

    if not _keeps_value(value, arrow_type):
        return False
    try:
        pa.array([value], arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return False
    return True
