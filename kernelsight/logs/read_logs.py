"""Logs of any known format as tables: ``production_*`` and ``log_faults``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import as_arrow, conform
from kernelsight.dataflow.databases import cursor_for_values, first_line
from kernelsight.dataflow.rows import as_table
from kernelsight.errors import InvalidInput, unknown
from kernelsight.files.row_faults import Faults
from kernelsight.logs.files import DAMAGED, LogFile, open_log, unusable
from kernelsight.logs.folders import ROLES, GivenFile, open_folder
from kernelsight.logs.log_run import FILE_ROW, LogFormat, LogRun, fault_rows
from kernelsight.logs.plain import read_plain, read_rows
from kernelsight.logs.registry import PLAIN, format_named, formats_of, recognise, with_known_fields
from kernelsight.logs.requests import finish_requests, first_time, possible_rows

TABLES = (
    *("production_logs", "production_requests", "production_steps", "production_windows"),
    *("production_kernels", "production_settings", "production_summaries", "log_faults", "production_files"),
)
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def is_table(requests: Any) -> bool:
    """Whether requests are a table in memory or a list of dicts, rather than paths.

    >>> is_table([{"arrival_s": 0.0}]), is_table("day.csv"), is_table(["day.csv"])
    (True, False, False)
    """
    return hasattr(requests, "__arrow_c_stream__") or (
        isinstance(requests, list) and bool(requests) and isinstance(requests[0], dict)
    )


def read_logs(
    paths: Paths = (),
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    steps: Paths = (),
    metrics: Paths = (),
    kernels: Paths = (),
) -> dict[str, pa.Table]:
    """Return the TABLES by name, read from logs of requests, and of ``steps``, ``metrics`` and ``kernels``.

    Files are recognised by their fields, unless ``format`` names the format of ``paths``. A folder among ``paths``
    stands for all of its files, whatever their role: see ``production_files``. ``columns``: for a plain table, its
    column by column of ``production_requests``, such as ``{"ttft_ms": "first[s]", "ttft_clock": "=gateway"}``. Rows
    that are left out are counted in ``log_faults``. Times are seconds after each log's first one. InvalidInput: a file
    that cannot be read, or whose requests have no latency.
    """
    files_given, rows = _files_given(paths, format, columns)
    return _all_tables([], files_given + _files_by_role(steps, metrics, kernels), rows, columns)


def read_requests(
    path: str | os.PathLike[str], format: str, columns: Mapping[str, str] | None
) -> tuple[pl.DataFrame, Faults]:
    """Return the requests in a part of a log as rows of ``production_requests``, and the faults of rows that are none.

    Times are those of the log's own clock; a part may hold failed requests alone. InvalidInput: as of ``read_logs``.
    """
    given, faults = _open_file(path, "requests", format, columns), Faults()
    runs = [run for run in _read_files(given.format, [given.file], columns) if run.requests is not None]
    frames = [finish_requests(run, is_whole=False) for run in runs]
    for run, requests in zip(runs, frames, strict=True):
        _checked_frame("production_requests", requests.with_columns(pl.lit("").alias("log_id")), given.file.path)
        faults.add_all(run.faults)
    return pl.concat(frames).drop(FILE_ROW), faults


def read_table(
    requests: Any,
    columns: Mapping[str, str] | None = None,
    steps: Paths = (),
    metrics: Paths = (),
    kernels: Paths = (),
) -> dict[str, pa.Table]:
    """Return the TABLES as ``read_logs`` does, for requests in a table in memory (anything with __arrow_c_stream__)."""
    file = LogFile(Path("requests"), b"", "parquet", False)
    run = LogRun(file, PLAIN)
    connection = cursor_for_values()
    try:
        connection.register("given", as_arrow(requests, "production_requests"))
        read_rows(connection, run, "requests", dict(columns or {}))
    except duckdb.Error as problem:
        raise InvalidInput(f"requests cannot be read as a log ({first_line(problem)}).") from None
    finally:
        connection.close()
    return _all_tables([run], _files_by_role(steps, metrics, kernels), [], None)


def _all_tables(
    runs: list[LogRun],
    files_given: list[GivenFile],
    unread_rows: list[dict[str, Any]],
    columns: Mapping[str, str] | None,
) -> dict[str, pa.Table]:
    """Return the TABLES of runs and of files; files of one format are read together.

    ``unread_rows``: rows of ``production_files`` of files that are not read.
    """
    if not runs and not files_given:
        raise InvalidInput("no log was given; give at least one file.")
    files_given.sort(key=lambda given_file: ROLES.index(given_file.role))
    by_format: dict[tuple[str, LogFormat], list[LogFile]] = {}
    for given_file in files_given:
        by_format.setdefault((given_file.role, given_file.format), []).append(given_file.file)
    tables = _tables(
        runs + [run for (_, log_format), files in by_format.items() for run in _read_files(log_format, files, columns)]
    )
    rows = [given_file.row() for given_file in files_given] + unread_rows
    tables["production_files"] = _checked_rows(
        "production_files", list({row["path"]: row for row in rows}.values()), "its files"
    )
    return tables


def _files_by_role(steps: Paths, metrics: Paths, kernels: Paths) -> list[GivenFile]:
    by_role = {"steps": steps, "metrics": metrics, "kernels": kernels}
    return [_open_file(path, role) for role, paths in by_role.items() for path in _as_list(paths)]


def _files_given(
    paths: Paths, name: str, columns: Mapping[str, str] | None
) -> tuple[list[GivenFile], list[dict[str, Any]]]:
    """Return the files of ``paths``, those of folders among them, and rows of ``production_files`` of unread ones."""
    files_given, rows = [], []
    for path in _as_list(paths):
        if not Path(path).is_dir():
            files_given.append(_open_file(path, "requests", name, columns))
        elif columns:
            raise unusable(path, "is a folder, and --columns names those of one table", "Give the table's file.")
        else:
            folder = open_folder(path, name)
            files_given += folder.files
            rows += folder.rows()
    return files_given, rows


def _as_list(paths: Paths) -> list[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


def _open_file(
    path: str | os.PathLike[str], role: str, name: str = "auto", columns: Mapping[str, str] | None = None
) -> GivenFile:
    """Return a file with its format; with ``columns`` it is a plain table, unless they are values for all rows."""
    file = open_log(path)
    if columns and name in ("auto", PLAIN) and not (are_values(columns) and formats_of(file)):
        return GivenFile(file, format_named(PLAIN), role)
    file = with_known_fields(file)
    log_format = recognise(file, role) if name == "auto" else format_named(name)
    return GivenFile(file, log_format, log_format.role)


def _read_files(log_format: LogFormat, files: Sequence[LogFile], columns: Mapping[str, str] | None) -> list[LogRun]:
    """Return the runs of files of one format; InvalidInput, without quoting values: values of other types."""
    try:
        if log_format.name == PLAIN:
            return read_plain(files, columns)
        return [with_values(run, columns or {}) for run in log_format.read(files)]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError, RecursionError) as problem:
        raise _wrong_types(log_format, files, problem) from None
    except (pl.exceptions.PolarsError, pa.ArrowException, duckdb.Error) as problem:
        raise _wrong_types(log_format, files, problem) from None


def are_values(columns: Mapping[str, str]) -> bool:
    """Whether all of ``--columns`` are values for all rows, such as ``=512``, and no columns of a table."""
    return all(file_column.startswith("=") for file_column in columns.values())


def with_values(run: LogRun, columns: Mapping[str, str]) -> LogRun:
    """Return a run whose requests have the stated value of each column where they have none of their own."""
    known = {column.name: column.arrow_type for column in contracts()["production_requests"].columns}
    for name, value in columns.items() if run.requests is not None else ():
        if name not in known:
            raise unknown("column", name, list(known), "--columns takes our name = the name in the file.")
        stated = pl.Series([value[1:]]).cast(pl.from_arrow(pa.array([], known[name])).dtype, strict=False)
        if stated.null_count():
            raise InvalidInput(f"--columns {name}={value} is no value of {name}; write {name}==512, for example.")
        own = [pl.col(name)] if name in run.requests.columns else []
        run.requests = run.requests.with_columns(pl.coalesce(*own, pl.lit(stated.item())).alias(name))
    return run


def _wrong_types(log_format: LogFormat, files: Sequence[LogFile], problem: Exception) -> InvalidInput:
    """Return the error for files that have the fields of a format with values of other types."""
    names = ", ".join(str(file.path) for file in files[:3])
    difference = f"is not as {log_format.written_by} writes it ({type(problem).__name__})"
    return unusable(names, difference, "Write it again, or name its format with --log-format.")


def _tables(runs: Sequence[LogRun]) -> dict[str, pa.Table]:
    """Return the tables of all runs, concatenated by name."""
    monotonic_runs = [run for run in runs if run.requests is not None and run.clock == "monotonic"]
    for run in monotonic_runs if len(monotonic_runs) > 1 else ():
        run.faults.add("no_common_clock", run.requests.height)
    frames: dict[str, list[pa.Table]] = {table: [] for table in TABLES}
    for log_id, run in zip(_log_ids(runs), runs, strict=True):
        for table, log_rows in _tables_of(log_id, run).items():
            if log_rows.num_rows:
                frames[table].append(log_rows)
    empty = {table: contracts()[table].schema.empty_table() for table in TABLES}
    return {table: pa.concat_tables(log_tables) if log_tables else empty[table] for table, log_tables in frames.items()}


def _log_ids(runs: Sequence[LogRun]) -> list[str]:
    """Return the log_id of each run: its file's name, with the folder or a number if several have the same name."""
    names = [run.file.name for run in runs]
    if len({(run.file.name, run.file.path) for run in runs}) > len(set(names)):
        names = [f"{run.file.path.resolve().parent.name}/{run.file.name}" for run in runs]
    occurrences: dict[str, int] = {}
    for index, name in enumerate(names):
        occurrences[name] = occurrences.get(name, 0) + 1
        names[index] = f"{name}#{occurrences[name]}" if names.count(name) > 1 or occurrences[name] > 1 else name
    return names


def _tables_of(log_id: str, run: LogRun) -> dict[str, pa.Table]:
    """Return the tables of one run, checked, with times in seconds after its first one."""
    if run.requests is not None:
        run.requests = finish_requests(run)
    requests = run.requests
    starts = [first_time(frame) for frame in (requests,) if frame is not None]
    starts += [
        frame[name].min() for frame, name in ((run.steps, "at_s"), (run.windows, "start_s")) if frame is not None
    ]
    start = min((value for value in starts if value is not None), default=None)
    if requests is not None and start is None:
        run.clock = "none"
    path = run.file.path
    tables = {"production_logs": _checked_rows("production_logs", [_log_row(log_id, run, requests, start)], path)}
    frames = (
        ("production_requests", requests, ("arrival_s", "sent_s")),
        ("production_steps", run.steps, ("at_s",)),
        ("production_windows", run.windows, ("start_s", "end_s")),
        ("production_kernels", run.kernels, ()),
    )
    for table, frame, times in frames:
        if frame is not None:
            relative_times = [(pl.col(name) - (start or 0.0)).clip(0.0) for name in times]
            log_frame = frame.with_columns([*relative_times, pl.lit(log_id).alias("log_id")])
            possible = log_frame if frame is requests else possible_rows(table, log_frame, run.faults)
            tables[table] = _checked_frame(table, possible, path)
    settings = [
        {"log_id": log_id, "setting": name, "found": value, "found_in": place}
        for name, (value, place) in run.settings.items()
    ]
    tables["production_settings"] = _checked_rows("production_settings", settings, path)
    summaries = [{"log_id": log_id} | row for row in run.summaries]
    tables["production_summaries"] = _checked_rows("production_summaries", summaries, path)
    tables["log_faults"] = _checked_rows("log_faults", fault_rows(run.faults, log_id), path)
    return tables


def _log_row(log_id: str, run: LogRun, requests: pl.DataFrame | None, start: float | None) -> dict[str, Any]:
    """Return the row of ``production_logs`` of a run; ``start``: its first time, s of its clock."""
    row: dict[str, Any] = {"log_id": log_id, "path": str(run.file.path), "format": run.format, "clock": run.clock}
    if run.clock == "unix" and start is not None:
        row["start_unix_s"] = start
    completed = 0 if requests is None else requests.filter(pl.col("status") == "ok").height
    row |= {"requests": 0 if requests is None else requests.height, "completed": completed}
    if requests is not None and start is not None and run.stated.get("duration_s") is None:
        end = requests.select((pl.col("sent_s") + pl.col("e2e_ms").fill_null(0.0) / 1e3).max()).item()
        row["duration_s"] = None if end is None else max(end - start, 0.0)
    return row | {name: value for name, value in run.stated.items() if value is not None}


def _checked_rows(table: str, rows: list[dict[str, Any]], path: Path | str) -> pa.Table:
    table_rows = as_table(contracts()[table], rows) if rows else contracts()[table].schema.empty_table()
    return conform(table_rows, contracts()[table], origin=str(path))


def _checked_frame(table: str, frame: pl.DataFrame, path: Path) -> pa.Table:
    """Return a frame as a table, checked against its contract; errors name the file, its row and the column."""
    names = [name for name in contracts()[table].column_names if name in frame.columns]
    too_large = [name for name in names if frame[name].dtype == pl.Int128]
    if too_large:
        raise unusable(path, f"has a number beyond 64 bits for {', '.join(too_large)}", DAMAGED)
    numbers = frame[FILE_ROW] if FILE_ROW in frame.columns else None
    checked = conform(frame.select(names).to_arrow(), contracts()[table], origin=str(path), rows=numbers)
    return _with_shared_nulls(checked)


def _with_shared_nulls(table: pa.Table) -> pa.Table:
    """Return a table whose columns without any value share one buffer, as most columns of a long log are empty."""
    n = table.num_rows
    zeros = pa.py_buffer(bytes(8 * (n + 1)))

    def nulls(arrow_type: pa.DataType) -> pa.Array:
        if pa.types.is_list(arrow_type):
            return pa.Array.from_buffers(
                arrow_type, n, [zeros, zeros], n, children=[pa.array([], arrow_type.value_type)]
            )
        return pa.Array.from_buffers(arrow_type, n, [zeros] * (3 if pa.types.is_string(arrow_type) else 2), n)

    columns = [nulls(column.type) if n and column.null_count == n else column for column in table.columns]
    return pa.table(columns, schema=table.schema)
