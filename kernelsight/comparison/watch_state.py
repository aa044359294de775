"""State of a watch: how far it has read, what it keeps, and its drift detectors, saved as JSON, checked when read.

Drift is detected on the ratio of measured to expected times: an event when a drift begins, and one when it ends.
"""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.comparison.errors import METRICS
from kernelsight.comparison.watched_requests import RecentRequests
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import read_json
from kernelsight.files.budget import STATE
from kernelsight.files.numbers import is_number
from kernelsight.files.redaction import redacted_text
from kernelsight.logs.appended_lines import Position
from kernelsight.present.watch_windows import TOTALS

# windows that the usual level is learned from; deviating (or usual) windows in a row that begin (or end) a drift
LEARNED, IN_A_ROW = 3, 2
# a window deviates if its logarithm differs by at least this, and by this many usual deviations
LEAST, DEVIATIONS = math.log(1.1), 4.0
# weight of a new window in the moving averages, and the smallest usual deviation
WEIGHT, LEAST_SPREAD = 0.1, 0.01


class Drift(NamedTuple):
    """State of the drift detector of one metric.

    ``level``, ``spread``: usual logarithm of measured over expected, and its usual deviation; ``windows``: seen so far;
    ``in_a_row``: windows that contradict the state, the first of which began at ``first_away``; ``since``: begin of
    the drift, None without one. Moments in seconds.
    """

    level: float = 0.0
    spread: float = 0.0
    windows: int = 0
    in_a_row: int = 0
    first_away: float | None = None
    since: float | None = None


def with_window(drift: Drift, log_factor: float, start_s: float) -> tuple[Drift, str | None]:
    """Return the detector's state after one more window, and its event: "begins", "ends" or None.

    ``log_factor``: logarithm of measured over expected time; ``start_s``: the window's start, seconds.
    """
    if drift.windows < LEARNED:
        windows = drift.windows + 1
        level = drift.level + (log_factor - drift.level) / windows
        spread = max(drift.spread, abs(log_factor - level))
        return drift._replace(level=level, spread=spread, windows=windows), None
    deviates = abs(log_factor - drift.level) > max(LEAST, DEVIATIONS * max(drift.spread, LEAST_SPREAD))
    drifted = drift.since is not None
    if deviates == drifted:
        if not drifted:
            spread = (1.0 - WEIGHT) * drift.spread + WEIGHT * abs(log_factor - drift.level)
            level = (1.0 - WEIGHT) * drift.level + WEIGHT * log_factor
            drift = drift._replace(level=level, spread=spread, windows=drift.windows + 1)
        return drift._replace(in_a_row=0, first_away=None), None
    count = drift.in_a_row + 1
    first_away = start_s if drift.first_away is None else drift.first_away
    if count < IN_A_ROW:
        return drift._replace(in_a_row=count, first_away=first_away), None
    since = None if drifted else first_away
    return drift._replace(in_a_row=0, first_away=None, since=since), "ends" if drifted else "begins"


LARGEST = 1 << 63


class WrongType(ValueError):
    """A value of JSON is not of its type; the message names its place."""


def typed(value: Any, hint: Any, place: str = "it") -> Any:
    """Return a JSON value as the type of a hint, named tuples from lists; WrongType names the first place that is none.

    Hints: str, int (0 or more, below 2^63), float (finite), unions, list[T], dict[str, T] and classes of NamedTuple.

    >>> typed([1, 2], list[float])
    [1.0, 2.0]
    >>> typed({"a": [None, "x"]}, dict[str, list[int | None]])
    Traceback (most recent call last):
    kernelsight.comparison.watch_state.WrongType: it['a'][1] is no whole number from 0
    """
    if hasattr(hint, "_fields"):
        hints = typing.get_type_hints(hint)
        if not isinstance(value, list) or len(value) != len(hints):
            raise WrongType(f"{place} is no list of {len(hints)} values")
        return hint(*(typed(item, hints[name], f"{place}.{name}") for item, name in zip(value, hints, strict=True)))
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):
        return None if value is None else typed(value, next(each for each in inner if each is not type(None)), place)
    if kind is list and isinstance(value, list):
        return [typed(item, inner[0], f"{place}[{number}]") for number, item in enumerate(value)]
    if kind is dict and isinstance(value, dict):
        return {name: typed(item, inner[1], f"{place}[{name!r:.40}]") for name, item in value.items()}
    if hint is str and isinstance(value, str):
        return value
    if hint is int and is_number(value) and isinstance(value, int) and 0 <= value < LARGEST:
        return value
    if hint is float and is_number(value) and abs(value) < LARGEST:
        return float(value)
    words = {str: "text", int: "whole number from 0", float: "finite number"}
    raise WrongType(f"{place} is no {words.get(hint) or getattr(kind, '__name__', hint)}")


VERSION = 2
# moments of the log's clock lie before the year 5000
LATEST_S = 1e11


@dataclass
class State:
    """State of a watch, saved after each poll.

    ``place``: how far the log was read; ``kept``: recent requests; ``scrape``, ``scraped_at``: the last metrics of a
    server, and their unix time; ``drifts``: drift detectors by metric; ``looks_like``: likely causes of the drift;
    ``windows``, ``totals``: number of windows and of requests so far.
    """

    source: str
    place: Position = field(default_factory=Position)
    kept: RecentRequests = field(default_factory=lambda: RecentRequests([]))
    scrape: str = ""
    scraped_at: float = 0.0
    drifts: dict[str, Drift] = field(default_factory=dict)
    looks_like: str = ""
    windows: int = 0
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TOTALS, 0.0))

    @property
    def drifting_since(self) -> float | None:
        """Start of the earliest drift that has not ended, s; None without one."""
        return min((drift.since for drift in self.drifts.values() if drift.since is not None), default=None)

    def as_json(self) -> str:
        """Return the state as the JSON text that is saved."""
        return json.dumps({"version": VERSION, **vars(self)})


def state_of(path: Path | None, source: str) -> State:
    """Return the state in a file, or a new one without a file; InvalidInput: not a state, or of another source."""
    shown_source = redacted_text(source)
    if path is None or not path.exists():
        return State(shown_source)

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"--state {path} {problem}; give another file, or remove it to begin anew.")

    values = read_json(path, refuse, STATE)
    names = [each.name for each in fields(State)]
    if not isinstance(values, dict) or "version" not in values:
        raise refuse("is no state of a watch")
    if values.pop("version") != VERSION:
        raise refuse("was written by another version")
    if values.keys() != set(names):
        raise refuse("is no state of a watch")
    hints = typing.get_type_hints(State)
    try:
        state = State(**{name: typed(values[name], hints[name], name) for name in names})
        _check(state)
    except WrongType as problem:
        raise refuse(f"is no state of a watch ({problem})") from None
    if state.source != shown_source:
        raise refuse(f"is of {state.source}")
    return state


def _check(state: State) -> None:
    """Check what types do not say; WrongType names the place."""
    if state.kept.compared > len(state.kept.rows):
        raise WrongType("kept.compared is more than the kept requests")
    if state.totals.keys() != TOTALS.keys():
        raise WrongType(f"totals are not {', '.join(TOTALS)}")
    if not state.drifts.keys() <= set(METRICS):
        raise WrongType("drifts has an unknown metric")
    moments = [state.scraped_at, *(row.sent_s for row in state.kept.rows)]
    moments += [each for drift in state.drifts.values() for each in (drift.first_away, drift.since) if each is not None]
    if not all(0.0 <= each <= LATEST_S for each in moments):
        raise WrongType("a time is before 0 or after the year 5000")
