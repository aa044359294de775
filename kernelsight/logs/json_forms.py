"""Reader of logs with one JSON object a request, by the forms of ``catalog/json_logs.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from kernelsight import catalog
from kernelsight.caches.disk_cache import cached_for_program
from kernelsight.catalog.tables import program
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import parse_yaml
from kernelsight.files.own import own_text
from kernelsight.logs.files import LogFile
from kernelsight.logs.json_rows import json_rows
from kernelsight.logs.log_run import FILE_ROW, LogFormat, LogRun

FORMS_FILE = Path(catalog.__file__).parent / "json_logs.yaml"


def _recognises(file: LogFile, form: Mapping[str, Any]) -> bool:
    return file.kind == "json" and any(set(fields) <= file.fields for fields in form["any"])


def _read(files: Sequence[LogFile], form: Mapping[str, Any]) -> list[LogRun]:
    """Return one run per file, with unix times; requests that a rule of the form drops are counted."""
    return [_run(file, form) for file in files]


def _run(file: LogFile, form: Mapping[str, Any]) -> LogRun:
    run = LogRun(file, form["form"], clock="unix")
    drops = form.get("drops", {})
    rules = drops | form.get("notes", {})
    columns = form["columns"] + "".join(f', coalesce({sql}, false) as "{rule}"' for rule, sql in rules.items())
    types = {name: kind for kind, names in form["fields"].items() for name in names}
    frame = json_rows(file, types, columns, form["is_record"], run.faults)
    for rule in rules:
        counted = frame.filter(rule)
        run.faults.add(rule, counted.height, counted["external_id"].first() if counted.height else None)
        frame = frame.filter(~pl.col(rule)) if rule in drops else frame
    run.requests = frame.drop(rules.keys()).rename({"line": FILE_ROW})
    return run


def _forms() -> list[dict[str, Any]]:
    return cached_for_program(program(), "json_logs", lambda: parse_yaml(own_text(FORMS_FILE), InvalidInput)[0])


FORMATS = tuple(
    LogFormat(form["form"], "requests", form["written_by"], partial(_recognises, form=form), partial(_read, form=form))
    for form in _forms()
)
