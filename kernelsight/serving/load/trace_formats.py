"""Trace formats (KernelSight, Mooncake, Azure, BurstGPT), recognised by the names of their fields.

The Azure layouts are those of github.com/Azure/AzurePublicDataset (LLM inference 2023 and 2024), Mooncake's that of its
FAST'25 release (github.com/kvcache-ai/Mooncake; ``session_id`` and ``delay`` as NVIDIA's aiperf adds them), BurstGPT's
that of github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from kernelsight import errors

CORRECT_LINE = "Correct or remove it."


class TraceFormat(NamedTuple):
    """The fields of a trace format; None: the format has no such field."""

    name: str
    arrival: str
    prompt_tokens: str
    output_tokens: str
    arrivals_per_second: float | None  # units of the arrival field per second; None: date and time of day
    request_id: str | None = None
    hash_ids: str | None = None
    hash_block: str | int | None = None  # field with the tokens per block, or the format's fixed number
    priority: str | None = None
    after: str | None = None  # id of the request that has to finish before this one is sent
    session: str | None = None  # requests of one session are its turns, in file order
    pause: str | None = None  # think time from the end of that request, or of the turn before, to sending this one
    pauses_per_second: float = 1.0  # units of the pause field per second
    zero_output_advice: str = CORRECT_LINE  # what to do about requests without output tokens

    def required(self) -> list[str]:
        """Return the required fields of every request."""
        return [self.arrival, self.prompt_tokens, self.output_tokens]

    def names(self) -> list[str]:
        """Return the fields that hold a name, as text or as a whole number."""
        return [field for field in (self.request_id, self.after, self.session) if field]

    def fields(self) -> list[str]:
        """Return all fields that are read."""
        optional = (
            self.request_id,
            self.hash_ids,
            self.hash_block,
            self.priority,
            self.after,
            self.session,
            self.pause,
        )
        return self.required() + [field for field in optional if isinstance(field, str)]


FORMATS = (
    TraceFormat(
        *("KernelSight", "arrival_s", "prompt_tokens", "output_tokens", 1.0),
        *("request_id", "hash_ids", "hash_block_tokens", "priority", "after", "session_id", "think_s"),
    ),
    TraceFormat(
        *("Mooncake", "timestamp", "input_length", "output_length", 1e3),
        **{"hash_ids": "hash_ids", "hash_block": 512, "session": "session_id", "pause": "delay"},
        pauses_per_second=1e3,
    ),
    TraceFormat("Azure LLM inference", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    TraceFormat(
        *("BurstGPT", "Timestamp", "Request tokens", "Response tokens", 1.0),
        zero_output_advice="BurstGPT writes 0 for failed requests: remove it, or use a BurstGPT_without_fails file.",
    ),
)


class RawTrace(NamedTuple):
    """The columns of a trace file as they are, before checks."""

    path: Path
    format: TraceFormat
    columns: pa.Table
    place: Callable[[int], str]  # from a row to its place in the file, such as "line 7"

    def column(self, field: str | int | None) -> pa.ChunkedArray:
        """Return a column of the trace; nulls if the trace has no such column."""
        if field in self.columns.column_names:
            return self.columns[field]
        return pa.chunked_array([pa.nulls(self.columns.num_rows)])

    def fault(self, row: int, problem: str, advice: str = CORRECT_LINE) -> errors.InvalidInput:
        """Build the error for one row, counted from 0 without header and blank lines."""
        return errors.trace_place_unusable(self.path, self.place(row), problem, advice)


def recognise(path: Path, fields: list[str]) -> TraceFormat:
    """Return the format whose required fields are present; InvalidInput names those missing in the closest one."""
    # other fields are not shown: the file may be no trace, and its first line a secret
    shown_fields = errors.familiar(fields, {field for each in FORMATS for field in each.fields()})
    repeated = sorted(field for field, count in Counter(fields).items() if count > 1)
    if repeated:
        found = ", ".join(field for field in repeated if field in shown_fields) or "in its first line"
        raise errors.trace_unusable(path, f"duplicate columns {found}", "Keep one of each.")
    nearest = max(FORMATS, key=lambda f: len(set(f.required()) & set(fields)))
    missing = [field for field in nearest.required() if field not in fields]
    if len(missing) == len(nearest.required()):
        formats = "; ".join(f"{f.name} ({', '.join(f.required())})" for f in FORMATS)
        found = ", ".join(map(repr, shown_fields)) or "none with the name of a known one"
        problem = f"unknown format with {len(fields)} field{'s' * (len(fields) > 1)}: {found}"
        raise errors.trace_unusable(path, problem, f"Known formats: {formats}.")
    if missing:
        advice = f"Add {'it' if len(missing) == 1 else 'them'}, or use another known format."
        raise errors.trace_unusable(
            path, f"fields of the {nearest.name} format are missing: {', '.join(missing)}", advice
        )
    return nearest
