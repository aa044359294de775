"""Columns of contracts with their rules, and the grammar of their types: ``list<struct<m: int64>>``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

BOUNDS = {"min": ">=", "above": ">", "max": "<=", "below": "<"}
COMPARISONS = {"at_least": ">=", "above": ">", "at_most": "<=", "below": "<", "differs_from": "<>"}
# relations to other columns that are no comparison, in words of SQL
RELATIONS: dict[str, Callable[[str, Any], str]] = {
    "divides": lambda name, others: f"{' * '.join(others)} % {name} = 0",
    "stated_with": lambda name, other: f"({name} is null) = ({other} is null)",
    "stated_where": lambda name, where: f"({name} is not null) = ({where[0]} in {_listed(where[1:])})",
}


@dataclass(frozen=True)
class Column:
    """One column of a contract; ``reference`` is a ``table.column``.

    Its values are at least ``min``, above ``above``, at most ``max``, below ``below``, one of ``allowed`` and match
    ``pattern`` as a whole. ``compare``: relations to other columns of the row, each with what it is compared to.
    """

    name: str
    type: str
    doc: str = ""
    nullable: bool = False
    unit: str = ""
    key: bool = False
    reference: str = ""
    min: float | None = None
    above: float | None = None
    max: float | None = None
    below: float | None = None
    allowed: tuple[str | float, ...] = ()
    pattern: str = ""
    compare: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type that ``type`` names."""
        return arrow_type(self.type)

    @cached_property
    def check(self) -> str:
        """All rules of the column, as a condition in SQL that a value keeps unless it is null; empty: none."""
        rules = [f"{self.name} {sign} {getattr(self, bound)}" for bound, sign in BOUNDS.items() if self.has(bound)]
        if self.allowed:
            rules.append(f"{self.name} in {_listed(self.allowed)}")
        if self.pattern:
            rules.append(f"regexp_full_match({self.name}, '{self.pattern}')")
        for relation, other in self.compare:
            if relation in COMPARISONS:
                rules.append(f"{self.name} {COMPARISONS[relation]} {other}")
            else:
                rules.append(RELATIONS[relation](self.name, other))
        return " and ".join(rules)

    @cached_property
    def checked_with(self) -> set[str]:
        """The columns that its rules read, itself among them."""
        names = {self.name}
        for relation, other in self.compare:
            names |= {other} if isinstance(other, str) else set(other if relation == "divides" else other[:1])
        return names

    def __getstate__(self) -> dict[str, Any]:
        # every process reads all columns from disk: a field with its default is the class's own
        return {name: value for name, value in vars(self).items() if value != getattr(Column, name, None)}

    def has(self, bound: str) -> bool:
        """Return whether the column states this bound."""
        return getattr(self, bound) is not None

    def unchecked(self) -> Column:
        """Return the column without its rules."""
        return replace(self, **dict.fromkeys(BOUNDS), allowed=(), pattern="", compare=())


def _listed(values: tuple[str | float, ...]) -> str:
    words = ["'{}'".format(value.replace("'", "''")) if isinstance(value, str) else str(value) for value in values]
    return f"({', '.join(words)})"


_SCALARS = {
    "string": (pa.string(), "VARCHAR"),
    "bool": (pa.bool_(), "BOOLEAN"),
    "int32": (pa.int32(), "INTEGER"),
    "int64": (pa.int64(), "BIGINT"),
    "float32": (pa.float32(), "FLOAT"),
    "float64": (pa.float64(), "DOUBLE"),
}
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_]*")


def arrow_type(text: str) -> pa.DataType:
    """Parse a type of the grammar to an Arrow type; ValueError if ``text`` is not a type."""
    text = text.strip()
    if text in _SCALARS:
        return _SCALARS[text][0]
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(arrow_type(text[5:-1]))
    if text.startswith("struct<") and text.endswith(">"):
        return pa.struct([_struct_field(part) for part in _split(text[7:-1])])
    known = ", ".join([*_SCALARS, "list<T>", "struct<name: T, ...>"])
    raise ValueError(f"{text!r} is not a column type; use one of {known}")


def _struct_field(part: str) -> pa.Field:
    name, colon, type_text = part.partition(":")
    if not colon or not _FIELD_NAME.fullmatch(name.strip()):
        raise ValueError(f"{part.strip()!r} is not a struct field; write 'name: type' in lower case")
    return pa.field(name.strip(), arrow_type(type_text))


def _split(text: str) -> list[str]:
    """Split at the commas outside angle brackets."""
    pieces, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            pieces.append(text[start:position])
            start = position + 1
    return [*pieces, text[start:]]


def type_name(arrow: pa.DataType) -> str:
    """Return the grammar's name of an Arrow type, or Arrow's name if the grammar has none."""
    if pa.types.is_list(arrow):
        return f"list<{type_name(arrow.value_type)}>"
    if pa.types.is_struct(arrow):
        fields = ", ".join(f"{field.name}: {type_name(field.type)}" for field in arrow)
        return f"struct<{fields}>"
    names = {scalar: name for name, (scalar, _) in _SCALARS.items()}
    return names.get(arrow, str(arrow))


def duckdb_type(arrow: pa.DataType) -> str:
    """Return DuckDB's spelling of an Arrow type of the grammar."""
    if pa.types.is_list(arrow):
        return f"{duckdb_type(arrow.value_type)}[]"
    if pa.types.is_struct(arrow):
        fields = ", ".join(f'"{field.name}" {duckdb_type(field.type)}' for field in arrow)
        return f"STRUCT({fields})"
    return dict(_SCALARS.values())[arrow]


def _is_text(arrow: pa.DataType) -> bool:
    return pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow)


def _is_number(arrow: pa.DataType) -> bool:
    return pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow)


def _is_list(arrow: pa.DataType) -> bool:
    return (
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or pa.types.is_fixed_size_list(arrow)
        or pa.types.is_list_view(arrow)
        or pa.types.is_large_list_view(arrow)
    )


def can_become(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a column of type ``source`` can be cast to ``target``: the same kind of value, of any width."""
    if source == target or pa.types.is_null(source):
        return True
    if pa.types.is_dictionary(source):
        return can_become(source.value_type, target)
    if _is_list(target):
        return _is_list(source) and can_become(source.value_type, target.value_type)
    if pa.types.is_struct(target):
        # Arrow fills a missing field with nulls and drops an unknown one: both would hide a misspelt field
        return (
            pa.types.is_struct(source)
            and {field.name for field in source} == {field.name for field in target}
            and all(can_become(source.field(field.name).type, field.type) for field in target)
        )
    return (_is_text(source) and _is_text(target)) or (_is_number(source) and _is_number(target))


def leaf_arrays(column: pa.ChunkedArray | pa.Array, inside_list: bool = False) -> list[tuple[pa.Array, bool]]:
    """Return the leaf arrays of a nested column, each with whether it holds the elements of a list."""
    if isinstance(column, pa.ChunkedArray):
        return [leaf for chunk in column.chunks for leaf in leaf_arrays(chunk, inside_list)]
    if pa.types.is_list(column.type):
        return leaf_arrays(column.flatten(), True)
    if pa.types.is_struct(column.type):
        return [leaf for child in column.flatten() for leaf in leaf_arrays(child)]
    return [(column, inside_list)]


def is_finite(column: pa.ChunkedArray | pa.Array) -> bool:
    """Return whether all floats in the column, at any depth, are finite."""
    if not has_floats(column.type):
        return True
    leaves = [(column, False)] if pa.types.is_floating(column.type) else leaf_arrays(column)
    return all(_is_finite(leaf) for leaf, _ in leaves if pa.types.is_floating(leaf.type))


def _is_finite(floats: pa.ChunkedArray | pa.Array) -> bool:
    total = pc.sum(floats).as_py()  # one call where all are finite
    return total is None or math.isfinite(total) or pc.all(pc.is_finite(floats), min_count=0).as_py()


@cache  # called for every column of every table
def has_floats(arrow: pa.DataType) -> bool:
    """Return whether a type contains floats at any depth."""
    if pa.types.is_list(arrow):
        return has_floats(arrow.value_type)
    if pa.types.is_struct(arrow):
        return any(has_floats(field.type) for field in arrow)
    return pa.types.is_floating(arrow)
