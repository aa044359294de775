"""What an explanation of a log leaves unexplained: mean residuals of similar requests, in their standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.comparison.measured_requests import Measured

# error that the model may have in a group of similar requests; a smaller difference has no cause
ALLOWED = 0.003
# a cause has to lower the misfit by three standard errors, squared, and by this share of the remainder
LEAST_SQUARES, LEAST_GAIN = 9.0, 0.3
# consecutive requests whose deviations are summed, to estimate their correlation
CONSECUTIVE = (5, 10, 20)


class GroupResiduals(NamedTuple):
    """Mean relative residuals of an explanation by group of similar requests, shape [phases, groups].

    ``spread``: standard deviation of single requests in their group, by phase, taken as independent.
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
        """Whether they are no larger than the scatter of requests."""
        return misfit(self, self) <= self.groups


NOTHING = GroupResiduals(np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(1))


def misfit(residuals: GroupResiduals, noise: GroupResiduals) -> float:
    """Return the sum of squares of the groups' means in standard errors, those of ``noise``.

    Which requests share a step is chance, so that single requests scatter; the model may be off by ALLOWED.
    """
    nonempty = residuals.count > 0
    return float((residuals.mean**2 / variance_of(noise))[nonempty].sum())


def variance_of(noise: GroupResiduals) -> np.ndarray:
    """Return the variance of each group's mean, shape [phases, groups]: chance, and what the model may be off by."""
    return noise.spread[:, None] ** 2 / np.maximum(noise.count, 1.0) + ALLOWED**2


def explains(after: GroupResiduals, before: GroupResiduals) -> bool:
    """Whether a cause lowers the misfit by more than chance, and by more than a common error of all groups."""
    remaining = misfit(after, after)
    return misfit(before, after) - remaining >= max(LEAST_SQUARES, LEAST_GAIN * remaining)


def group_residuals(residuals: np.ndarray, groups: np.ndarray) -> GroupResiduals:
    """Return means by group; ``residuals``: shares of what was measured, shape [phases, requests], NaN: there is none.

    They are taken as shares of the mean of both times, which chance does not make longer or shorter.
    """
    residuals = residuals / (1.0 - residuals / 2.0)
    size = int(groups.max(initial=-1)) + 1
    mean, count, spread = np.zeros((len(residuals), size)), np.zeros((len(residuals), size)), np.zeros(len(residuals))
    for phase, phase_residuals in enumerate(residuals):
        finite = np.isfinite(phase_residuals)
        count[phase] = np.bincount(groups[finite], minlength=size)
        sums = np.bincount(groups[finite], phase_residuals[finite], minlength=size)
        mean[phase] = np.divide(sums, count[phase], out=np.zeros(size), where=count[phase] > 0)
        spread[phase] = _spread(phase_residuals[finite] - mean[phase][groups[finite]])
    return GroupResiduals(mean, count, spread)


def averaged(several: Sequence[GroupResiduals]) -> GroupResiduals:
    """Return the mean over replays of nearly equal sizes: which requests share a step differs in each."""
    return GroupResiduals(
        np.mean([residuals.mean for residuals in several], axis=0), several[0].count,
        np.mean([residuals.spread for residuals in several], axis=0),
    )  # fmt: skip


def _spread(deviations: np.ndarray) -> float:
    """Return the standard deviation that single requests would have without the steps that they share.

    The sum over some consecutive requests varies as much as that of as many independent ones of this deviation.
    """
    if not deviations.size:
        return 0.0
    square = float(np.mean(deviations**2))
    sums = [deviations[: deviations.size // n * n].reshape(-1, n).sum(axis=1) for n in CONSECUTIVE]
    squares = [float(np.mean(means**2)) / n for means, n in zip(sums, CONSECUTIVE, strict=True) if means.size]
    return float(np.sqrt(max(square, np.mean(squares) if squares else 0.0)))


def similar(measured: Measured, chosen: np.ndarray) -> np.ndarray:
    """Return a number for each chosen request, equal for those of similar prompts, outputs and concurrency.

    Which requests share a step is chance; the mean over such a group is free of it, so that what remains has a cause.
    """
    sent = measured.sent_s[chosen]
    ends_s = np.sort(measured.last_s[chosen])
    running = np.arange(sent.size)[np.argsort(np.argsort(sent))] - np.searchsorted(ends_s, sent)
    number = np.zeros(sent.size, np.int64)
    for values in (measured.prompt_tokens[chosen], measured.output_tokens[chosen], running):
        edges = np.unique(np.quantile(values, [1 / 3, 2 / 3]))
        number = number * 3 + np.searchsorted(edges, values)
    return number
