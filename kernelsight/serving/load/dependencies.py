"""Dependencies between requests: checked, and placed in time as far as that is known before they are served."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.serving.load.trace_formats import shown

LONGEST_S = 1e9  # the simulated clock counts nanoseconds in 64 bits


class Dependencies(NamedTuple):
    """``request`` is sent ``think_s`` seconds after ``after`` has finished; numbers of requests, shape [pairs] each."""

    request: np.ndarray
    after: np.ndarray
    think_s: np.ndarray

    @classmethod
    def of(cls, pairs: list[tuple[int, int, float]]) -> Dependencies:
        """Return pairs (request, the one that it waits for, pause) as columns."""
        request, after, think_s = zip(*pairs, strict=True) if pairs else ((), (), ())
        return cls(np.array(request, np.int64), np.array(after, np.int64), np.array(think_s, float))

    def limited(self, most_s: float | None) -> Dependencies:
        """Return the same with pauses of at most ``most_s`` seconds; None: as they are."""
        return self if most_s is None else self._replace(think_s=np.minimum(self.think_s, most_s))


NONE = Dependencies(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def first_bad_pause(think_s: np.ndarray) -> int | None:
    """Return the place of the first pause that is negative, NaN or longer than 30 years; None: all are sound."""
    bad = ~((think_s >= 0) & (think_s <= LONGEST_S))
    return int(bad.argmax()) if bad.any() else None


def pause_fault(value: object) -> tuple[str, str]:
    """Return what is wrong with a pause, and what to do.

    >>> pause_fault(-1.0)[0]
    'think_s is -1.0, but must be a number of seconds from 0 to 1e+09'
    """
    rule = f"must be a number of seconds from 0 to {LONGEST_S:g}"
    return f"think_s is {shown(value)}, but {rule}", "Correct it, or leave it out for no pause."


def generations(dependencies: Dependencies, n: int) -> np.ndarray:
    """Return how many requests each of n requests has before it, in the longest chain; -1: in a circle.

    >>> generations(Dependencies.of([(1, 0, 0.0), (2, 1, 0.0), (2, 0, 0.0)]), 4).tolist()
    [0, 1, 2, 0]
    >>> generations(Dependencies.of([(1, 0, 0.0), (0, 1, 0.0)]), 3).tolist()
    [-1, -1, 0]
    """
    depth, _ = _walked(dependencies, np.zeros(n))
    return depth


def earliest(dependencies: Dependencies, arrival_s: np.ndarray) -> np.ndarray:
    """Return when each request is sent at the earliest, as if serving took no time; NaN: in a circle.

    ``arrival_s``: of the requests that wait for no other; those of the others are not read.

    >>> earliest(Dependencies.of([(1, 0, 2.0), (2, 1, 3.0), (2, 0, 9.0)]), np.array([1.0, 0.0, 0.0])).tolist()
    [1.0, 3.0, 10.0]
    """
    depth, moments = _walked(dependencies, arrival_s)
    return np.where(depth < 0, np.nan, moments)


def _walked(dependencies: Dependencies, arrival_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (requests before each in the longest chain, earliest send): all whose predecessors are done at a time."""
    n = arrival_s.size
    order = np.argsort(dependencies.after, kind="stable")
    request, after, think_s = (values[order] for values in dependencies)
    begins = np.searchsorted(after, np.arange(n + 1))
    open_waits = np.bincount(request, minlength=n)
    depth, moments = np.full(n, -1), np.where(open_waits > 0, 0.0, arrival_s)
    ready, number = np.flatnonzero(open_waits == 0), 0
    while ready.size:
        depth[ready] = number
        counts = begins[ready + 1] - begins[ready]
        pairs = np.repeat(begins[ready] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        np.maximum.at(moments, request[pairs], moments[after[pairs]] + think_s[pairs])
        np.subtract.at(open_waits, request[pairs], 1)
        reached = np.unique(request[pairs])
        ready, number = reached[open_waits[reached] == 0], number + 1
    return depth, moments
