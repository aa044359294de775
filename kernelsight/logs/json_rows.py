"""JSON records in bulk, as a frame: DuckDB parses only the fields that a reader declares, so texts are never kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import duckdb

from kernelsight.dataflow.databases import cursor_for_values, first_line
from kernelsight.files.row_faults import Faults
from kernelsight.logs.files import DAMAGED, LogFile, unusable

if TYPE_CHECKING:
    import polars as pl

LONGEST_RECORD = 1 << 25  # bytes; each thread reads into two buffers of this size


def json_rows(
    file: LogFile, fields: Mapping[str, str], columns: str, is_record: str, faults: Faults | None = None
) -> pl.DataFrame:
    """Return ``columns``, a SQL select list over the file's JSON objects with ``fields`` (DuckDB types by name).

    Other fields are not read. The column ``line`` is the number of the record from 1. A line that is no object, or
    for which the SQL boolean ``is_record`` is not true, is counted in ``faults`` as unreadable_line.
    InvalidInput: damaged compression, a single document that is not JSON, or no record at all.
    """
    import polars as pl

    connection = cursor_for_values()
    try:
        # one pass over the file, which keeps only the selected columns
        query = f"select line, coalesce({is_record}, false) as whole, {columns} from ({_scan(file, fields)})"
        frame = connection.sql(query).pl()
    except (duckdb.IOException, duckdb.InvalidInputException) as problem:
        raise unusable(file.path, f"is damaged or cut off ({first_line(problem)})", DAMAGED) from None
    finally:
        connection.close()
    unreadable = frame.filter(~pl.col("whole"))
    if unreadable.height == frame.height:
        raise unusable(file.path, f"has no record with the fields of its format in {frame.height} lines", DAMAGED)
    if faults is not None:
        faults.add("unreadable_line", unreadable.height, f"line {unreadable['line'][0]}" if unreadable.height else None)
    return (frame.filter("whole") if unreadable.height else frame).drop("whole")


def _scan(file: LogFile, fields: Mapping[str, str]) -> str:
    """Return the query of a file's objects, numbered from 1; lines that are not objects have all fields null."""
    start = file.text.lstrip()[:1]
    layout = "newline_delimited" if file.by_line or start not in "[{" else "array" if start == "[" else "unstructured"
    ignore_errors = "true" if layout == "newline_delimited" else "false"
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in fields.items())
    return (
        f"select row_number() over () as line, * from read_json({file.sql_path}, format='{layout}', "
        f"columns={{{columns}}}, ignore_errors={ignore_errors}, maximum_object_size={LONGEST_RECORD}, "
        f"compression='{'gzip' if file.compressed else 'none'}')"
    )
