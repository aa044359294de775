"""One column of a table contract, and the rules that its values keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from kernelsight.dataflow.types import arrow_type

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
