"""Python rows as Arrow tables of the contracts' types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.contract import Contract


def is_rows(data: Any) -> bool:
    """Return whether data is a list of dicts, one a row."""
    return isinstance(data, list) and all(isinstance(row, Mapping) for row in data)


def as_table(contract: Contract, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of the contract's types, columns that no row has null.

    InvalidInput: a value that does not fit its column. Other keys of the rows are left out.
    """
    import pyarrow as pa

    columns, stated = {}, set().union(*rows)
    for column in contract.columns:
        if column.name not in stated:
            columns[column.name] = pa.nulls(len(rows), column.arrow_type)
            continue
        values = [row.get(column.name) for row in rows]
        types = set(map(type, values)) - {type(None)}
        if not types:
            columns[column.name] = pa.nulls(len(rows), column.arrow_type)
            continue
        if column.arrow_type == pa.float64() and int in types:
            values = [float(value) if type(value) is int else value for value in values]
        elif column.arrow_type == pa.int64() and float in types:
            values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
        try:
            # whether Arrow would change a value depends only on its type
            examples = {type(value): value for value in values}.values()
            if not all(_keeps_value(value, column.arrow_type) for value in examples):
                raise pa.ArrowInvalid("a value would be changed")
            columns[column.name] = pa.array(values, column.arrow_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            wrong = next(value for value in values if not _fits(value, column.arrow_type))
            raise InvalidInput(f"{column.name} is {wrong!r}; give a value of type {column.type}.") from None
    return pa.table(columns)


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, their values by ``python_values``.

    >>> import duckdb
    >>> python_rows(duckdb.sql("select 'infinity'::date as day, 1 as n").to_arrow_table())
    [{'day': 'infinity', 'n': 1}]
    """
    columns = [python_values(column) for column in table.columns]
    if not columns:
        return [{} for _ in range(table.num_rows)]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(values: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; all become text if they have nanoseconds, or dates that Python cannot hold.

    >>> import pyarrow as pa
    >>> python_values(pa.chunked_array([pa.array([1], pa.time64("ns"))]))
    ['00:00:00.000000001']
    """
    if not _has_nanoseconds(values.type):  # Arrow makes them pandas' types, or fails where pandas is not installed
        try:
            return values.to_pylist()
        except (OverflowError, ValueError):
            pass
    return _as_text(values)


def _has_nanoseconds(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _has_nanoseconds(kind.value_type)
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return getattr(kind, "unit", None) == "ns" or any(map(_has_nanoseconds, parts))


def _as_text(values: pa.ChunkedArray) -> list[str | None]:
    """Return values as DuckDB writes them, or as Arrow does where DuckDB cannot read them."""
    import duckdb
    import pyarrow as pa

    from kernelsight.dataflow.engine import cursor_for_values

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


def _keeps_value(value: Any, kind: pa.DataType) -> bool:
    """Return whether Arrow would keep the value unchanged: it truncates 1.5 to 1, and reads true as 1.0."""
    import pyarrow as pa

    if isinstance(value, bool):
        return pa.types.is_boolean(kind)
    return not (pa.types.is_integer(kind) and isinstance(value, float))


def _fits(value: Any, kind: pa.DataType) -> bool:
    import pyarrow as pa

    if not _keeps_value(value, kind):
        return False
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True
