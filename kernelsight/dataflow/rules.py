"""Rules of a column, evaluated over Arrow columns: bounds, listed values, patterns, relations to other columns.

No database evaluates them: to start one takes as long as a whole prediction.
"""

from __future__ import annotations

import struct
from functools import lru_cache, reduce

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.column import BOUNDS, COMPARISONS, Column

_COMPARED = {">=": pc.greater_equal, ">": pc.greater, "<=": pc.less_equal, "<": pc.less, "<>": pc.not_equal}


def passes(column: Column, table: pa.Table) -> pa.ChunkedArray:
    """Return whether each row of a table keeps a column's rules: one boolean a row; null passes where it may be null.

    A value that is compared with a null fails.

    >>> column = Column("x", "int64", "an x", nullable=True, min=1, compare=(("at_most", "size"),))
    >>> passes(column, pa.table({"x": [1, 2, 0, 1, None], "size": [1, 1, 1, None, 1]})).to_pylist()
    [True, False, False, False, True]
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
