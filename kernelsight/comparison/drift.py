"""Drift detection on the ratio of measured to expected times: an event when a drift begins, and one when it ends."""

from __future__ import annotations

import math
from typing import NamedTuple

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

    >>> drift, events = Drift(), []
    >>> for start_s, factor in enumerate([1.0, 1.01, 0.99, 1.3, 1.3, 1.3, 1.0, 1.0]):
    ...     drift, event = with_window(drift, math.log(factor), float(start_s))
    ...     events.append(event)
    >>> events
    [None, None, None, None, 'begins', None, None, 'ends']
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
