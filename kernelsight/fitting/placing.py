"""Where to measure next: greedy choice of the points that lower the expected error most for each second they take.

Errors of the model at two points of one group are taken for correlated, exp(-d / length), d between what a correction
sees of them (:mod:`..kernels.features`), each feature in units of how much it varies among the candidates: the
covariance of :mod:`..kernels.nearby`, which interpolates between what was measured. A measured point leaves of
each neighbour's variance what it does not explain: K -> K - K_i K_i' / (K_ii + noise^2) (Rasmussen and Williams 2006,
equation 2.26). Expected error is the sum of weight x standard deviation; greedy choice of such designs is near the best
one (Krause, Singh, Guestrin, JMLR 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

# distance over which the model's errors stay alike: 300 points of decode attention on H100 and L40S that are chosen
# with 2, 4, 8 or 16 leave 3.5 to 4.0 %; none is best on both
LENGTH = 4.0
# a feature that varies by less than this among the candidates counts as if it varied by this much: octaves
LEAST_SPREAD = 0.25
# standard deviation of a repeated measurement: what a published sweep shows (README: 2.0 to 4.5 %)
NOISE = 0.02
# a point whose gain is below this share of the first one's teaches nothing more
LEAST_GAIN = 1e-4


class Step(NamedTuple):
    """One choice: the candidate, seconds spent with it, and the expected error left (sum of weight x deviation)."""

    candidate: int
    seconds: float
    expected_error: float


def place(
    sizes: np.ndarray, deviation: np.ndarray, weight: np.ndarray, seconds: np.ndarray, groups: Sequence[str]
) -> Iterator[Step]:
    """Yield candidates in the order in which to measure them.

    ``sizes``: (candidates, F), where each lies, as :func:`positions` gives it; ``deviation``: of the log error expected
    at each; ``weight``: what an error there costs; ``seconds``: that its measurement takes; ``groups``: only candidates
    of one group teach each other.

    >>> line = np.arange(5.0)[:, None]
    >>> [step.candidate for step in place(line, np.ones(5), np.ones(5), np.ones(5), ["gemm"] * 5)][:2]
    [2, 0]
    """
    names = np.asarray(groups)
    members = [np.flatnonzero(names == name) for name in np.unique(names)]
    blocks = [_covariance(sizes[of], deviation[of]) for of in members]
    gains = [_gains(block, weight[of]) / seconds[of] for block, of in zip(blocks, members, strict=True)]
    spent, first = 0.0, max((float(one.max()) for one in gains), default=0.0)
    deviation_left = sum(float(weight[of] @ np.sqrt(np.diag(block))) for block, of in zip(blocks, members, strict=True))
    done = np.zeros(len(names), dtype=bool)
    while not done.all():
        group = int(np.argmax([one.max() for one in gains]))
        here = int(np.argmax(gains[group]))
        if gains[group][here] <= LEAST_GAIN * first:
            return
        chosen, of = members[group][here], members[group]
        before = float(weight[of] @ _deviations(blocks[group]))
        column = blocks[group][:, here].copy()
        blocks[group] -= np.outer(column, column) / (column[here] + NOISE**2)
        deviation_left += float(weight[of] @ _deviations(blocks[group])) - before
        spent += float(seconds[chosen])
        done[chosen] = True
        gains[group] = np.where(done[of], -1.0, _gains(blocks[group], weight[of]) / seconds[of])
        yield Step(int(chosen), spent, deviation_left)


def positions(features: np.ndarray) -> np.ndarray:
    """Return (candidates, F) features in units of their spread among the candidates.

    >>> positions(np.array([[0.0, 3.0], [8.0, 3.0]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    return (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), LEAST_SPREAD)


def _covariance(sizes: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    squares = (sizes**2).sum(axis=1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * sizes @ sizes.T, 0.0))
    return deviation[:, None] * deviation * np.exp(-apart / LENGTH)


def _deviations(block: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(np.diag(block), 0.0))


def _gains(block: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What measuring each candidate takes off the expected error of all."""
    variance = np.maximum(np.diag(block), 0.0)
    explained = block**2 / (variance + NOISE**2)
    return weight @ (np.sqrt(variance)[:, None] - np.sqrt(np.maximum(variance[:, None] - explained, 0.0)))


def remaining(sizes: np.ndarray, deviation: np.ndarray, groups: Sequence[str], chosen: Sequence[int]) -> np.ndarray:
    """Return (candidates,): the deviation of each that is left once ``chosen`` are measured."""
    names, deviations = np.asarray(groups), np.array(deviation, dtype=float)
    measured = np.zeros(deviations.size, dtype=bool)
    measured[list(chosen)] = True
    for name in np.unique(names[measured]):
        of = np.flatnonzero(names == name)
        block, is_measured = _covariance(sizes[of], deviation[of]), measured[of]
        among = block[np.ix_(is_measured, is_measured)] + NOISE**2 * np.eye(int(is_measured.sum()))
        deviations[of] = _deviations(block - block[:, is_measured] @ np.linalg.solve(among, block[is_measured]))
    return deviations
