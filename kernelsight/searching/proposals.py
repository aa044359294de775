"""Proposals of a round, the candidates that it considers: a pool of the space, or neighbours of measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelsight.searching.decisions import generator
from kernelsight.searching.history import History, weighted_means
from kernelsight.searching.targets import Target

# most candidates that are forecast in a round; a smaller space is forecast whole
POOL = 4000
NEIGHBOURS = 256
PARENTS = 2
DISTANCE = 2  # parameters in which a neighbour may differ
EXPLORATION = 1.0
POOL_DRAW, NEIGHBOUR_DRAW = 1, 2


def base_pool(target: Target, scenario: Mapping[str, Any], scores: np.ndarray, number: int) -> np.ndarray:
    """Return the rows that a round considers: all, or in a large space the best by other GPUs, and random ones.

    The random ones are drawn anew in every round, so that a whole search may reach any candidate.
    """
    count = len(target.ids)
    if count <= POOL:
        return np.arange(count)
    promising = np.argsort(scores, kind="stable")[: POOL // 2] if target.sources else np.zeros(0, dtype=np.int64)
    in_pool = np.zeros(count, dtype=bool)
    in_pool[promising] = True
    drawn = generator(scenario, number, POOL_DRAW).choice(
        np.flatnonzero(~in_pool), POOL - len(promising), replace=False
    )
    in_pool[drawn] = True
    return np.flatnonzero(in_pool)


def pool(target: Target, base: np.ndarray, history: History, best: int | None) -> np.ndarray:
    """Return the rows of a round: the base, the measured ones, and the neighbours of the best so far."""
    in_pool = np.zeros(len(target.ids), dtype=bool)
    in_pool[base] = in_pool[history.rows] = True
    if len(base) < len(target.ids) and best is not None:
        distance = (target.levels != target.levels[best]).sum(1)
        in_pool[np.argsort(distance, kind="stable")[:NEIGHBOURS]] = True
    return np.flatnonzero(in_pool)


def parents(history: History, tried: np.ndarray) -> np.ndarray:
    """Return the measured rows whose neighbourhood is searched next: fast ones, and ones that were rarely parents.

    ``tried``: (candidates,), how often each was a parent. By the upper confidence bound over ranks, as in tree search.
    """
    rows, mean, _ = weighted_means(history)
    if not len(rows):
        return rows
    rank = 1.0 - np.argsort(np.argsort(mean)) / max(len(rows) - 1, 1)
    times = tried[rows]
    bound = rank + EXPLORATION * np.sqrt(times.sum() + 1.0) / (1.0 + times) / len(rows)
    return rows[np.argsort(-bound, kind="stable")[:PARENTS]]


def neighbours(target: Target, parent: int, count: int, excluded: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Draw up to ``count`` rows at random that differ from a parent in few parameters, without ``excluded`` rows."""
    distance = (target.levels != target.levels[parent]).sum(1)
    distance[excluded] = 0
    near = np.flatnonzero((distance > 0) & (distance <= DISTANCE))
    if len(near) < count:  # a sparse neighbourhood: take the nearest rows instead
        order = np.argsort(np.where(distance > 0, distance, distance.max(initial=0) + 1), kind="stable")
        near = order[: min(count, int((distance > 0).sum()))]
    return np.sort(draw.choice(near, min(count, len(near)), replace=False)) if len(near) else near
