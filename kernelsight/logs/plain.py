"""Reader of plain tables of requests (CSV, JSON lines, Parquet), whose columns the user may map with --columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import duckdb

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.databases import cursor_for_values, first_line, literal, quote
from kernelsight.errors import InvalidInput, nearest, unknown
from kernelsight.files.parquet_files import check_parquet
from kernelsight.logs.files import DAMAGED, LogFile, unusable
from kernelsight.logs.log_run import FILE_ROW, LogFormat, LogRun
from kernelsight.number_format import number
from kernelsight.scenario.proposed_columns import columns_flag
from kernelsight.serving.load.traces import LATEST_S

NAME = "table"
REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
TIMES = ("arrival_s", "sent_s")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_FILE_COLUMN = re.compile(r"(?P<name>.+?)(?:\[(?P<unit>s|ms|us|ns)\])?$")
ASSIGNED = ("log_id", "request_id")
_ZONE = r"([zZ]|[+-]\d\d(:?\d\d)?)$"
EARLIEST_UNIX = 1e8  # 1973: smaller times are not unix times, but count from some start
GOOD = "('', 'ok', 'success', 'succeeded', 'successful', 'completed', 'finished', 'true', '200', 'stop', 'length')"
Columns = Mapping[str, str]


def _recognises(file: LogFile) -> bool:
    fields = columns_of(file)
    times = fields & set(TIMES)
    return bool(times) and set(REQUIRED[1:]) <= fields and bool(fields & set(LATENCIES))


def columns_of(file: LogFile) -> set[str]:
    """Return the field names of a file's records; of JSON, those of objects or of a list's objects: ``usage.total``."""
    names = {name.removeprefix("[].") for name in file.fields}
    return {name for name in names if "[]" not in name} if file.kind == "json" else names


def read_plain(files: Sequence[LogFile], columns: Columns | None = None) -> list[LogRun]:
    """Return one run per file: columns named as in ``production_requests``, and those that ``columns`` maps.

    ``columns``: column of the file by column of ``production_requests``; it may end in a unit, ``first[s]``, or be a
    value for all rows, ``=gateway``. Times are numbers, or dates with a time zone. Rows with values that are not
    numbers are counted and dropped. InvalidInput: a required column is missing, or a date has no zone.
    """
    return [_run(file, dict(columns or {})) for file in files]


def _run(file: LogFile, columns: dict[str, str]) -> LogRun:
    connection = cursor_for_values()
    run = LogRun(file, NAME)
    try:
        _open(connection, file, columns)
        read_rows(connection, run, str(file.path), columns)
        count_ragged(connection, file, run)
    except (duckdb.IOException, duckdb.InvalidInputException, duckdb.ConversionException) as problem:
        raise unusable(file.path, f"cannot be read as a table ({first_line(problem)})", DAMAGED) from None
    finally:
        connection.close()
    return run


def _open(connection: duckdb.DuckDBPyConnection, file: LogFile, columns: Columns) -> None:
    """Create the view ``given`` of the file's columns: text from CSV and JSON, any type from Parquet."""
    compression = f"compression='{'gzip' if file.compressed else 'none'}'"
    if file.kind == "parquet":
        mapped = {source_of(column, file_column).column for column, file_column in columns.items()}
        read_columns = mapped | {column.name for column in contracts()["production_requests"].columns}
        check_parquet(file.path, file.size, partial(unusable, file.path, advice="Give a part of it."), read_columns)
        source = f"read_parquet({file.sql_path})"
    elif file.kind == "json":
        lists = {"hash_ids": "BIGINT[]", "chunk_gaps_ms": "FLOAT[]"}
        types = {
            source_of(column, file_column).column: lists.get(column, "VARCHAR")
            for column, file_column in columns.items()
        }
        names = columns_of(file)
        types |= {name: lists.get(name, "VARCHAR") for name in names if name not in types}
        within = {name: name.split(".") for name in types if "." in name and name in names}
        types |= {outer: "JSON" for outer, *_ in within.values()}
        fields = ", ".join(
            f"{literal(name)}: '{kind}'" for name, kind in types.items() if name in names and name not in within
        )
        if not fields:
            raise unusable(file.path, "has no fields", "Give one object per line and request.")
        in_list = file.text.lstrip().startswith("[")
        layout = "format='array'" if in_list else "format='newline_delimited', ignore_errors=true"
        source = f"read_json({file.sql_path}, {layout}, columns={{{fields}}}, {compression})"
        inner = ", ".join(
            f"{quote(outer)} ->> {literal('$.' + '.'.join(map(quote, path)))} as {quote(name)}"
            for name, (outer, *path) in within.items()
        )
        source = f"(select *, {inner} from {source})" if inner else source
    else:
        source = csv_source(file)
    connection.execute(f"create temp view given as select * from {source}")


def csv_source(file: LogFile) -> str:
    """Return SQL for the rows of a CSV file with a header, all columns as text; rows of another width are rejected.

    InvalidInput: an empty or repeated column name.
    """
    if len(set(file.columns)) < len(file.columns) or "" in file.columns:
        raise unusable(file.path, "has a header with an empty or repeated name", "Name each column once.")
    fields = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in file.columns)
    compression = "gzip" if file.compressed else "none"
    return (
        f"read_csv({file.sql_path}, columns={{{fields}}}, header=true, auto_detect=false, delim=',', "
        f"quote='\"', escape='\"', store_rejects=true, compression='{compression}')"
    )


def count_ragged(connection: duckdb.DuckDBPyConnection, file: LogFile, run: LogRun) -> None:
    """Count the lines of a CSV file that DuckDB rejected as unreadable_line of ``run``, after its rows were read.

    An unclosed quote makes one row of all lines up to the next quote.
    """
    if file.kind == "text":
        rows = (
            "select line, any_value(csv_line) as text, bool_or(error_type = 'UNQUOTED VALUE') as quoted "
            "from reject_errors group by line"
        )
        lines = "len(string_split(rtrim(text, chr(10) || chr(13)), chr(10)))"
        query = f"select coalesce(sum({lines}), 0)::bigint, min(line), bool_or(quoted) from ({rows})"
        count, first_bad_line, quoted = connection.execute(query).fetchall()[0]
        more = f": a quote in line {first_bad_line} or later is not closed" if quoted else ""
        run.faults.add("unreadable_line", count, f"line {first_bad_line}", more)


class Source(NamedTuple):
    """Source of a column: a column of the file with the factor to its unit, or a value for all rows."""

    column: str
    factor: float = 1.0
    value: str | None = None
    unit: str | None = None


def source_of(column: str, file_column: str) -> Source:
    """Return the source of a column from what ``--columns`` maps to it; InvalidInput: it is empty."""
    if file_column.startswith("="):
        return Source("", value=file_column[1:])
    match = _FILE_COLUMN.match(file_column)
    if not match:
        raise InvalidInput(
            f"--columns {column}= names no column; write {column}=name, or {column}==value for all rows."
        )
    unit = match.group("unit")
    factor = 1.0 if unit is None else UNITS[unit] * (1.0 if column in TIMES else 1e3)
    return Source(match.group("name"), factor, unit=unit)


def read_rows(connection: duckdb.DuckDBPyConnection, run: LogRun, label: str, columns: Columns) -> None:
    """Set ``run.requests`` and ``run.clock`` from the view ``given`` of a connection; see ``read_plain``.

    ``label``: names the table in errors.
    """
    column_types = {row[0]: str(row[1]) for row in connection.execute("describe given").fetchall()}
    types = {c.name: c.type for c in contracts()["production_requests"].columns if c.name not in ASSIGNED}
    sources = _sources(label, set(column_types), columns, list(types))
    _check_zones(connection, label, sources, column_types)
    expressions = {
        column: _expression(column, types[column], source, column_types) for column, source in sources.items()
    }
    is_wrong = [
        f"({_filled(source.column)} and ({expressions[column]}) is null)"
        for column, source in sources.items()
        if types[column] in ("int64", "float64") and source.value is None
    ]
    selected = ", ".join(f"{expression} as {quote(column)}" for column, expression in expressions.items())
    is_empty = " and ".join(f"given.{quote(source.column)} is null" for source in sources.values() if source.column)
    fault = (
        f"case when {is_empty} then 'unreadable_line' "
        f"when coalesce({' or '.join(is_wrong) or 'false'}, false) then 'unreadable_value' end"
    )
    connection.execute(
        f"create temp table made as select row_number() over () as line, {fault} as fault, {selected} from given"
    )
    faults = "select fault, count(*), min(line) from made where fault is not null group by fault order by fault"
    for rule, count, first_row in connection.execute(faults).fetchall():
        run.faults.add(rule, count, f"row {first_row}")
    column_list = ", ".join(quote(column) for column in expressions)
    frame = connection.sql(f"select {column_list}, line as {FILE_ROW} from made where fault is null order by line").pl()
    times = [frame[name].filter(frame[name].is_finite()).median() for name in TIMES if name in expressions]
    usual_s = max((float(value) for value in times if value is not None), default=None)  # type: ignore[arg-type]
    if usual_s is not None and usual_s > LATEST_S:
        what = f"has times of sending around {number(usual_s)} s, over 3,000 years"
        raise unusable(label, what, "Name the unit in the file: --columns arrival_s=NAME[ms], or [us], [ns].")
    run.clock = "none" if usual_s is None else "unix" if usual_s >= EARLIEST_UNIX else "monotonic"
    run.requests = frame


def _filled(file_column: str) -> str:
    """Return SQL for whether a column of the file has a value."""
    return f"(given.{quote(file_column)} is not null and trim(given.{quote(file_column)}::varchar) <> '')"


def _sources(label: str, present: set[str], columns: Columns, known_columns: Sequence[str]) -> dict[str, Source]:
    """Return the source of each column, mapped or of equal name; InvalidInput: a required one is missing."""
    for name in columns:
        if name not in known_columns:
            raise unknown("column", name, known_columns, "--columns takes our name = the name in the file.")
    sources = {name: source_of(name, file_column) for name, file_column in columns.items()}
    for name, source in sources.items():
        if source.value is None and source.column not in present:
            close = nearest(source.column, present) or sorted(present)
            raise unusable(label, f"has no column {source.column!r} for {name}", f"It has {', '.join(close[:8])}.")
    sources |= {name: Source(name) for name in known_columns if name in present and name not in sources}
    if "external_id" not in sources and "request_id" in present:
        sources["external_id"] = Source("request_id")
    missing = [name for name in REQUIRED[1:] if name not in sources]
    missing = ([] if set(TIMES) & set(sources) else ["arrival_s"]) + missing
    if missing or not set(LATENCIES) & set(sources):
        missing += [] if set(LATENCIES) & set(sources) else [f"one of {', '.join(LATENCIES)}"]
        line = columns_flag(sorted(present), [*sources, *(["arrival_s"] if "sent_s" in sources else [])])
        raise unusable(
            label,
            f"has no column {', '.join(missing)}; it has {', '.join(sorted(present)[:12])}",
            f"Its names suggest: {line}" if line else "Name the columns for them: --columns ttft_ms=first_token[s] …",
        )
    return sources


def _expression(column: str, column_type: str, source: Source, column_types: Mapping[str, str]) -> str:
    """Return SQL for a column of ``production_requests``; null for a value that is not of its type."""
    name = f"given.{quote(source.column)}" if source.value is None else literal(source.value)
    if column == "status":
        text = f"lower(trim(coalesce({name}::varchar, '')))"
        return (
            f"case when {text} in {GOOD} then 'ok' when {text} in ('cancelled', 'warmup') then {text} else 'error' end"
        )
    if column_type == "string":
        return f"nullif({name}::varchar, '')"
    if column_type.startswith("list"):
        return f"try_cast({name} as {'BIGINT' if 'int' in column_type else 'FLOAT'}[])"
    if column in TIMES and column_types.get(source.column, "").startswith(("TIMESTAMP", "DATE")):
        return (
            f"epoch_ns({name}::timestamp_ns) / 1e9" if "ZONE" not in column_types[source.column] else f"epoch({name})"
        )
    number = f"{source.factor!r} * try_cast({name} as double)"
    if column in TIMES:
        return f"coalesce({number}, epoch(try_cast({name}::varchar as timestamptz)))"
    return number if column_type == "float64" else f"try_cast({name} as bigint)"


def _check_zones(
    connection: duckdb.DuckDBPyConnection, label: str, sources: Mapping[str, Source], column_types: Mapping[str, str]
) -> None:
    """Check that dates as text have a time zone, without which logs cannot be aligned; InvalidInput: one has none."""
    for column in TIMES:
        source = sources.get(column)
        if source is None or source.value is not None or column_types[source.column] != "VARCHAR":
            continue
        name = f"given.{quote(source.column)}"
        without_zone = connection.execute(
            f"select {name} from given where try_cast({name} as double) is null and try_cast({name} as timestamp) is "
            f"not null and not regexp_matches(trim({name}), '{_ZONE}') limit 1"
        ).fetchall()
        if without_zone:
            advice = "Write times in seconds, or dates with their zone, such as 2026-11-22T10:00:00Z."
            raise unusable(label, f"has {column} {without_zone[0][0][:40]!r} without a time zone", advice)


FORMAT = LogFormat(NAME, "requests", "a CSV, JSONL or Parquet table with arrival_s, prompt_tokens, output_tokens and a "
                   "latency", _recognises, read_plain)  # fmt: skip
