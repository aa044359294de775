"""Hints for a user's failed query: the table that has a column, and the tables that there are."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import duckdb

from kernelsight.dataflow.contract import Contract
from kernelsight.dataflow.engine import complaint

_LOST = re.compile(r'Referenced column "([^"]+)" not found')
_SHOW = re.compile(r"(--[^\n]*\n|\s)*show\s+tables\s*;?\s*", re.I)
MOST_NAMED = 2


def query_fault(
    error: duckdb.Error, read: Mapping[str, Sequence[str]], contracts: Mapping[str, Contract], there: Collection[str]
) -> str:
    """Return why a query cannot be run, and for a column that its tables lack, which table to join for it.

    ``read``: the columns of the tables that the query names; ``there``: tables that have rows, which come first.
    """
    said = f"the query cannot be run: {complaint(error)}"
    lost = _LOST.search(str(error))
    joined = _joined_for(lost[1].lower(), read, contracts, there) if lost else []
    return f"{said}; {lost[1]} is in {' and in '.join(joined)}." if lost and joined else f"{said}."


def _joined_for(
    column: str, read: Mapping[str, Sequence[str]], contracts: Mapping[str, Contract], there: Collection[str]
) -> list[str]:
    """Return the tables with a column that a row of those that are read joins once, with what to join them by."""
    known = {name for columns in read.values() for name in columns}
    candidates = [
        (contract.kind != "given", name not in there, len(contract.columns), name)
        for name, contract in contracts.items()
        if name not in read and column in contract.column_names and contract.key and {*contract.key} <= known - {column}
    ]
    names = [name for *_, name in sorted(candidates)][:MOST_NAMED]
    return [f"table {name}: join it using ({', '.join(contracts[name].key)})" for name in names]


def asks_for_tables(query: str) -> bool:
    """Return whether a query is SHOW TABLES, which DuckDB answers with the tables that were read so far.

    >>> asks_for_tables("show tables;"), asks_for_tables("show all tables")
    (True, False)
    """
    return _SHOW.fullmatch(query) is not None
