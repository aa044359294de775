"""Trace formats, recognised by the names of their fields (rows of ``trace_forms``), or as --columns maps them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight import errors
from kernelsight.catalog.tables import facts
from kernelsight.files.row_faults import Faults
from kernelsight.scenario.proposed_columns import columns_flag

CORRECT_LINE = "Correct or remove it."
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# names that are looked at: no trace has more fields
MOST_FIELDS = 10_000


class TraceFormat(NamedTuple):
    """The fields of a trace format; None: the format has no such field."""

    name: str
    arrival: str | None  # None: all were submitted at once
    prompt_tokens: str
    output_tokens: str
    arrivals_per_second: float | None  # units of the arrival field per second; None: date and time of day
    request_id: str | None = None
    hash_ids: str | None = None
    hash_block: str | int | None = None  # field with the tokens per block, or the format's fixed number
    priority: str | None = None
    adapter: str | None = None  # name of its adapter (LoRA)
    warmup: str | None = None  # 1: sent before the measured requests, and in no metric
    after: str | None = None  # id of the request that has to finish before this one is sent
    session: str | None = None  # requests of one session are its turns, in file order
    pause: str | None = None  # think time from the end of that request, or of the turn before, to sending this one
    pauses_per_second: float = 1.0  # units of the pause field per second
    no_output_is_failed: bool = False  # requests without output tokens are left out and counted

    def required(self) -> list[str]:
        """Return the required fields of every request."""
        return [field for field in (self.arrival, self.prompt_tokens, self.output_tokens) if field]

    def names(self) -> list[str]:
        """Return the fields that hold a name, as text or as a whole number."""
        return [field for field in (self.request_id, self.after, self.session, self.adapter) if field]

    def fields(self) -> list[str]:
        """Return all fields that are read."""
        optional = (
            self.request_id,
            self.hash_ids,
            self.hash_block,
            self.priority,
            self.adapter,
            self.warmup,
            self.after,
            self.session,
            self.pause,
        )
        return self.required() + [field for field in optional if isinstance(field, str)]


@cache
def formats() -> tuple[TraceFormat, ...]:
    """Return the formats of ``trace_forms``.

    >>> formats()[1].hash_block
    512
    """
    forms = facts("trace_forms")
    assert forms is not None
    rows = [{name: value for name, value in row.items() if name not in ("form", "source")} | {"name": row["form"]}
            for row in forms.to_pylist()]  # fmt: skip
    for row in rows:
        row["hash_block"] = int(row["hash_block"]) if (row["hash_block"] or "").isdigit() else row["hash_block"]
    return tuple(TraceFormat(**row) for row in rows)


class RawTrace(NamedTuple):
    """The columns of a trace file as they are, before checks, and the rows of it that cannot be used."""

    path: Path
    format: TraceFormat
    columns: pa.Table
    rows: np.ndarray  # number in the file of each row, from 0, without header and blank lines
    place_of: Callable[[int], str]  # from a number in the file to its place, such as "line 7"
    unused: Faults

    def column(self, field: str | int | None) -> pa.ChunkedArray:
        """Return a column of the trace; nulls if the trace has no such column."""
        if field in self.columns.column_names:
            return self.columns[field]
        return pa.chunked_array([pa.nulls(self.columns.num_rows)])

    def place(self, row: int) -> str:
        """Return the place in the file of a row of ``columns``."""
        return self.place_of(int(self.rows[row]))

    def fault(self, row: int, problem: str, advice: str = CORRECT_LINE) -> errors.InvalidInput:
        """Build the error for one row of ``columns``."""
        return errors.trace_place_unusable(self.path, self.place(row), problem, advice)

    def without(self, faults: list[Fault]) -> RawTrace:
        """Return the trace without the rows at fault, which are counted; InvalidInput names the first if all are."""
        faults.sort(key=lambda fault: int(fault.rows.argmax()))
        kept = ~np.logical_or.reduce([fault.rows for fault in faults])
        if not kept.any():
            raise self.fault(int(faults[0].rows.argmax()), faults[0].problem, faults[0].advice)
        left = np.ones(kept.size, bool)
        for rows, rule, problem, _ in faults:
            self.unused.add(rule, int((rows & left).sum()), self.place(int(rows.argmax())), problem)
            left &= ~rows
        return self._replace(columns=self.columns.filter(pa.array(kept)), rows=self.rows[kept])


class Fault(NamedTuple):
    """Rows of a trace that break a rule, shape [requests] bool; the problem of the first of them, and what to do."""

    rows: np.ndarray
    rule: str
    problem: str
    advice: str = CORRECT_LINE


# attribute of a format, by our name of a column
OURS = {
    **{"arrival_s": "arrival", "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens"},
    **{"request_id": "request_id", "hash_ids": "hash_ids", "hash_block_tokens": "hash_block", "priority": "priority"},
    **{"adapter": "adapter", "after": "after", "session_id": "session", "think_s": "pause"},
}


def recognise(path: Path, fields: list[str], columns: str | None = None) -> TraceFormat:
    """Return the format whose required fields are present; InvalidInput names those missing in the closest one.

    ``columns``: our columns and those of the file, joined by semicolons: ``arrival_s=ts[ms];prompt_tokens=in``.
    """
    if len(fields) > MOST_FIELDS:
        problem = f"it has {len(fields):,} fields, more than {MOST_FIELDS:,}"
        raise errors.trace_unusable(path, problem, "Give a row or an object for each request.")
    # other fields are not shown: the file may be no trace, and its first line a secret
    known = formats()
    names = {field for each in known for field in each.fields()}
    repeated = sorted(field for field, count in Counter(fields).items() if count > 1)
    if repeated:
        found = ", ".join(errors.familiar(repeated, names)) or "in its first line"
        raise errors.trace_unusable(path, f"duplicate columns {found}", "Keep one of each.")
    present = set(fields)
    nearest = max(
        known,
        key=lambda f: (
            len(set(f.required()) & present) - len(set(f.required()) - present) / 10,
            len(set(f.fields()) & present),
        ),
    )
    if columns:
        return _mapped(path, nearest if set(nearest.required()) <= present else known[0], fields, columns)
    missing = [field for field in nearest.required() if field not in fields]
    if missing and (line := columns_flag(fields, latencies=False)):
        raise errors.trace_unusable(path, "its columns have other names", f"Try {line}")
    if len(missing) == len(nearest.required()):
        problem = f"unknown format with {errors.fields_found(fields, names)}"
        error = errors.trace_unusable(path, problem, "Map them: --columns arrival_s=… prompt_tokens=… output_tokens=…")
        forms = "; ".join(f"{f.name} ({', '.join(f.required())})" for f in known)
        error.details = f"known formats: {forms}; conversations of agents; chats, ShareGPT, OpenAI batch files"
        raise error
    if missing:
        advice = f"Add {'it' if len(missing) == 1 else 'them'}, or use another known format."
        raise errors.trace_unusable(
            path, f"fields of the {nearest.name} format are missing: {', '.join(missing)}", advice
        )
    return nearest


def _mapped(path: Path, base: TraceFormat, fields: list[str], columns: str) -> TraceFormat:
    """Return a format with the fields that --columns names; InvalidInput: an unknown column, or one not in the file."""
    changes: dict[str, Any] = {"name": "--columns"}
    for word in columns.split(";"):
        ours, _, theirs = word.strip().partition("=")
        if ours not in OURS:
            raise errors.unknown("column", ours, list(OURS), "--columns takes our name = the name in the file.")
        name, unit = re.fullmatch(r"(.*?)(?:\[(s|ms|us|ns)\])?", theirs).groups()  # type: ignore[union-attr]
        if ours == "hash_block_tokens" and name.removeprefix("=").isdigit():
            changes["hash_block"] = int(name.removeprefix("="))
            continue
        if name not in fields:
            close = errors.nearest(theirs, fields) or fields
            raise errors.trace_unusable(
                path, f"it has no column {theirs!r} for {ours}", f"It has {', '.join(close[:8])}."
            )
        changes[OURS[ours]] = name
        if ours in ("arrival_s", "think_s"):
            changes["arrivals_per_second" if ours == "arrival_s" else "pauses_per_second"] = UNITS[unit or "s"]
    mapped = base._replace(**changes)
    if missing := [field for field in mapped.required() if field not in fields]:
        raise errors.trace_unusable(path, f"--columns leaves out {', '.join(missing)}", "Name the columns for them.")
    return mapped
