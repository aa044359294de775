"""What an explanation of a log leaves unexplained: mean residuals of similar requests, in their standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.comparison.measured_requests import Measured

# what the model is allowed to be off by in a group of similar requests; a difference below it is nobody's
ALLOWED = 0.003
# a cause has to take away three standard errors, squared, and this share of what it leaves
LEAST_SQUARES, LEAST_GAIN = 9.0, 0.3
# requests in a row whose deviations are added up, to see how much alike they are
CONSECUTIVE = (5, 10, 20)


class Left(NamedTuple):
    """What an explanation leaves of the relative residuals, by group of similar requests, shape [phases, groups].

    ``spread``: standard deviation of single requests in their group, by phase, as if all were independent.
    """

    mean: np.ndarray
    count: np.ndarray
    spread: np.ndarray

    @property
    def loss(self) -> float:
        """Mean square of the groups' means, by the number of their requests."""
        return float((self.count * self.mean**2).sum() / max(self.count.sum(), 1.0))

    @property
    def groups(self) -> int:
        """How many groups of a phase have a request."""
        return max(np.count_nonzero(self.count), 1)

    @property
    def is_chance(self) -> bool:
        """Whether it is no more than the scatter of requests makes it."""
        return misfit(self, self) <= self.groups


NOTHING = Left(np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(1))


def misfit(left: Left, noise: Left) -> float:
    """Return the sum of squares of the groups' means in standard errors, those of ``noise``.

    Which requests share a step is chance, so that single requests scatter; the model may be off by ALLOWED.
    """
    there = left.count > 0
    return float((left.mean**2 / variance_of(noise))[there].sum())


def variance_of(noise: Left) -> np.ndarray:
    """Return the variance of each group's mean, shape [phases, groups]: chance, and what the model may be off by."""
    return noise.spread[:, None] ** 2 / np.maximum(noise.count, 1.0) + ALLOWED**2


def explains(after: Left, before: Left) -> bool:
    """Whether a cause takes away more than chance does, and more than the model is off in all groups alike."""
    left = misfit(after, after)
    return misfit(before, after) - left >= max(LEAST_SQUARES, LEAST_GAIN * left)


def left_by_group(residuals: np.ndarray, groups: np.ndarray) -> Left:
    """Return what is left; ``residuals``: shares of what was measured, shape [phases, requests], NaN: there is none.

    They are taken as shares of the mean of both times, which chance does not make longer or shorter.
    """
    residuals = residuals / (1.0 - residuals / 2.0)
    size = int(groups.max(initial=-1)) + 1
    mean, count, spread = np.zeros((len(residuals), size)), np.zeros((len(residuals), size)), np.zeros(len(residuals))
    for phase, own in enumerate(residuals):
        there = np.isfinite(own)
        count[phase] = np.bincount(groups[there], minlength=size)
        sums = np.bincount(groups[there], own[there], minlength=size)
        mean[phase] = np.divide(sums, count[phase], out=np.zeros(size), where=count[phase] > 0)
        spread[phase] = _spread(own[there] - mean[phase][groups[there]])
    return Left(mean, count, spread)


def averaged(several: Sequence[Left]) -> Left:
    """Return the mean of what replays of nearly equal sizes leave: which requests share a step differs in each."""
    return Left(
        np.mean([left.mean for left in several], axis=0), several[0].count,
        np.mean([left.spread for left in several], axis=0),
    )  # fmt: skip


def _spread(deviations: np.ndarray) -> float:
    """Return the standard deviation that single requests would have without the steps that they share.

    The sum over some consecutive requests varies as much as that of as many independent ones of this deviation.
    """
    if not deviations.size:
        return 0.0
    square = float(np.mean(deviations**2))
    sums = [deviations[: deviations.size // n * n].reshape(-1, n).sum(axis=1) for n in CONSECUTIVE]
    squares = [float(np.mean(own**2)) / n for own, n in zip(sums, CONSECUTIVE, strict=True) if own.size]
    return float(np.sqrt(max(square, np.mean(squares) if squares else 0.0)))


def similar(measured: Measured, chosen: np.ndarray) -> np.ndarray:
    """Return a number for each chosen request, equal for those of similar prompts, outputs and concurrency.

    Which requests share a step is chance; on average over such a group chance is left out, and what is left is a cause.
    """
    sent = measured.sent_s[chosen]
    ends = np.sort(sent + np.nan_to_num(measured.e2e_ms[chosen]) / 1e3)
    running = np.arange(sent.size)[np.argsort(np.argsort(sent))] - np.searchsorted(ends, sent)
    number = np.zeros(sent.size, np.int64)
    for values in (measured.prompt_tokens[chosen], measured.output_tokens[chosen], running):
        edges = np.unique(np.quantile(values, [1 / 3, 2 / 3]))
        number = number * 3 + np.searchsorted(edges, values)
    return number
