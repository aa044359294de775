"""Which candidates a round considers: the pool of a space, or neighbours of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelsight.searching.decisions import generator
from kernelsight.searching.history import History, believed
from kernelsight.searching.targets import Target

# candidates that are forecast in each round: all of a smaller space
POOL = 4000
NEIGHBOURS = 256
PARENTS = 2
DISTANCE = 2  # parameters in which a neighbour may differ
EXPLORATION = 1.0
POOL_DRAW, NEIGHBOUR_DRAW = 1, 2


def base_pool(target: Target, scenario: Mapping[str, Any], scores: np.ndarray, number: int) -> np.ndarray:
    """Return the rows that a round considers: all, or the best half by other GPUs and others at random.

    These are drawn anew in every round, so that none is left out of a whole search.
    """
    every = len(target.ids)
    if every <= POOL:
        return np.arange(every)
    first = np.argsort(scores, kind="stable")[: POOL // 2] if target.sources else np.zeros(0, dtype=np.int64)
    taken = np.zeros(every, dtype=bool)
    taken[first] = True
    drawn = generator(scenario, number, POOL_DRAW).choice(np.flatnonzero(~taken), POOL - len(first), replace=False)
    taken[drawn] = True
    return np.flatnonzero(taken)


def pool(target: Target, base: np.ndarray, history: History, best: int | None) -> np.ndarray:
    """Return the rows of a round: the base, what was measured, and the neighbours of the best so far."""
    taken = np.zeros(len(target.ids), dtype=bool)
    taken[base] = taken[history.rows] = True
    if len(base) < len(target.ids) and best is not None:
        distance = (target.levels != target.levels[best]).sum(1)
        taken[np.argsort(distance, kind="stable")[:NEIGHBOURS]] = True
    return np.flatnonzero(taken)


def parents(history: History, tried: np.ndarray) -> np.ndarray:
    """Return the two measured rows whose neighbourhood is searched next: fast ones, and ones that were rarely tried.

    ``tried``: how often each row was a parent. Upper confidence bound over ranks, as searches of trees use it.
    """
    rows, mean, _ = believed(history)
    if not len(rows):
        return rows
    rank = 1.0 - np.argsort(np.argsort(mean)) / max(len(rows) - 1, 1)
    times = tried[rows]
    bound = rank + EXPLORATION * np.sqrt(times.sum() + 1.0) / (1.0 + times) / len(rows)
    return rows[np.argsort(-bound, kind="stable")[:PARENTS]]


def neighbours(target: Target, parent: int, count: int, taken: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return up to ``count`` rows that differ from a parent in few parameters, at random, without those ``taken``."""
    distance = (target.levels != target.levels[parent]).sum(1)
    distance[taken] = 0
    near = np.flatnonzero((distance > 0) & (distance <= DISTANCE))
    if len(near) < count:  # a sparse neighbourhood: the nearest that there are
        order = np.argsort(np.where(distance > 0, distance, distance.max(initial=0) + 1), kind="stable")
        near = order[: min(count, int((distance > 0).sum()))]
    return np.sort(draw.choice(near, min(count, len(near)), replace=False)) if len(near) else near
