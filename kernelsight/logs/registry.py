"""Registry of log formats, one module of this folder each, and recognition of a file's format by its fields."""

from __future__ import annotations

from kernelsight.errors import InvalidInput, unknown
from kernelsight.logs import (
    aiperf,
    aiperf_power,
    blis,
    forward_kernels,
    fpm,
    guidellm,
    inference_perf,
    litellm,
    measured_runs,
    otlp,
    plain,
    power_table,
    profiles,
    prometheus,
    reports,
    sglang_bench,
    sglang_requests,
    vllm_bench,
    vllm_iterations,
)
from kernelsight.logs.files import LogFile
from kernelsight.logs.log_run import LogFormat
from kernelsight.logs.proposed_columns import columns_flag

PLAIN = plain.FORMAT.name
FORMATS: tuple[LogFormat, ...] = (
    vllm_bench.FORMAT,
    sglang_bench.FORMAT,
    sglang_requests.FORMAT,
    guidellm.FORMAT,
    aiperf.FORMAT,
    inference_perf.FORMAT,
    litellm.FORMAT,
    otlp.FORMAT,
    blis.FORMAT,
    measured_runs.FORMAT,
    plain.FORMAT,
    *reports.report_formats(),
    fpm.FORMAT,
    vllm_iterations.FORMAT,
    prometheus.FORMAT,
    power_table.FORMAT,
    aiperf_power.FORMAT,
    forward_kernels.FORMAT,
    profiles.CHROME,
    profiles.NSYS,
)
FLAGS = {"requests": "--log", "steps": "--steps", "metrics": "--metrics", "kernels": "--kernels"}


def format_named(name: str) -> LogFormat:
    """Return the format of requests with a name; UnknownName: there is none.

    >>> format_named("aiperf").written_by
    'aiperf profile (profile_export.jsonl)'
    """
    for log_format in FORMATS:
        if log_format.name == name and log_format.role == "requests":
            return log_format
    raise unknown(
        "log format", name, format_names("requests"), f"Known formats: {', '.join(format_names('requests'))}."
    )


def format_names(role: str) -> list[str]:
    """Return the names of the formats for a role, in order of the registry.

    >>> format_names("metrics")
    ['prometheus', 'power-table', 'aiperf-power']
    """
    return [log_format.name for log_format in FORMATS if log_format.role == role]


def with_known_fields(file: LogFile) -> LogFile:
    """Return the file, with the fields of all of it if no format fits the fields of its first bytes."""
    return file if formats_of(file) else file.entire()


def formats_of(file: LogFile) -> list[LogFormat]:
    """Return the formats that recognise a file: of a role those with a module of their own before forms of rows."""
    found = [log_format for log_format in FORMATS if log_format.recognises(file)]
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
    if len(of_role) > 1:
        names = " and of ".join(log_format.name for log_format in of_role)
        raise InvalidInput(f"log {file.path} has the fields of {names}; name its format with --log-format.")
    formats = "; ".join(f"{f.name}: {f.written_by}" for f in FORMATS if f.role == role)
    if candidates:
        other_format = candidates[0]
        raise InvalidInput(
            f"log {file.path} is {other_format.written_by}; give it with {FLAGS[other_format.role]} instead of "
            f"{FLAGS[role]}. Files for {FLAGS[role]}: {formats}."
        )
    if role == "requests" and (line := columns_flag(sorted(plain.columns_of(file)))):
        raise InvalidInput(
            f"log {file.path} is of no known format, and looks like a table of requests: {fields_shown(file)}. "
            f"Try {line}"
        )
    raise InvalidInput(f"log {file.path} is of no known format: {fields_shown(file)}. Known formats: {formats}.")


def fields_shown(file: LogFile) -> str:
    """Return a description of a file by its outer field names; lines of a text, possibly prompts or secrets, are not
    quoted, and so is no first line without the columns of a table of requests."""
    if file.kind == "sqlite":
        return "it is an SQLite database"
    if file.kind == "text" and (len(file.columns) < 2 or max(map(len, file.columns)) > 40):
        return "it is a text without a header of fields"
    if file.kind == "text" and not columns_flag(sorted(file.columns)):
        return f"it is a text with {len(file.columns)} columns"
    outer = sorted(name for name in file.fields if name.count(".") < 2 and len(name) <= 40)
    shown = ", ".join(outer[:12]) + (", …" if len(outer) > 12 else "")
    return f"its fields are {shown}" if shown else "it has no named fields"
