"""How many requests start in a step at capacity: probabilities of their number, and of the prompt tokens they bring.

Requests start as independent arrivals do, a Poisson number a step; or in cohorts, where answers of one length that
started together end together.
"""

from __future__ import annotations

import math

import numpy as np

# numbers of requests that start in a step, beyond which neighbouring ones are costed together
MOST_COUNTS = 16


def prompt_steps(starting: float, prompt: float, budget: float) -> list[tuple[float, float]]:
    """Return (share of steps, prompt tokens in them), where prompts of one length start independently of each other.

    ``starting``: requests that start in a step on average; ``prompt``: tokens of each; ``budget``: tokens that a step
    has left for prompts. Prompts that exceed it are chunked: what is left over fills further steps.

    >>> [(round(share, 3), tokens) for share, tokens in prompt_steps(0.1, 500.0, 1000.0)]
    [(0.905, 0.0), (0.09, 500.0), (0.005, 1000.0)]
    >>> [(round(share, 3), tokens) for share, tokens in prompt_steps(0.1, 2500.0, 1000.0)]
    [(0.713, 0.0), (0.075, 500.0), (0.212, 1000.0)]
    """
    if prompt <= 0.0:
        return [(1.0, 0.0)]
    if prompt >= budget:
        busy = starting * prompt / budget
        rest = prompt - math.floor(prompt / budget) * budget
        partial = starting * (1.0 - busy) if rest > 0.0 else 0.0
        full = (starting * prompt - rest * partial) / budget
        return [(max(1.0 - partial - full, 0.0), 0.0), (partial, rest), (full, budget)]
    share_of_tokens: dict[float, float] = {}
    for share, count in counts_of(starting):
        tokens = min(count * prompt, budget)
        share_of_tokens[tokens] = share_of_tokens.get(tokens, 0.0) + share
    full = (starting * prompt - sum(share * tokens for tokens, share in share_of_tokens.items())) / budget
    if full > 1e-9:
        share_of_tokens[budget] = share_of_tokens.get(budget, 0.0) + full
        remaining = full  # the steps that chunks fill were the emptiest ones
        for tokens in sorted(share_of_tokens):
            removed = min(remaining, share_of_tokens[tokens])
            share_of_tokens[tokens] -= removed
            remaining -= removed
    return [(share, tokens) for tokens, share in sorted(share_of_tokens.items()) if share > 1e-12]


def counts_of(mean: float) -> list[tuple[float, float]]:
    """Return the Poisson distribution of requests that start in one step, as (probability, number); see ``grouped``.

    >>> [(round(share, 3), count) for share, count in counts_of(0.05)]
    [(0.951, 0.0), (0.048, 1.0), (0.001, 2.0)]
    """
    largest = math.ceil(mean + 4.0 * math.sqrt(mean) + 1.0)
    numbers = np.arange(largest + 1)
    shares = _poisson(numbers, mean)
    return grouped(numbers, shares / shares.sum())


def _poisson(numbers: np.ndarray, mean: float) -> np.ndarray:
    """Return Poisson probabilities of consecutive ``numbers``, up to one common factor."""
    return np.exp((numbers - numbers[0]) * math.log(mean) - mean - np.cumsum(np.log(np.maximum(numbers, 1))))


def any_arrives(mean: float, burstiness: float) -> float:
    """Return the probability that at least one request arrives in a time in which ``mean`` requests do on average.

    1 - P(0) of a negative binomial number with the variance that gamma-distributed gaps of this ``burstiness`` (their
    shape) give over a long time; burstiness 1: Poisson.

    >>> round(any_arrives(0.5, 1.0), 3), round(any_arrives(0.5, 0.5), 3)
    (0.393, 0.293)
    """
    exponent = mean if abs(burstiness - 1.0) < 1e-6 else mean * burstiness * math.log(burstiness) / (burstiness - 1.0)
    return -math.expm1(-exponent)


def cohorts_of(mean: float, first: float, again: float) -> list[tuple[float, float]]:
    """Return (share of decode steps, size of the cohort that starts after them); ``mean`` requests over all steps.

    After a share ``first`` of the decode steps a cohort starts. It arrived in one step, with probability ``again`` in
    one more, and so on: in each of these a Poisson number of requests, conditioned on at least one.

    >>> [(round(share, 3), round(count, 2)) for share, count in cohorts_of(0.5, 0.4, 0.1)][:3]
    [(0.318, 1.0), (0.066, 2.0), (0.012, 3.0)]
    """
    # at least one request arrives in each step of a cohort
    first = min(first, mean)
    again = min(again, 1.0 - first / mean)
    mean_per_step = mean * (1.0 - again) / first
    rate = _rate_of_zero_truncated_poisson(mean_per_step)
    largest = math.ceil(4.0 + 8.0 * mean / first)
    numbers = np.arange(1, largest + 1)
    arrivals_of_step = _poisson(numbers, rate)
    arrivals_of_step /= arrivals_of_step.sum()
    # p (1 - a) (1 + a p + (a p)^2 + ...), with convolutions as products of Fourier transforms; padded to a length at
    # which what wraps around is far below p
    transformed = np.fft.rfft(np.append(0.0, arrivals_of_step), 2 * largest + 2)
    shares = np.fft.irfft((1.0 - again) * transformed / (1.0 - again * transformed))[1 : largest + 1]
    # cohorts above the largest are cut off: the others are scaled up to the same sum
    shares *= first / shares.sum()
    return grouped(numbers, shares)


def _rate_of_zero_truncated_poisson(mean: float) -> float:
    """Return the rate (above 0) of a Poisson distribution whose mean over numbers above 0 is ``mean``, by bisection."""
    low, high = 1e-6, max(mean, 1e-5)
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if middle / -math.expm1(-middle) < mean else (low, middle)
    return high


def grouped(numbers: np.ndarray, shares: np.ndarray) -> list[tuple[float, float]]:
    """Return (share, mean number) of at most MOST_COUNTS groups of neighbouring numbers."""
    count = min(MOST_COUNTS, numbers.size)
    size, longer = divmod(numbers.size, count)
    starts = np.arange(count) * size + np.minimum(np.arange(count), longer)
    sums, totals = np.add.reduceat(np.stack([shares, shares * numbers]), starts, axis=1)
    # a group of one number keeps it exactly, so that the tokens of its steps stay whole
    means = numbers.astype(float) if count == numbers.size else totals / np.maximum(sums, 1e-300)
    return [(share, mean) for share, mean in zip(sums.tolist(), means.tolist(), strict=True) if share > 1e-12]
