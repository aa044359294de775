"""Which columns of a table are likely ours, by their names: proposed to a person, never taken for granted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
# names of a column without its unit, letters and digits alone, the most telling first
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
_UNIT = re.compile(rf"(.+?)[_\-. \[(]+({'|'.join(UNITS)})[\])]?$", re.IGNORECASE)


def proposed_columns(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return columns of ours and what ``--columns`` calls them, such as ``ttft_ms``: ``first_token[s]``.

    ``taken``: columns of ours that are already known.

    >>> proposed_columns(["ts", "in_tok", "First Token (s)", "latency_ms", "user"])
    {'arrival_s': 'ts', 'prompt_tokens': 'in_tok', 'ttft_ms': 'First Token (s)[s]', 'e2e_ms': 'latency_ms'}
    """
    name_and_unit = {name: _without_unit(name) for name in names}
    taken_names, proposals = set(taken), {}
    for ours, words in NAMES.items():
        fitting = [(words.index(word), name) for name, (word, _) in name_and_unit.items() if word in words]
        if ours not in taken_names and fitting:
            name = min(fitting)[1]
            proposals[ours] = f"{name}{_unit_of(ours, name_and_unit.pop(name)[1])}"
    return proposals


def columns_flag(names: Iterable[str], taken: Iterable[str] = ()) -> str | None:
    """Return the ``--columns`` line that a table's headers suggest; None where a column that is needed is not there.

    >>> columns_flag(["ts", "in_tok", "out_tok", "latency"])
    '--columns arrival_s=ts prompt_tokens=in_tok output_tokens=out_tok e2e_ms=latency'
    """
    taken_names = set(taken)
    proposals = proposed_columns(names, taken_names)
    columns = taken_names | proposals.keys()
    if not proposals or not columns.issuperset(REQUIRED) or not columns & set(LATENCIES):
        return None
    words = (f"{ours}={theirs}" for ours, theirs in proposals.items())
    return "--columns " + " ".join(f"'{word}'" if re.search(r"[^\w.=\[\]-]|\[", word) else word for word in words)


def _without_unit(name: str) -> tuple[str, str | None]:
    """Return a name in small letters and digits alone, and the unit that it ends in."""
    match = _UNIT.match(name.strip())
    stem, unit = (match[1], UNITS[match[2].lower()]) if match else (name, None)
    return re.sub(r"[^a-z0-9]", "", stem.lower()), unit


def _unit_of(ours: str, unit: str | None) -> str:
    """Return what ``--columns`` adds to a name for its unit; nothing where it is ours, or not stated."""
    default = {"arrival_s": "s", **dict.fromkeys(LATENCIES, "ms")}.get(ours)
    return "" if default is None or unit in (None, default) else f"[{unit}]"
