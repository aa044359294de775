"""Experimental design of a sweep: greedy choice of the points that lower the expected error most per second.

The model's errors at two points of one group have correlation exp(-d / length), d the distance of their features
(:mod:`kernelsight.kernels.features`), each in units of its spread among the candidates: the covariance of
:mod:`kernelsight.kernels.nearby`, which interpolates between measured points. Measuring point i reduces the variance of
its neighbours: K -> K - K_i K_i' / (K_ii + noise^2) (Rasmussen and Williams 2006, equation 2.26). The expected error is
the sum of weight x standard deviation; a greedy choice of such designs is near the best one (Krause, Singh, Guestrin,
JMLR 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

# correlation length of the model's errors: 300 points of decode attention on H100 and L40S, chosen with lengths of 2,
# 4, 8 or 16, leave errors of 3.5 to 4.0 %; no length is best on both
LENGTH = 4.0
# least spread of a feature among the candidates, in octaves
LEAST_SPREAD = 0.25
# standard deviation of a repeated measurement: what a published sweep shows (README: 2.0 to 4.5 %)
NOISE = 0.02
# gain per second below which the choice ends, as a share of the first point's
LEAST_GAIN = 1e-4
# share by which equal gains may differ
EQUAL = 1e-9


class DesignStep(NamedTuple):
    """One choice: the candidate, seconds spent including it, and the remaining expected error (see the module)."""

    candidate: int
    seconds: float
    expected_error: float


def greedy_design(
    sizes: np.ndarray, deviation: np.ndarray, weight: np.ndarray, seconds: np.ndarray, groups: Sequence[str]
) -> Iterator[DesignStep]:
    """Yield candidates in the order in which to measure them, until none is worth its seconds.

    ``sizes``: (candidates, F), from :func:`positions`; of shape (candidates,): ``deviation``, standard deviation of the
    log error expected there; ``weight``, cost of an error there; ``seconds``, duration of its measurement; ``groups``:
    only candidates of one group have correlated errors.
    """
    names = np.asarray(groups)
    members = [np.flatnonzero(names == name) for name in np.unique(names)]
    blocks = [_covariance(sizes[rows], deviation[rows]) for rows in members]
    gains = [_gains(block, weight[rows]) / seconds[rows] for block, rows in zip(blocks, members, strict=True)]
    spent_s, first_gain = 0.0, max((float(gain.max()) for gain in gains), default=0.0)
    expected_error = sum(
        float(weight[rows] @ np.sqrt(np.diag(block))) for block, rows in zip(blocks, members, strict=True)
    )
    measured = np.zeros(len(names), dtype=bool)
    while not measured.all():
        group = first_largest(np.array([gain.max() for gain in gains]))
        best = first_largest(gains[group])
        if gains[group][best] <= LEAST_GAIN * first_gain:
            return
        rows = members[group]
        before = float(weight[rows] @ _deviations(blocks[group]))
        column = blocks[group][:, best].copy()
        blocks[group] -= np.outer(column, column) / (column[best] + NOISE**2)
        expected_error += float(weight[rows] @ _deviations(blocks[group])) - before
        chosen = rows[best]
        spent_s += float(seconds[chosen])
        measured[chosen] = True
        gains[group] = np.where(measured[rows], -1.0, _gains(blocks[group], weight[rows]) / seconds[rows])
        yield DesignStep(int(chosen), spent_s, expected_error)


def first_largest(gains: np.ndarray) -> int:
    """Return the index of the largest gain, the first of those that differ by rounding alone: sums vary with threads.

    >>> first_largest(np.array([0.1, 0.3, 0.1 + 0.2]))
    1
    """
    largest = gains.max()
    return int(np.argmax(gains >= largest - EQUAL * abs(largest)))


def positions(features: np.ndarray) -> np.ndarray:
    """Return features (candidates, F) centred, in units of their spread among the candidates.

    >>> positions(np.array([[0.0, 3.0], [8.0, 3.0]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    return (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), LEAST_SPREAD)


def _covariance(sizes: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    squares = (sizes**2).sum(axis=1)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * sizes @ sizes.T, 0.0))
    return deviation[:, None] * deviation * np.exp(-distance / LENGTH)


def _deviations(block: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(np.diag(block), 0.0))


def _gains(block: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return (candidates,): the decrease of the expected error of all by measuring each."""
    variance = np.maximum(np.diag(block), 0.0)
    explained = block**2 / (variance + NOISE**2)
    return weight @ (np.sqrt(variance)[:, None] - np.sqrt(np.maximum(variance[:, None] - explained, 0.0)))


def remaining(sizes: np.ndarray, deviation: np.ndarray, groups: Sequence[str], chosen: Sequence[int]) -> np.ndarray:
    """Return (candidates,): the standard deviation that remains at each once ``chosen`` are measured."""
    names, deviations = np.asarray(groups), np.array(deviation, dtype=float)
    measured = np.zeros(deviations.size, dtype=bool)
    measured[list(chosen)] = True
    for name in np.unique(names[measured]):
        rows = np.flatnonzero(names == name)
        block, is_measured = _covariance(sizes[rows], deviation[rows]), measured[rows]
        of_measured = block[np.ix_(is_measured, is_measured)] + NOISE**2 * np.eye(int(is_measured.sum()))
        deviations[rows] = _deviations(block - block[:, is_measured] @ np.linalg.solve(of_measured, block[is_measured]))
    return deviations
