"""What labels of benchmark results mean: metric, statistic and unit, by the rows of ``log_fields``."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from kernelsight.catalog.tables import facts

ANY, IGNORED = "any", "ignored"
# factor to ms, or to one per second; 1: a count
_UNITS = {
    **dict.fromkeys(("ms", "msec", "milliseconds"), ("time", 1.0)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), ("time", 1e3)),
    **dict.fromkeys(("us", "µs", "usec"), ("time", 1e-3)),
    **dict.fromkeys(("ns",), ("time", 1e-6)),
    **dict.fromkeys(("count", "tokens", "requests", "reqs", "req"), ("count", 1.0)),
    "per min": ("rate", 1.0 / 60.0),
}
_RATE = re.compile(
    r"((req|reqs|requests?|seq|tok|toks|tokens?|tps|total tokens|output tokens)? ?(s|sec|second)|rps|tps)"
)
_STATISTIC = re.compile(
    r"\b(?:(?P<mean>mean|average|avg)|(?P<p50>median)|(?P<min>min|minimum)|(?P<max>max|maximum)|(?P<std>std(?:dev)?)"
    r"|p ?(?P<p>\d+(?:\.\d+)?)|(?P<percent>\d+(?:\.\d+)?)(?: ?th)? (?:percentile|pct))\b"
)
_IN_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]\s*$")


class Label(NamedTuple):
    """What a label says: metric and statistic of ``production_summaries``, and the unit of values."""

    metric: str | None
    statistic: str | None
    unit: str | None


def words_of(text: str) -> str:
    """Return a label in lower case, its words separated by one space.

    >>> words_of("Time-to-First-Token [TTFT]"), words_of("results_ttft_s")
    ('time to first token ttft', 'results ttft s')
    """
    return " ".join(re.sub(r"[^a-z0-9.%µ]+", " ", text.lower()).split()).strip(".")


def unit_of(text: str) -> str | None:
    """Return a unit in plain words, or None for what is none.

    >>> unit_of("tok/s"), unit_of("ms"), unit_of("per sec"), unit_of("excl. 1st token")
    ('per s', 'ms', 'per s', None)
    """
    words = words_of(text)
    if words in _UNITS:
        return words
    is_rate = "/" in text or words[:3] in ("per", "rps", "tps")
    return "per s" if is_rate and _RATE.fullmatch(words.removeprefix("per ")) else None


def value_in(metric: str, value: float, unit: str | None) -> float | None:
    """Return a value in the unit at the end of the metric's name; None: a time without a unit, or another kind of unit.

    >>> value_in("ttft_ms", 0.5, "s"), value_in("duration_s", 900.0, "ms"), value_in("ttft_ms", 5.0, None)
    (500.0, 0.9, None)
    """
    kind, factor = ("rate", 1.0) if unit == "per s" else _UNITS.get(unit or "", (None, 1.0))
    if metric.endswith("_ms") or metric == "duration_s":
        return value * factor / (1e3 if metric == "duration_s" else 1.0) if kind == "time" else None
    return value * factor if kind != "time" else None


@cache
def fields_of(form: str) -> list[tuple[re.Pattern[str], str, str | None]]:
    """Return (pattern, column, unit) of the rows of ``log_fields`` of a form, in their order."""
    fields = facts("log_fields")
    assert fields is not None
    return [
        (re.compile(row["pattern"]), row["column"], row["unit"]) for row in fields.to_pylist() if row["form"] == form
    ]


@cache
def label_of(text: str, form: str = ANY) -> Label:
    """Return what a label means in a form; without metric, statistic or unit where it has none.

    >>> label_of("P99 TTFT (ms)")
    Label(metric='ttft_ms', statistic='p99', unit='ms')
    >>> label_of("Total Token throughput (tok/s)"), label_of("AVG:").statistic, label_of("mood").metric
    (Label(metric='total_tokens_per_s', statistic=None, unit='per s'), 'mean', None)
    >>> label_of("results_ttft_s_quantiles_p99", "llmperf-summary")
    Label(metric='ttft_ms', statistic='p99', unit='s')
    """
    text, unit = text.strip().rstrip(":"), None
    if match := _IN_BRACKETS.search(text):
        unit = unit_of(match[1])
        text = text[: match.start()] if unit else text
    words = words_of(text)
    statistic = None
    for match in _STATISTIC.finditer(words):
        name = match.lastgroup or ""
        stated = f"p{float(match[name]):g}" if name in ("p", "percent") else name
        rest = " ".join((words[: match.start()] + words[match.end() :]).split())
        # it may be part of a name, such as "maximum request concurrency"
        if (_metric(words, form) or (IGNORED,))[0] == IGNORED:
            words, statistic = rest, stated
        break
    if unit is None and (match := re.search(r" (ms|s|us|ns)(?= quantiles$|$)", words)):
        unit, words = match[1], words.replace(match[0], "", 1)
    metric, usual = _metric(words, form) or (None, None)
    return Label(metric, statistic, unit or (unit_of(usual) if usual else None))


@cache
def _metric(words: str, form: str) -> tuple[str, str | None] | None:
    """Return (metric, usual unit) of the words of a label; None: they name none."""
    return next(
        ((name, unit) for pattern, name, unit in (*fields_of(form), *fields_of(ANY)) if pattern.fullmatch(words)), None
    )
