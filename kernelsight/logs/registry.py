"""Registry of log formats, one module of this folder each, and recognition of a file's format by its fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from kernelsight import errors
from kernelsight.catalog.tables import contracts, facts
from kernelsight.errors import InvalidInput, unknown
from kernelsight.logs import (
    bench_results,
    forward_kernels,
    genai_perf,
    guidellm,
    inference_perf,
    measured_runs,
    otlp,
    plain,
    profile_tables,
    profiles,
    prometheus,
    queries,
    reports,
    server_lines,
)
from kernelsight.logs.files import LogFile
from kernelsight.logs.log_run import LogFormat
from kernelsight.scenario.proposed_columns import LATENCIES, REQUIRED, columns_flag, flag_of, proposed_columns
from kernelsight.serving.load.trace_formats import formats as trace_formats

PLAIN = plain.FORMAT.name
# fields of prompts and answers
TEXTS = ("messages", "conversations", "prompt", "input_text")
# readers of forms of log_forms, by their layout
BY_LAYOUT = {"text": reports, "json": reports, "lines": server_lines, "table": profile_tables}
FLAGS = {"requests": "--log", "steps": "--steps", "metrics": "--metrics", "kernels": "--kernels"}


@cache
def formats() -> tuple[LogFormat, ...]:
    """Return all formats: those with a module of their own, of queries, and of the rows of ``log_forms``."""
    return (
        *bench_results.FORMATS,
        *queries.formats(),
        *(module.FORMAT for module in (guidellm, genai_perf, inference_perf, otlp, measured_runs, plain)),
        *map(_of_row, facts("log_forms").to_pylist()),
        *(prometheus.FORMAT, forward_kernels.FORMAT, profiles.CHROME, profiles.NSYS),
    )


def _of_row(row: dict[str, str]) -> LogFormat:
    reader = BY_LAYOUT[row["layout"]]
    functions = partial(reader.recognises, form=row), partial(reader.read, form=row)
    return LogFormat(row["form"], row["role"], row["written_by"], *functions, by_rows=True)


def format_named(name: str) -> LogFormat:
    """Return the format of requests with a name; UnknownName: there is none."""
    for log_format in formats():
        if log_format.name == name and log_format.role == "requests":
            return log_format
    raise unknown(
        "log format", name, format_names("requests"), f"Known formats: {', '.join(format_names('requests'))}."
    )


def format_names(role: str) -> list[str]:
    """Return the names of the formats for a role, in order of the registry."""
    return [log_format.name for log_format in formats() if log_format.role == role]


def with_known_fields(file: LogFile) -> LogFile:
    """Return the file, with the fields of all of it if no format fits the fields of its first bytes."""
    return file if formats_of(file) else file.entire()


def formats_of(file: LogFile) -> list[LogFormat]:
    """Return the formats that recognise a file: of a role those with a module of their own before forms of rows."""
    found = [log_format for log_format in formats() if log_format.recognises(file)]
    by_module = {log_format.role for log_format in found if not log_format.by_rows}
    return [log_format for log_format in found if not (log_format.by_rows and log_format.role in by_module)]


def recognise(file: LogFile, role: str) -> LogFormat:
    """Return the format of a role that recognises a file.

    InvalidInput: none, several, or only a format of another role does; the message has the file's fields.
    """
    candidates = formats_of(file)
    of_role = [log_format for log_format in candidates if log_format.role == role]
    if len(of_role) == 1:
        return of_role[0]
    if role == "requests" and not of_role and candidates and all(_is_server_log(f) for f in candidates):
        return candidates[0]  # what a server states of its load is compared without requests
    if len(of_role) > 1:
        names = " and of ".join(log_format.name for log_format in of_role)
        raise InvalidInput(f"log {file.path} has the fields of {names}; name its format with --log-format.")
    raise _unknown(file, role, candidates)


def _is_server_log(log_format: LogFormat) -> bool:
    return log_format.role == "metrics" and (log_format.by_rows or log_format is prometheus.FORMAT)


def _unknown(file: LogFile, role: str, candidates: Sequence[LogFormat]) -> InvalidInput:
    """Return the error for a file that no format of a role recognises, the likeliest cause alone; details: formats."""
    columns = plain.columns_of(file)
    line = columns_flag(sorted(columns)) if role == "requests" else None
    others = sorted({FLAGS[log_format.role] for log_format in candidates})
    if candidates:
        cause = f"is {candidates[0].written_by}; give it with {' or '.join(others)} instead of {FLAGS[role]}"
    elif line:
        cause = f"looks like a table of requests; try {line}"
    elif role == "requests" and any(set(trace.required()) <= columns for trace in trace_formats() if trace.arrival):
        cause = "is a trace: it has arrivals and lengths, and no latency to compare; replay it with simulate --trace"
    elif role == "requests" and any(name.rpartition(".")[2] in TEXTS for name in file.fields):
        cause = "holds texts, and no times of requests; as a load it is read by simulate --trace"
    elif role == "requests" and (found := reports.labels_in(file)):
        lacks = "a load (requests, duration or a rate)" if found & {*reports.LATENCIES} else "a latency"
        cause = f"states {', '.join(sorted(found)[:4])}, and lacks {lacks}; give the text as it was printed"
    elif role == "requests" and len(known := proposed_columns(sorted(columns))) > 1 and {*known} & {*LATENCIES}:
        *_, lacked = lacks = [column for column in REQUIRED if column not in known]
        cause = f"looks like a table of requests: {flag_of(known)}; it lacks {', '.join(lacks)}: add {lacked}=NAME"
    else:
        cause = f"is of no known format: {fields_shown(file)}"
    error = InvalidInput(f"log {file.path} {cause}" + ("" if cause.endswith(str(line)) else "."))
    error.details = "known formats: " + "; ".join(f"{f.name}: {f.written_by}" for f in formats() if f.role == role)
    return error


def fields_shown(file: LogFile) -> str:
    """Return a description of a file by those outer field names that resemble known ones: others, and lines of a text,
    may be prompts or secrets."""
    if file.kind == "sqlite":
        return "it is an SQLite database"
    if file.kind == "text" and (len(file.columns) < 2 or max(map(len, file.columns)) > 40):
        return "it is a text without a header of fields"
    outer = file.columns if file.kind == "text" else sorted(name for name in file.fields if name.count(".") < 2)
    known = {*contracts()["production_requests"].column_names, *(f for each in trace_formats() for f in each.fields())}
    return f"it has {errors.fields_found(outer, known)}" if outer else "it has no named fields"
