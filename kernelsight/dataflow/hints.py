"""Hints for a user's failed query: the table to join for a missing column, and whether it is SHOW TABLES."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import duckdb

from kernelsight.dataflow.contract import Contract
from kernelsight.dataflow.databases import complaint

# of a column, of one of a join's two sides, and of one table of a query
_UNKNOWN_COLUMN = re.compile(
    r'(?:Referenced column|Column|does not have a column named) "([^"]+)"'
    r"(?: not found| does not exist on (?:left|right) side|$)",
    re.M,
)
_SHOW_TABLES = re.compile(r"(--[^\n]*\n|\s)*show\s+tables\s*;?\s*", re.I)
MOST_NAMED = 2


def query_fault(
    error: duckdb.Error,
    read: Mapping[str, Sequence[str]],
    contracts: Mapping[str, Contract],
    available: Collection[str],
) -> str:
    """Return why a query cannot be run, and for a column that its tables lack, which table to join for it.

    ``read``: the columns of the tables that the query names; ``available``: tables that have rows, suggested first.
    """
    message = f"the query cannot be run: {complaint(error)}"
    column = _UNKNOWN_COLUMN.search(complaint(error))
    tables = _tables_to_join(column[1].lower(), read, contracts, available) if column else []
    return f"{message}; {column[1]} is in {' and in '.join(tables)}." if column and tables else f"{message}."


def _tables_to_join(
    column: str, read: Mapping[str, Sequence[str]], contracts: Mapping[str, Contract], available: Collection[str]
) -> list[str]:
    """Return the tables with a column whose key the query's tables have, each with the columns to join it by."""
    read_columns = {name for columns in read.values() for name in columns}
    candidates = [
        (contract.kind != "given", name not in available, len(contract.columns), name)
        for name, contract in contracts.items()
        if name not in read and column in contract.column_names
        if contract.key and {*contract.key} <= read_columns - {column}
    ]
    names = [name for *_, name in sorted(candidates)][:MOST_NAMED]
    return [f"table {name}: join it using ({', '.join(contracts[name].key)})" for name in names]


def is_show_tables(query: str) -> bool:
    """Return whether a query is SHOW TABLES, to which DuckDB itself would list only the tables read so far.

    >>> is_show_tables("show tables;"), is_show_tables("show all tables")
    (True, False)
    """
    return _SHOW_TABLES.fullmatch(query) is not None
