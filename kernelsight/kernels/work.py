"""FLOP and bytes of measured kernels and of call files, by the SQL macros of ``sql/macros/work.sql``.

A family declares its call columns as SQL over ``shape``, earlier columns, and the bits of its number formats
(``weight_bits``, ``activation_bits``); ``flops`` and ``bytes`` call the same macros as its lowering query.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from kernelsight.dataflow.databases import open_database, read_macros
from kernelsight.dataflow.locations import folder

if TYPE_CHECKING:
    import duckdb

_FIELD = re.compile(r"(?:coalesce\()?shape\.(\w+)(?:, 0\))?")


def field_of(sql: str) -> str | None:
    """Return the field of a shape that a column's SQL reads, or None where the column is computed.

    >>> field_of("shape.experts"), field_of("coalesce(shape.window, 0)"), field_of("gemm_flops(m, n, k)")
    ('experts', 'window', None)
    """
    field_match = _FIELD.fullmatch(sql)
    return field_match[1] if field_match else None


def work_cursor() -> duckdb.DuckDBPyConnection:
    """Return a DuckDB cursor with the macros; tables registered on it are visible to no other cursor."""
    return _database().cursor()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return open_database(read_macros(folder("sql")))


def evaluated(sql: str, columns: pa.Table) -> pa.ChunkedArray:
    """Return a SQL expression with macros in each row of a table, float64, null where it is null.

    >>> evaluated("batch * visible_pairs(new, 0, 0)", pa.table({"batch": [1, 2], "new": [3, 4]})).to_pylist()
    [6.0, 20.0]
    """
    cursor = work_cursor()
    cursor.register("calls", columns)
    return cursor.sql(f"select ({sql})::double as value from calls").to_arrow_table()["value"]
