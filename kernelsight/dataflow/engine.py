"""The internal DuckDB database that parses queries and evaluates checks, separate from every session's database."""

from __future__ import annotations

from functools import cache

import duckdb

# no replacement scans: a misspelt table name would silently read a Python variable
SETTINGS = {"python_enable_replacements": False, "preserve_insertion_order": True}


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:", config=SETTINGS)


def private_cursor() -> duckdb.DuckDBPyConnection:
    """Return a cursor of the internal database; tables registered on it are visible to no other cursor.

    >>> private_cursor().execute("select 1").fetchall()
    [(1,)]
    """
    return _database().cursor()


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier.

    >>> quote("table")
    '"table"'
    """
    return '"' + name.replace('"', '""') + '"'


def first_line(error: duckdb.Error) -> str:
    """Return the first line of DuckDB's message, without the final period.

    >>> first_line(duckdb.ParserException("Parser Error: syntax error\\n\\nLINE 1: selct"))
    'Parser Error: syntax error'
    """
    return str(error).strip().splitlines()[0].rstrip(".!")


def complaint(error: duckdb.Error) -> str:
    """Return DuckDB's message and the names that it suggests, on one line.

    >>> complaint(duckdb.BinderException('Binder Error: no column "pric"\\n\\nCandidate bindings: "price"'))
    'Binder Error: no column "pric", Candidate bindings: "price"'
    """
    offers = [line.strip() for line in str(error).splitlines()[1:] if line.startswith(("Candidate", "Did you mean"))]
    return ", ".join([first_line(error), *offers]).rstrip(".!")
