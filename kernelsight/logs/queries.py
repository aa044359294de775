"""Reader of logs whose records are read by SQL (requests, engine steps, samples of power), by ``log_queries.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import duckdb
import polars as pl

from kernelsight.catalog.tables import catalogue_yaml
from kernelsight.dataflow.databases import cursor_for_values, first_line, literal, quote
from kernelsight.files.row_faults import Faults
from kernelsight.logs.files import DAMAGED, LogFile, documents, unusable
from kernelsight.logs.log_run import FILE_ROW, LogFormat, LogRun
from kernelsight.logs.plain import EARLIEST_UNIX, count_ragged, csv_source
from kernelsight.logs.reports import statistics_of_result
from kernelsight.logs.send_times import times_of_sending, with_times
from kernelsight.logs.steps import finish_steps
from kernelsight.logs.summaries import statistics_of_requests
from kernelsight.logs.windows import windows_of

LONGEST_RECORD = 1 << 25  # bytes; each thread reads into two buffers of this size
# metric of production_windows of a form's samples: power of a GPU, W
POWER = "DCGM_FI_DEV_POWER_USAGE"


def _recognises(file: LogFile, form: Mapping[str, Any]) -> bool:
    """Whether a file has the fields of a form, or of the statistics that its tool writes beside it."""
    if file.kind != ("text" if "matches" in form else "json"):
        return False
    if "matches" in form:
        header = form.get("header", {}).get("is")
        return _is_table(file, form) or bool(header and re.search(header, file.text[:4096], re.MULTILINE))
    return _has(file, form["any"]) or _has(file, form.get("beside", {}).get("any", ()))


def _is_table(file: LogFile, form: Mapping[str, Any]) -> bool:
    return all(_column(file, pattern) for pattern in form["matches"].values())


def _column(file: LogFile, pattern: str) -> str | None:
    return next((name for name in file.columns if re.fullmatch(pattern, name)), None)


def _has(file: LogFile, alternatives: Sequence[Sequence[str]]) -> bool:
    return any(set(fields) <= file.fields for fields in alternatives)


def _read(files: Sequence[LogFile], form: Mapping[str, Any]) -> list[LogRun]:
    """Return one run per file of records; statistics of the same folder are added, alone they are a run of their own.

    InvalidInput: no record, records of another version, or samples of one moment.
    """
    beside, header = form.get("beside"), form.get("header")
    if header:
        texts = [file.text for file in files if not _is_table(file, form)]
        files = [file for file in files if _is_table(file, form)] or [*files]
        form = {**form, "columns": _with_header(form["columns"], texts, header["values"])}
        if not _is_table(files[0], form):
            raise unusable(files[0].path, *header["alone"])
    exports = [file for file in files if beside and _has(file, beside["any"]) and not _has(file, form["any"])]
    runs = [_run(file, form, exports) for file in files if file not in exports]
    folders = {run.file.path.parent for run in runs}
    for file in exports:
        if file.path.parent not in folders:
            run = LogRun(file, form["form"])
            _add_export(run, file, beside)
            run.faults.add("statistics_only", 1, None, f"; give {beside['records']} too")
            runs.append(run)
    return runs


def _with_header(columns: str, texts: Sequence[str], values: Mapping[str, Sequence[str]]) -> str:
    """Return SQL with the values that headers beside a table state, each by its pattern, or as stated without one."""
    for name, (pattern, without) in values.items():
        found = (re.search(pattern, text, re.MULTILINE) for text in texts)
        columns = columns.replace(f"{{{name}}}", literal(next((match[1] for match in found if match), without)))
    return columns


def _run(file: LogFile, form: Mapping[str, Any], exports: Sequence[LogFile]) -> LogRun:
    run = LogRun(file, form["form"], clock=form.get("clock", "unix"))
    drops = form.get("drops", {})
    rules = drops | form.get("notes", {})
    columns = form["columns"] + "".join(f', coalesce({sql}, false) as "{rule}"' for rule, sql in rules.items())
    columns = columns.replace("{file}", literal(file.name))
    for name, pattern in (form.get("matches", {}) | form.get("optional", {})).items():
        columns = columns.replace(f"{{{name}}}", quote(column) if (column := _column(file, pattern)) else "null")
    frame = _csv_rows(file, columns, run) if "matches" in form else _json_rows(file, form, columns, run)
    if "refused" in frame.columns and (said := frame["refused"].drop_nulls()).len():
        raise unusable(file.path, said[0], form["refused"])
    for rule in rules:
        counted = frame.filter(rule)
        example = counted["external_id" if "external_id" in counted.columns else "line"].first()
        run.faults.add(rule, counted.height, f"line {example}" if isinstance(example, int) else example)
        frame = frame.filter(~pl.col(rule)) if rule in drops else frame
    frame = frame.drop([*rules.keys(), *(name for name in frame.columns if name == "refused")])
    for export in exports:
        if export.path.parent == file.path.parent:
            _add_export(run, export, form["beside"])
    if form.get("role") == "steps":
        finish_steps(run, frame)
    elif form.get("role") == "metrics":
        _add_windows(run, frame, form)
    elif "sends" in form:
        _add_times(run, frame, form)
    else:
        run.requests = frame.rename({"line": FILE_ROW})
    return run


def _json_rows(file: LogFile, form: Mapping[str, Any], columns: str, run: LogRun) -> pl.DataFrame:
    return json_rows(file, _types(form["fields"]), columns, form["is_record"], run.faults)


def json_rows(
    file: LogFile, fields: Mapping[str, str], columns: str, is_record: str, faults: Faults | None = None
) -> pl.DataFrame:
    """Return ``columns``, a SQL select list over the file's JSON objects with ``fields`` (DuckDB types by name).

    Other fields are not read. The column ``line`` is the number of the record from 1. A line that is no object, or
    for which the SQL boolean ``is_record`` is not true, is counted in ``faults`` as unreadable_line.
    InvalidInput: damaged compression, a single document that is not JSON, or no record at all.
    """
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


def _types(fields: Mapping[str, Any]) -> dict[str, str]:
    by_type = {name: kind for kind, names in fields.items() if isinstance(names, list) for name in names}
    return by_type | {name: kind for name, kind in fields.items() if isinstance(kind, str)}


def _csv_rows(file: LogFile, columns: str, run: LogRun) -> pl.DataFrame:
    connection = cursor_for_values()
    try:
        frame = connection.sql(f"select row_number() over () as line, {columns} from {csv_source(file)} as rows").pl()
        count_ragged(connection, file, run)
    except duckdb.Error as problem:
        raise unusable(file.path, f"cannot be read as a table ({first_line(problem)})", DAMAGED) from None
    finally:
        connection.close()
    return frame


def _add_export(run: LogRun, file: LogFile, beside: Mapping[str, Any]) -> None:
    """Add the statistics of an export to a run, and what its columns state: settings where the name has a dot."""
    run.summaries += statistics_of_result(next(documents(file))[1], beside["statistics"])
    stated = json_rows(file, _types(beside["fields"]), beside["columns"], "true").drop("line").row(0, named=True)
    run.settings |= {name: (value, beside["place"]) for name, value in stated.items() if "." in name and value}
    run.stated |= {name: value for name, value in stated.items() if "." not in name}


def _add_times(run: LogRun, frame: pl.DataFrame, form: Mapping[str, Any]) -> None:
    """Add requests without times, sent as the client sends them; without its number of users their statistics alone."""
    users = run.stated.get("max_concurrency")
    if users:
        latencies_s = [None if value is None else value / 1e3 for value in frame["e2e_ms"].to_list()]
        sent = times_of_sending({"request_rate": form["sends"], "max_concurrency": users}, latencies_s)
        run.requests = with_times(frame, sent, run.faults).rename({"line": FILE_ROW})
    else:
        run.summaries, run.clock = statistics_of_requests(frame.filter(pl.col("status") == "ok")), "none"
        run.faults.add("statistics_only", 1, None, f"; {form['without_users']}")


def _add_windows(run: LogRun, frame: pl.DataFrame, form: Mapping[str, Any]) -> None:
    """Add windows between consecutive samples: mean power of all GPUs of a machine; InvalidInput: of no GPU two."""
    good = frame.filter(pl.col("time").is_finite() & pl.col("value").is_finite() & (pl.col("value") >= 0.0))
    run.faults.add("unreadable_value", frame.height - good.height, form["form"])
    run.windows = windows_of(good.select(pl.lit(POWER).alias("metric"), pl.exclude("line")), run.faults, True)
    if not run.windows.height:
        raise unusable(run.file.path, "has no two samples of a GPU", "Give several moments: time, GPU and power in W.")
    run.clock = "unix" if good["time"].min() >= EARLIEST_UNIX else "none"  # type: ignore[operator]


def formats() -> tuple[LogFormat, ...]:
    """Return the formats of ``catalog/log_queries.yaml``."""
    return tuple(
        LogFormat(
            *(form["form"], form.get("role", "requests"), form["written_by"]),
            *(partial(_recognises, form=form), partial(_read, form=form)),
        )
        for form in catalogue_yaml("log_queries")
    )
