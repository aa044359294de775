"""Dependencies between requests (one is sent after another has finished): checks, chains and earliest send times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.errors import shown

LONGEST_S = 1e9  # the simulated clock counts nanoseconds in 64 bits


class Dependencies(NamedTuple):
    """Pairs of requests, shape [pairs]: ``request`` is sent ``think_s`` seconds after ``after`` has finished."""

    request: np.ndarray  # row numbers
    after: np.ndarray
    think_s: np.ndarray

    @classmethod
    def of(cls, pairs: list[tuple[int, int, float]]) -> Dependencies:
        """Return the columns of pairs (request, request that it waits for, think time in s)."""
        request, after, think_s = zip(*pairs, strict=True) if pairs else ((), (), ())
        return cls(np.array(request, np.int64), np.array(after, np.int64), np.array(think_s, float))

    def limited(self, most_s: float | None) -> Dependencies:
        """Return the dependencies with think times cut to ``most_s`` seconds; None: unchanged."""
        return self if most_s is None else self._replace(think_s=np.minimum(self.think_s, most_s))


NONE = Dependencies(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def first_bad_pause(think_s: np.ndarray) -> int | None:
    """Return the index of the first think time that is negative, NaN or longer than 30 years; None: all are valid."""
    bad = ~((think_s >= 0) & (think_s <= LONGEST_S))
    return int(bad.argmax()) if bad.any() else None


def pause_fault(value: object) -> tuple[str, str]:
    """Return the problem and the advice for an invalid think time."""
    rule = f"must be a number of seconds from 0 to {LONGEST_S:g}"
    return f"think_s is {shown(value)}, but {rule}", "Correct it, or leave it out for no pause."


def generations(dependencies: Dependencies, n: int) -> np.ndarray:
    """Return the depth of each of n requests in the dependency graph (its longest chain); -1: in or after a cycle.

    >>> generations(Dependencies.of([(1, 0, 0.0), (2, 1, 0.0), (2, 0, 0.0)]), 4).tolist()
    [0, 1, 2, 0]
    >>> generations(Dependencies.of([(1, 0, 0.0), (0, 1, 0.0)]), 3).tolist()
    [-1, -1, 0]
    """
    depth, _ = _walked(dependencies, np.zeros(n))
    return depth


def earliest(dependencies: Dependencies, arrival_s: np.ndarray) -> np.ndarray:
    """Return the earliest send time of each request in s, as if serving took no time; NaN: in or after a cycle.

    ``arrival_s``: read for requests that wait for no other.

    >>> earliest(Dependencies.of([(1, 0, 2.0), (2, 1, 3.0), (2, 0, 9.0)]), np.array([1.0, 0.0, 0.0])).tolist()
    [1.0, 3.0, 10.0]
    """
    depth, moments = _walked(dependencies, arrival_s)
    return np.where(depth < 0, np.nan, moments)


def _walked(dependencies: Dependencies, arrival_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (depth, earliest send time) of each request, by a topological walk, one level of the graph at a time."""
    n = arrival_s.size
    order = np.argsort(dependencies.after, kind="stable")
    request, after, think_s = (values[order] for values in dependencies)
    begins = np.searchsorted(after, np.arange(n + 1))
    open_waits = np.bincount(request, minlength=n)
    depth, moments = np.full(n, -1), np.where(open_waits > 0, 0.0, arrival_s)
    ready, level = np.flatnonzero(open_waits == 0), 0
    while ready.size:
        depth[ready] = level
        counts = begins[ready + 1] - begins[ready]
        pairs = np.repeat(begins[ready] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        np.maximum.at(moments, request[pairs], moments[after[pairs]] + think_s[pairs])
        np.subtract.at(open_waits, request[pairs], 1)
        reached = np.unique(request[pairs])
        ready, level = reached[open_waits[reached] == 0], level + 1
    return depth, moments
