"""Reads JSON records in bulk: DuckDB parses only the fields that a reader names, so texts are never kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import duckdb

from kernelsight.dataflow.engine import SETTINGS, first_line
from kernelsight.logs.files import DAMAGED, LogFile, unusable
from kernelsight.logs.found import Faults

if TYPE_CHECKING:
    import polars as pl

LONGEST_RECORD = 1 << 28  # bytes


def json_rows(
    file: LogFile, fields: Mapping[str, str], query: str, is_record: str, faults: Faults | None = None
) -> pl.DataFrame:
    """Return ``query`` over ``records``, the file's JSON objects with ``fields`` (DuckDB types, others are not read).

    A line that is no object, or for which the SQL boolean ``is_record`` is not true, is counted in ``faults`` as
    unreadable_line; so is what is cut off at the end. The query may name ``line``, the number of the record from 1.
    InvalidInput: damaged compression, a single document that is not JSON, or no record at all.
    """
    connection = duckdb.connect(":memory:", config=SETTINGS)
    try:
        _scan(connection, file, fields)
        read, first = connection.execute(
            f"select count(*), min(line) filter (where not coalesce({is_record}, false)) from scanned"
        ).fetchall()[0]
        kept = connection.execute(f"create temp table records as select * from scanned where {is_record}")
        kept = connection.execute("select count(*) from records").fetchall()[0][0]
        if not kept:
            raise unusable(file.path, f"has no record with the fields of its format in {read} lines", DAMAGED)
        connection.execute("drop table scanned")
        if faults is not None:
            faults.add("unreadable_line", read - kept, f"line {first}")
        return connection.sql(query).pl()
    except (duckdb.IOException, duckdb.InvalidInputException) as problem:
        raise unusable(file.path, f"is damaged or cut off ({first_line(problem)})", DAMAGED) from None
    finally:
        connection.close()


def _scan(connection: duckdb.DuckDBPyConnection, file: LogFile, fields: Mapping[str, str]) -> None:
    start = file.text.lstrip()[:1]
    layout = "newline_delimited" if file.by_line or start not in "[{" else "array" if start == "[" else "unstructured"
    tolerant = "true" if layout == "newline_delimited" else "false"
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in fields.items())
    connection.execute(
        f"create temp table scanned as select row_number() over () as line, * from read_json(?, format='{layout}', "
        f"columns={{{columns}}}, ignore_errors={tolerant}, maximum_object_size={LONGEST_RECORD}, "
        f"compression='{'gzip' if file.compressed else 'none'}')",
        [str(file.path)],
    )


def metric(path: str, unit: str = "ms") -> str:
    """Return SQL for a ``{"value", "unit"}`` struct in milliseconds; null for a unit that is not one of time.

    >>> metric("m.ttft")[:48]
    "m.ttft.value * case m.ttft.unit when 'ms' then 1"
    """
    factors = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}
    cases = " ".join(f"when '{name}' then {factor:g}" for name, factor in factors.items())
    return f"{path}.value * case {path}.unit {cases} end" if unit == "ms" else f"{path}.value"
