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

    columns = {}
    for column in contract.columns:
        values = [row.get(column.name) for row in rows]
        kinds = set(map(type, values)) - {type(None)}
        if not kinds:
            columns[column.name] = pa.nulls(len(rows), column.arrow_type)
            continue
        if column.arrow_type == pa.float64() and int in kinds:
            values = [float(value) if type(value) is int else value for value in values]
        elif column.arrow_type == pa.int64() and float in kinds:
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
    """Return the rows of a table; a column with dates or times that Python cannot hold becomes text.

    >>> import duckdb
    >>> python_rows(duckdb.sql("select 'infinity'::date as day, 1 as n").to_arrow_table())
    [{'day': 'infinity', 'n': 1}]
    """
    try:
        return table.to_pylist()
    except (OverflowError, ValueError):
        pass
    for number, field in enumerate(table.schema):
        try:
            table.column(number).to_pylist()
        except (OverflowError, ValueError):
            table = table.set_column(number, field.name, _as_text(table.column(number)))
    return table.to_pylist()


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    from kernelsight.dataflow.engine import private_cursor

    cursor = private_cursor()
    cursor.register("rows_shown", pa.table({"value": values}))
    return cursor.sql("select value::varchar as value from rows_shown").to_arrow_table().column("value")


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
