"""Common types of log readers: LogRun, the content of one run of a file; LogFormat; rules for dropped rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.catalog.tables import catalogue_yaml
from kernelsight.files.row_faults import Faults

if TYPE_CHECKING:
    import polars as pl

    from kernelsight.logs.files import LogFile

# column with the number of a request's row in its file, from 1: for error messages, in no table
FILE_ROW = "file_row"


def rules() -> dict[str, tuple[str, str]]:
    """Return (what happens to its rows, the explanation for users) by rule."""
    return catalogue_yaml("log_rules")


_FAULT = ("log_id", "rule", "n", "rows", "example", "explanation")


def fault_rows(faults: Faults, log_id: str) -> list[dict[str, Any]]:
    """Return the rows of ``log_faults``."""
    return [
        dict(zip(_FAULT, (log_id, rule, n, rules()[rule][0], example, rules()[rule][1] + more), strict=True))
        for rule, (n, example, more) in faults.counted.items()
    ]


@dataclass
class LogRun:
    """Content of one run of a file: frames with the columns of production_* tables, without log_id.

    Times are absolute, in seconds of ``clock``.
    """

    file: LogFile
    format: str
    clock: str = "none"  # unix, monotonic, none
    requests: pl.DataFrame | None = None
    steps: pl.DataFrame | None = None
    windows: pl.DataFrame | None = None
    kernels: pl.DataFrame | None = None
    summaries: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)  # by setting: value, and its place in the file
    stated: dict[str, Any] = field(default_factory=dict)  # columns of production_logs that the file states
    faults: Faults = field(default_factory=Faults)


class LogFormat(NamedTuple):
    """A log format: ``recognises`` checks one file, ``read`` returns the runs of all its files together."""

    name: str
    role: str  # requests, steps, metrics or kernels
    written_by: str
    recognises: Callable[[LogFile], bool]
    read: Callable[[Sequence[LogFile]], list[LogRun]]
    by_rows: bool = False  # a form of log_forms, whose signature is loose: formats with a module go before it


_KIND_OF_ERROR = re.compile(r"\b([A-Za-z_.]*(?:Error|Exception|Timeout|Disconnected|Refused))\b")
_PHRASE_STATUS = {status.phrase: status.value for status in HTTPStatus if status.value >= 400}
_PHRASES = re.compile(f"({'|'.join(map(re.escape, _PHRASE_STATUS))})")
_HTTP_STATUS = re.compile(r"\b([45]\d\d)\b")


def object_in(container: Any, name: str) -> Mapping[str, Any]:
    """Return the object under a name in a JSON value; an empty one if there is none."""
    value = container.get(name) if isinstance(container, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def kind_of_error(text: object) -> str:
    """Return the exception class or HTTP status in an error's text, else "other"; the text itself may hold prompts."""
    phrase = _PHRASES.match(str(text))
    if phrase:
        return f"HTTP {_PHRASE_STATUS[phrase.group(1)]}"
    names = _KIND_OF_ERROR.findall(str(text))
    names = [name.rpartition(".")[2] for name in names if name.strip(".") not in ("Error", "Exception")]
    if names:
        return names[-1][:60]
    status = _HTTP_STATUS.search(str(text)[:200])
    return f"HTTP {status.group(1)}" if status else "other"
