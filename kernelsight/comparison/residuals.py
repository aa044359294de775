"""Residuals of an explanation: mean relative residuals of groups of similar requests, and their standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.comparison.measured_requests import Measured

# model error that is allowed in a group of similar requests (relative): smaller differences need no cause
ALLOWED = 0.003
# a cause has to reduce the misfit by three standard errors, squared, and by this share of the remaining misfit
LEAST_SQUARES, LEAST_GAIN = 9.0, 0.3
# consecutive requests whose deviations are summed, to estimate their correlation
CONSECUTIVE = (5, 10, 20)


class GroupResiduals(NamedTuple):
    """Mean relative residuals of an explanation by group of similar requests.

    ``mean``, ``count``: of each group's requests, shape [phases, groups]; ``spread``: standard deviation of single
    requests within their group, shape [phases], enlarged by their correlation so that they count as independent.
    """

    mean: np.ndarray
    count: np.ndarray
    spread: np.ndarray

    @property
    def loss(self) -> float:
        """Mean square of the groups' means, weighted by their requests."""
        return float((self.count * self.mean**2).sum() / max(self.count.sum(), 1.0))

    @property
    def groups(self) -> int:
        """Number of groups with a request, over all phases; at least 1."""
        return max(np.count_nonzero(self.count), 1)

    @property
    def is_chance(self) -> bool:
        """Whether the residuals are no larger than the scatter of requests explains."""
        return misfit(self, self) <= self.groups


NOTHING = GroupResiduals(np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(1))


def misfit(residuals: GroupResiduals, noise: GroupResiduals) -> float:
    """Return the sum of squares of the groups' means, in standard errors of ``noise``; see ``variance_of``."""
    nonempty = residuals.count > 0
    return float((residuals.mean**2 / variance_of(noise))[nonempty].sum())


def variance_of(noise: GroupResiduals) -> np.ndarray:
    """Return the variance of each group's mean, shape [phases, groups]: scatter of its requests, plus ALLOWED squared.

    Single requests scatter because it is chance which of them share a step.
    """
    return noise.spread[:, None] ** 2 / np.maximum(noise.count, 1.0) + ALLOWED**2


def explains(after: GroupResiduals, before: GroupResiduals) -> bool:
    """Whether a cause reduces the misfit significantly: by LEAST_SQUARES, and by LEAST_GAIN of what remains."""
    remaining = misfit(after, after)
    return misfit(before, after) - remaining >= max(LEAST_SQUARES, LEAST_GAIN * remaining)


def group_residuals(residuals: np.ndarray, groups: np.ndarray) -> GroupResiduals:
    """Return mean residuals by group of requests.

    ``residuals``: (measured - predicted) / measured, shape [phases, requests], NaN for none; ``groups``: number of each
    request's group. Residuals are converted to shares of the mean of both times, whose scatter is symmetric.
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


def averaged(replays: Sequence[GroupResiduals]) -> GroupResiduals:
    """Return the mean residuals over replays of nearly equal sizes, which averages out who shares a step with whom."""
    return GroupResiduals(
        np.mean([residuals.mean for residuals in replays], axis=0), replays[0].count,
        np.mean([residuals.spread for residuals in replays], axis=0),
    )  # fmt: skip


def _spread(deviations: np.ndarray) -> float:
    """Return the standard deviation of single requests, enlarged for the correlation of consecutive ones.

    It is that of independent requests whose sums over CONSECUTIVE vary as much as the observed sums.
    """
    if not deviations.size:
        return 0.0
    square = float(np.mean(deviations**2))
    sums = [deviations[: deviations.size // n * n].reshape(-1, n).sum(axis=1) for n in CONSECUTIVE]
    squares = [float(np.mean(means**2)) / n for means, n in zip(sums, CONSECUTIVE, strict=True) if means.size]
    return float(np.sqrt(max(square, np.mean(squares) if squares else 0.0)))


def similar(measured: Measured, chosen: np.ndarray) -> np.ndarray:
    """Return the group number of each chosen request: terciles of prompt length, output length and concurrency.

    The mean over a group averages out the chance of which requests share a step; what remains has a cause.
    """
    sent_s = measured.sent_s[chosen]
    ends_s = np.sort(measured.last_s[chosen])
    in_flight = np.arange(sent_s.size)[np.argsort(np.argsort(sent_s))] - np.searchsorted(ends_s, sent_s)
    group = np.zeros(sent_s.size, np.int64)
    for values in (measured.prompt_tokens[chosen], measured.output_tokens[chosen], in_flight):
        edges = np.unique(np.quantile(values, [1 / 3, 2 / 3]))
        group = group * 3 + np.searchsorted(edges, values)
    return group
