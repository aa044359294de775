"""Proposed mapping of columns to ``production_requests`` or ``sweep_points`` by names: for a message, never applied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from kernelsight.catalog.tables import facts

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanoseconds"), "ns"),
}
_UNIT = re.compile(rf"(.*[^_\-. \[(])[_\-. \[(]++({'|'.join(UNITS)})[\])]?$", re.IGNORECASE)


@cache
def _patterns(form: str) -> dict[str, list[re.Pattern[str]]]:
    """Return the usual names of a form's columns as patterns (lower-case letters, digits), the most specific first."""
    fields = facts("log_fields")
    assert fields is not None
    patterns: dict[str, list[re.Pattern[str]]] = {}
    for row in fields.to_pylist():
        if row["form"] == form:
            patterns.setdefault(row["column"], []).append(re.compile(row["pattern"]))
    return patterns


def proposed_columns(names: Iterable[str], taken: Iterable[str] = (), form: str = "table") -> dict[str, str]:
    """Return the argument of ``--columns`` by our column, such as ``ttft_ms``: ``first[s]``.

    ``names``: columns of the table; ``taken``: our columns that are already mapped; ``form``: table: of requests;
    kernels: of measured kernels.

    >>> proposed_columns(["ts", "in_tok", "First Token (s)", "latency_ms", "user"])
    {'arrival_s': 'ts', 'prompt_tokens': 'in_tok', 'ttft_ms': 'First Token (s)[s]', 'e2e_ms': 'latency_ms'}
    """
    name_and_unit = {name: _without_unit(name) for name in names}
    taken_names, proposals = set(taken), {}
    for column, patterns in _patterns(form).items():
        candidates = [
            (rank, name)
            for name, (word, _) in name_and_unit.items()
            for rank, pattern in enumerate(patterns)
            if pattern.fullmatch(word)
        ]
        if column not in taken_names and candidates:
            name = min(candidates)[1]
            proposals[column] = f"{name}{_unit_of(column, name_and_unit.pop(name)[1])}"
    return proposals


def columns_flag(names: Iterable[str], taken: Iterable[str] = (), *, latencies: bool = True) -> str | None:
    """Return the ``--columns`` option that a table's column names suggest; None if a required column has no candidate.

    ``latencies``: of a log, of which one is required too; a trace has none.
    """
    taken_names = set(taken)
    proposals = proposed_columns(names, taken_names)
    columns = taken_names | proposals.keys()
    if not proposals or not columns.issuperset(REQUIRED) or (latencies and not columns & set(LATENCIES)):
        return None
    if not latencies:
        proposals = {column: name for column, name in proposals.items() if column in REQUIRED}
    return flag_of(proposals)


def flag_of(columns: Mapping[str, str]) -> str:
    """Return the ``--columns`` option of a mapping, in quotes where a shell needs them."""
    words = (f"{column}={file_column}" for column, file_column in columns.items() if column != file_column)
    return "--columns " + " ".join(f"'{word}'" if re.search(r"[^\w.=\[\]-]|\[", word) else word for word in words)


def _without_unit(name: str) -> tuple[str, str | None]:
    """Return a name without its unit and the objects around it, lower-case letters and digits, and the unit, if any."""
    match = _UNIT.match(name.rpartition(".")[2].strip())
    stem, unit = (match[1], UNITS[match[2].lower()]) if match else (name.rpartition(".")[2], None)
    return re.sub(r"[^a-z0-9]", "", stem.lower()), unit


def _unit_of(column: str, unit: str | None) -> str:
    """Return the unit suffix for ``--columns``, such as "[s]"; "" for the column's own unit, or an unknown one."""
    default = {"arrival_s": "s", "latency_us": "us", **dict.fromkeys(LATENCIES, "ms")}.get(column)
    return "" if default is None or unit in (None, default) else f"[{unit}]"
