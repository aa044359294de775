"""Proposed mapping of a table's columns to ``production_requests``, by their names: for a message, never applied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
# usual names of each column, without unit, lower-case letters and digits only, the most specific first
NAMES: Mapping[str, tuple[str, ...]] = {
    "arrival_s": (
        *("arrival", "arrivaltime", "arrivedat", "sent", "sentat", "senttime", "starttime", "start", "startedat"),
        *("requeststart", "requesttime", "requesttimestamp", "createdat", "created", "timestamp", "ts", "time", "date"),
    ),
    "prompt_tokens": (
        *("prompttokens", "numprompttokens", "nprompttokens", "inputtokens", "numinputtokens", "intokens", "intok"),
        *("prompttok", "inputlen", "inputlength", "promptlen", "promptlength", "ntokensin", "tokensin", "inputsize"),
        *("isl", "contexttokens", "prompt", "input", "nin"),
    ),
    "output_tokens": (
        *("outputtokens", "numoutputtokens", "completiontokens", "generatedtokens", "numgeneratedtokens", "outtokens"),
        *("outtok", "outputtok", "completiontok", "outputlen", "outputlength", "generationlen", "ntokensout"),
        *("tokensout", "outputsize", "gentokens", "osl", "completion", "output", "nout"),
    ),
    "ttft_ms": ("ttft", "timetofirsttoken", "firsttoken", "firsttokenlatency", "firsttokentime", "first"),
    "tpot_ms": ("tpot", "timeperoutputtoken", "itl", "intertokenlatency", "meanitl", "avgitl", "tbt"),
    "e2e_ms": (
        *("e2e", "e2el", "e2elatency", "endtoendlatency", "latency", "totallatency", "requestlatency", "duration"),
        *("totaltime", "elapsed", "elapsedtime", "responsetime", "total"),
    ),
    "cached_tokens": ("cachedtokens", "cachedprompttokens", "cachehittokens", "prefixhittokens"),
    "status": ("status", "statuscode", "success", "finishreason"),
}
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanoseconds"), "ns"),
}
_UNIT = re.compile(rf"(.*[^_\-. \[(])[_\-. \[(]++({'|'.join(UNITS)})[\])]?$", re.IGNORECASE)


def proposed_columns(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the argument of ``--columns`` by column of ``production_requests``, such as ``ttft_ms``: ``first[s]``.

    ``names``: columns of the table; ``taken``: columns of ``production_requests`` that are already mapped.

    >>> proposed_columns(["ts", "in_tok", "First Token (s)", "latency_ms", "user"])
    {'arrival_s': 'ts', 'prompt_tokens': 'in_tok', 'ttft_ms': 'First Token (s)[s]', 'e2e_ms': 'latency_ms'}
    """
    name_and_unit = {name: _without_unit(name) for name in names}
    taken_names, proposals = set(taken), {}
    for column, words in NAMES.items():
        candidates = [(words.index(word), name) for name, (word, _) in name_and_unit.items() if word in words]
        if column not in taken_names and candidates:
            name = min(candidates)[1]
            proposals[column] = f"{name}{_unit_of(column, name_and_unit.pop(name)[1])}"
    return proposals


def columns_flag(names: Iterable[str], taken: Iterable[str] = ()) -> str | None:
    """Return the ``--columns`` option that a table's column names suggest; None if a required column has no candidate.

    >>> columns_flag(["ts", "in_tok", "out_tok", "latency"])
    '--columns arrival_s=ts prompt_tokens=in_tok output_tokens=out_tok e2e_ms=latency'
    """
    taken_names = set(taken)
    proposals = proposed_columns(names, taken_names)
    columns = taken_names | proposals.keys()
    if not proposals or not columns.issuperset(REQUIRED) or not columns & set(LATENCIES):
        return None
    words = (f"{column}={file_column}" for column, file_column in proposals.items())
    return "--columns " + " ".join(f"'{word}'" if re.search(r"[^\w.=\[\]-]|\[", word) else word for word in words)


def _without_unit(name: str) -> tuple[str, str | None]:
    """Return a name without its unit, lower-case letters and digits only, and the unit that it ends in, if any."""
    match = _UNIT.match(name.strip())
    stem, unit = (match[1], UNITS[match[2].lower()]) if match else (name, None)
    return re.sub(r"[^a-z0-9]", "", stem.lower()), unit


def _unit_of(column: str, unit: str | None) -> str:
    """Return the unit suffix for ``--columns``, such as "[s]"; "" for the column's own unit, or an unknown one."""
    default = {"arrival_s": "s", **dict.fromkeys(LATENCIES, "ms")}.get(column)
    return "" if default is None or unit in (None, default) else f"[{unit}]"
