"""How many requests start in a step at capacity, and what average steps cost.

Requests start as independent arrivals do, a Poisson number a step; or in cohorts, where answers of one length that
started together end together. Step costs are read off the surfaces that the loop reads, at fractions of requests, many
steps a call.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kernelsight.serving.costs.knots import Reach, first_beyond
from kernelsight.serving.engine.inputs import Surface


class MeanStepCosts(NamedTuple):
    """GPU time of the parts of several steps of one model, microseconds each, shape [steps].

    ``window``: tokens that windowed attention reads; 0: the model has none.
    """

    surface: Surface
    window: int

    def decode_us(self, requests: np.ndarray, context: float, prompt_tokens: np.ndarray | float = 0.0) -> np.ndarray:
        """Return the decode attention of a step over all its requests, each with ``context`` tokens in the KV cache.

        ``prompt_tokens``: of the step; decodes cost what the surface says of steps with prompts.
        """
        s = self.surface
        inside = min(context, float(self.window)) if self.window else 0.0
        full = _bilinear(s.decode_x, s.decode_y, s.decode_us, requests, context)
        alone_us = full + _bilinear(s.window_x, s.window_y, s.window_us, requests, inside)
        if not s.mixed_us.size:
            return alone_us
        mixed_us = _bilinear(s.mixed_x, s.mixed_y, s.mixed_us, requests, context)
        return np.where(np.asarray(prompt_tokens) > 0.0, mixed_us, alone_us)

    def prefill_us(self, tokens: np.ndarray, cached: np.ndarray, chunks: np.ndarray) -> np.ndarray:
        """Return the prefill attention of a step with ``chunks`` chunks of ``tokens``: they share one kernel launch."""
        s = self.surface
        if not s.prefill_us.size or not chunks.any():
            return np.zeros(tokens.size)
        one_chunk_us = _bilinear(s.prefill_x, s.prefill_y, s.prefill_us, tokens, cached)
        return chunks * one_chunk_us - np.maximum(chunks - 1.0, 0.0) * s.prefill_us[0, 0]

    def layers_us(self, tokens: np.ndarray, prompt_tokens: np.ndarray | float = 0.0) -> np.ndarray:
        """Return the layers without attention, at the tokens of a step padded to the size of its CUDA graph."""
        whole = self.surface.padded_prompt_tokens
        padded = self.padded(tokens)
        if whole.size:
            padded = np.where(np.asarray(prompt_tokens) > 0.0, whole[_whole_rows(tokens, whole)], padded)
        # with as many adapters as a step may have
        return (self.surface.adapted_us[-1] if self.surface.adapted_us.size else self.surface.token_us)[padded]

    def padded(self, tokens: np.ndarray) -> np.ndarray:
        """Return the sizes of the CUDA graphs that hold these tokens."""
        return self.surface.padded_tokens[_whole_rows(tokens, self.surface.padded_tokens)]

    def logits_us(self, sampled: np.ndarray) -> np.ndarray:
        """Return the language-model head over the tokens that are sampled."""
        return self.surface.sampled_us[_whole_rows(sampled, self.surface.sampled_us)]

    def part_us(self, name: str, tokens: np.ndarray) -> np.ndarray:
        """Return a named part of the surface, such as ``"transfer_us"``; 0 where the deployment has none."""
        values = getattr(self.surface, name)
        return values[_whole_rows(tokens, values)] if values.size else np.zeros(tokens.size)


def surface_within(surface: Surface, reach: Reach) -> Surface:
    """Return the surface with attention cut to what one load can reach, as ``within_reach`` cuts its knots.

    A session's other loads may need more knots; without the cut, extrapolation would depend on them.
    """
    decodes, contexts, window, prompts, cached, mixed, mixed_contexts = (
        first_beyond(knots, largest) + 1
        for knots, largest in (
            *((surface.decode_x, reach.requests), (surface.decode_y, reach.tokens)),
            (surface.window_x, reach.requests),
            *((surface.prefill_x, reach.tokens), (surface.prefill_y, reach.tokens)),
            *((surface.mixed_x, reach.requests), (surface.mixed_y, reach.tokens)),
        )
    )
    return surface._replace(
        decode_x=surface.decode_x[:decodes],
        decode_y=surface.decode_y[:contexts],
        decode_us=surface.decode_us[:decodes, :contexts],
        window_x=surface.window_x[:window],
        window_us=surface.window_us[:window],
        prefill_x=surface.prefill_x[:prompts],
        prefill_y=surface.prefill_y[:cached],
        prefill_us=surface.prefill_us[:prompts, :cached],
        mixed_x=surface.mixed_x[:mixed],
        mixed_y=surface.mixed_y[:mixed_contexts],
        mixed_us=surface.mixed_us[:mixed, :mixed_contexts],
    )


def _whole_rows(numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the rows of a dense table for numbers that may be fractions: rounded up, up to its last row."""
    return np.minimum(np.maximum(np.ceil(numbers), 0), values.size - 1).astype(np.intp)


def _knot_below(knots: np.ndarray, values: np.ndarray | float) -> np.ndarray:
    """Return the knot at or below each value, but neither before the first nor, of several, the last."""
    # np.clip takes five times as long for a few values
    return np.minimum(np.maximum(knots.searchsorted(values, side="right") - 1, 0), max(knots.size - 2, 0))


def _bilinear(xs: np.ndarray, ys: np.ndarray, grid: np.ndarray, x: np.ndarray, y: np.ndarray | float) -> np.ndarray:
    """Return a grid interpolated bilinearly at x, shape [steps], and y, a number or shape [steps].

    Beyond the last knots it extrapolates linearly; over ``x`` by the line from half of the last knot on, as the loop.
    """
    if not grid.size or not x.any():
        return np.zeros(x.size)
    lower = _knot_below(ys, y)
    upper = np.minimum(lower + 1, ys.size - 1)
    y_share = (y - ys[lower]) / np.where(upper > lower, ys[upper] - ys[lower], math.inf)
    low = _knot_below(xs, x)
    low = np.where(x > xs[-1], np.searchsorted(xs, xs[-1] / 2.0, side="right") - 1, low)
    high = np.where(x > xs[-1], xs.size - 1, np.minimum(low + 1, xs.size - 1))
    x_share = (x - xs[low]) / np.where(xs[high] > xs[low], xs[high] - xs[low], math.inf)
    at_lower, at_upper = ((1.0 - x_share) * grid[low, row] + x_share * grid[high, row] for row in (lower, upper))
    inside = (1.0 - y_share) * at_lower + y_share * at_upper
    # an average of less than one request costs its share of one
    below_first = x / max(xs[0], 1e-300) * ((1.0 - y_share) * grid[0, lower] + y_share * grid[0, upper])
    return np.where(x <= 0.0, 0.0, np.where(x < xs[0], below_first, inside))


# numbers of requests that start in a step, beyond which neighbouring ones are costed together
MOST_COUNTS = 16


def prompt_steps(starting: float, prompt: float, budget: float) -> list[tuple[float, float]]:
    """Return (share of steps, prompt tokens in them), where prompts of one length start independently of each other.

    ``starting``: requests that start in a step on average; ``prompt``: tokens of each; ``budget``: tokens that a step
    has left for prompts. Prompts that exceed it are chunked: what is left over fills further steps.
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
    """Return the Poisson distribution of requests that start in one step, as (probability, number); see ``grouped``."""
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
