"""Rules of a column (bounds, listed values, patterns, relations), and their violations in a table's rows.

Each violation is reported as one clause with a count and an example. No database evaluates rules: to start one takes as
long as a whole prediction.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.types import (
    BOUNDS,
    COMPARISONS,
    Column,
    can_become,
    has_floats,
    is_finite,
    leaf_arrays,
    type_name,
)
from kernelsight.errors import dangling_reference

_COMPARED = {">=": pc.greater_equal, ">": pc.greater, "<=": pc.less_equal, "<": pc.less, "<>": pc.not_equal}


def passes(column: Column, table: pa.Table) -> pa.ChunkedArray:
    """Return whether each row of a table keeps a column's rules: one boolean a row; null passes where it may be null.

    A value that is compared with a null fails.
    """
    values = table.column(column.name)
    stated = pc.is_valid(values)
    rules = [
        _COMPARED[sign](values, _constant(getattr(column, bound)))
        for bound, sign in BOUNDS.items()
        if column.has(bound)
    ]
    if column.allowed:
        rules.append(_is_any(values, column.allowed))
    if column.pattern:
        rules.append(pc.match_substring_regex(values, f"^(?:{column.pattern})$"))
    relations = []
    for relation, other in column.compare:
        if relation in COMPARISONS:
            rules.append(_COMPARED[COMPARISONS[relation]](values, table.column(other)))
        elif relation == "divides":
            rules.append(_divides(values, reduce(pc.multiply, [table.column(name) for name in other])))
        elif relation == "stated_with":
            relations.append(pc.equal(stated, pc.is_valid(table.column(other))))
        else:
            relations.append(_certainly(pc.equal(stated, _is_any(table.column(other[0]), other[1:]))))
    kept = _certainly(reduce(pc.and_kleene, rules)) if rules else stated
    if column.nullable:
        kept = pc.or_(kept, pc.invert(stated))
    return reduce(pc.and_, relations, kept)


def _certainly(rule: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(rule, _constant(False))


def _is_any(values: pa.ChunkedArray, allowed: tuple[str | float, ...]) -> pa.ChunkedArray:
    return reduce(pc.or_kleene, [pc.equal(values, _constant(value)) for value in allowed])


def _divides(divisor: pa.ChunkedArray, whole: pa.ChunkedArray) -> pa.ChunkedArray:
    divisor = pc.if_else(pc.equal(divisor, _constant(0)), None, divisor)
    return pc.equal(whole, pc.multiply(pc.divide(whole, divisor), divisor))


@lru_cache(maxsize=1024, typed=True)
def _constant(value: bool | float | str) -> pa.Scalar:
    """Return a Python value as an Arrow scalar, without ``pa.scalar``, which imports pandas where it is installed."""
    if isinstance(value, str):
        text = value.encode()
        buffers, arrow_type = [struct.pack("=ii", 0, len(text)), text], pa.string()
    elif isinstance(value, bool):
        buffers, arrow_type = [bytes([value])], pa.bool_()
    else:
        buffers, arrow_type = (
            ([struct.pack("=q", value)], pa.int64())
            if isinstance(value, int)
            else ([struct.pack("=d", value)], pa.float64())
        )
    return pa.Array.from_buffers(arrow_type, 1, [None, *map(pa.py_buffer, buffers)])[0]


def cast_column(
    values: pa.ChunkedArray, column: Column, *, encoded: bool = False
) -> tuple[pa.ChunkedArray | None, str]:
    """Cast a column to its contract's type: the values and "", or None and why they cannot be cast.

    ``encoded``: a dictionary-encoded column of that type stays so.
    """
    wanted = column.arrow_type
    if values.type == wanted or (encoded and pa.types.is_dictionary(values.type) and values.type.value_type == wanted):
        return values, ""
    if not can_become(values.type, wanted):
        return None, f"column {column.name} is {type_name(values.type)}, expected {column.type}"
    try:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return values.cast(wanted), ""
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return None, f"column {column.name} cannot be cast to {column.type} ({str(error).splitlines()[0]})"


def value_fault(values: pa.ChunkedArray, column: Column, rows: Sequence[int] | None = None) -> str:
    """Return the violation by a column's nulls, null list elements or non-finite floats, or "".

    ``rows``: the number of each row where it comes from; None: from 1.
    """
    if values.null_count and not column.nullable:
        return f"column {column.name} must not be null, but is in {_rows(values.null_count)}"
    if not (has_floats(values.type) or pa.types.is_nested(values.type)):
        return ""
    if pa.types.is_nested(values.type) and any(leaf.null_count for leaf, in_list in leaf_arrays(values) if in_list):
        return f"column {column.name} has a null inside a list"
    if not is_finite(values):
        where = ""
        if pa.types.is_floating(values.type):
            row = pc.index(pc.fill_null(pc.is_finite(values), True), False).as_py()
            where = f" in row {_number(row, rows)}"
        return f"column {column.name} has NaN or infinity{where} (use null for unknown values)"
    return ""


def check_faults(table: pa.Table, columns: list[Column], rows: Sequence[int] | None = None) -> list[str]:
    """Return one violation per column whose rules are broken in some row, with the first such row.

    ``rows``: the number of each row where it comes from; None: from 1.
    """
    faults = []
    for column in columns if table.num_rows else ():
        passed = passes(column, table) if column.check else None
        count = 0 if passed is None else table.num_rows - pc.sum(passed).as_py()
        if count:
            row = pc.index(passed, False).as_py()
            value = table.column(column.name)[row].as_py()
            unit = f" {column.unit}" if column.unit and value is not None else ""
            faults.append(
                f"column {column.name}: {_rows(count)} fail{'' if count > 1 else 's'} '{column.check}' "
                f"(row {_number(row, rows)}: {_show(value)}{unit})"
            )
    return faults


def failing_rows(
    table: pa.Table, columns: Iterable[Column], rows: Sequence[int] | None = None
) -> tuple[np.ndarray, list[str]]:
    """Return which rows of a table fail a check over its columns, bool [rows], and ``check_faults`` of these checks.

    Checks that read other columns are skipped.
    """
    names = set(table.column_names)
    checked = [column for column in columns if column.check and column.checked_with <= names]
    failing = np.zeros(table.num_rows, bool)
    for column in checked:
        failing |= ~passes(column, table).to_numpy()
    return failing, check_faults(table, checked, rows) if failing.any() else []


def duplicate_fault(table: pa.Table, keys: list[str]) -> str:
    """Return the violation by rows with the same key, with an example, or ""."""
    if not keys or table.num_rows < 2 or any(_is_increasing(table.column(key)) for key in keys):
        return ""
    # each row's key encoded as one integer, column by column
    numbers = np.zeros(table.num_rows, np.int64)
    for leaf in (leaf for key in keys for leaf in _leaves(table.column(key))):
        encoded = leaf.dictionary_encode(null_encoding="encode")
        numbers = numbers * len(encoded.dictionary) + _codes(encoded.indices)
        numbers = np.unique(numbers, return_inverse=True)[1]
    _, rows, counts = np.unique(numbers, return_index=True, return_counts=True)
    if rows.size == table.num_rows:
        return ""
    duplicates = table.select(keys).take(pa.array(rows[counts > 1]))
    types = [table.schema.field(key).type for key in keys]
    sorted_by = [
        (key, "ascending")
        for key, arrow_type in zip(keys, types, strict=True)
        if not (pa.types.is_nested(arrow_type) or pa.types.is_dictionary(arrow_type))
    ]
    first = (duplicates.sort_by(sorted_by) if sorted_by else duplicates).slice(0, 1).to_pylist()[0]
    example = ", ".join(f"{key} {_show(value)}" for key, value in first.items())
    return f"{duplicates.num_rows} duplicate key{'s' if duplicates.num_rows > 1 else ''} ({example})"


def _is_increasing(column: pa.ChunkedArray) -> bool:
    """Return whether a column of integers is strictly increasing, so that no two rows have the same."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    values = column.to_numpy()
    return bool((values[1:] > values[:-1]).all())


def _leaves(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return a column as arrays without dictionary encoding: one, or for a struct one per field."""
    if pa.types.is_dictionary(column.type):
        return [column.cast(column.type.value_type).combine_chunks()]
    if pa.types.is_struct(column.type):
        return [leaf for field in column.flatten() for leaf in _leaves(field)]
    return [column.combine_chunks()]


def _codes(indices: pa.Int32Array) -> np.ndarray:
    """Return dictionary indices as numpy, without Arrow's ``to_numpy``, which imports pandas where it is installed."""
    return np.frombuffer(indices.buffers()[1], np.int32, len(indices), 4 * indices.offset)


def check_reference(table: str, column: Column, values: pa.ChunkedArray, known: pa.ChunkedArray) -> None:
    """Check a foreign key: UnknownName, with the nearest names, if ``values`` has a value that ``known`` lacks."""
    keys, referring = pc.unique(known), pc.unique(values).drop_null()
    dangling = referring.filter(pc.invert(pc.is_in(referring, value_set=keys))).to_pylist()
    if dangling:
        names = map(str, keys.to_pylist())
        raise dangling_reference(f"{table}.{column.name}", dangling[0], column.reference, names, len(dangling) - 1)


def _number(row: int, rows: Sequence[int] | None) -> int:
    return row + 1 if rows is None else int(rows[row])


def _rows(count: int) -> str:
    return f"{count} row{'s' if count > 1 else ''}"


def _show(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
