"""Python rows as Arrow tables of the contracts' types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session


def give_rows(session: Session, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Set an input table from rows; columns that no row has are null."""
    session.give(table, as_table(session, table, list(rows)))


def as_table(session: Session, table: str, rows: list[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of the contract's types; InvalidInput: a value that does not fit its column."""
    import pyarrow as pa

    columns = {}
    for column in session.graph.known(table).columns:
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
