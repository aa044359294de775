"""Prompt and output lengths in tokens, at least 1: uniform, lognormal, or drawn from a recorded load."""

from __future__ import annotations

import math

import numpy as np

from kernelsight.serving.load.traces import LARGEST_SIZE


def uniform_lengths(generator: np.random.Generator, n: int, nominal: int, range_ratio: float) -> np.ndarray:
    """Return n lengths in tokens, uniform over the whole numbers in [range_ratio x nominal, nominal].

    vLLM's random dataset spreads to both sides of the nominal length; here the nominal length is the longest.

    >>> uniform_lengths(np.random.default_rng(0), 3, 512, 1.0).tolist()
    [512, 512, 512]
    """
    shortest = math.ceil(round(range_ratio * nominal, 6))  # 0.07 x 100 is a little more than 7 in floating point
    return generator.integers(max(shortest, 1), nominal, size=n, endpoint=True)


def lognormal_lengths(generator: np.random.Generator, n: int, mean: int, cv: float | None) -> np.ndarray:
    """Return n lengths in tokens of the lognormal distribution with this mean and coefficient of variation.

    ln(length) is normal with variance s2 = ln(1 + cv^2) and mean ln(mean) - s2 / 2; rounded to whole tokens, at least
    1. Lengths above max_model_len are possible: the engine rejects such requests. No cv: all have the mean.

    >>> lognormal_lengths(np.random.default_rng(0), 3, 512, None).tolist()
    [512, 512, 512]
    """
    if cv is None:
        return np.full(n, mean, dtype=np.int64)
    variance = math.log1p(cv * cv) if cv < 1e100 else 2 * math.log(cv)  # the square of a larger one overflows
    logarithms = math.log(mean) - variance / 2 + math.sqrt(variance) * generator.standard_normal(n)
    return np.rint(np.exp(np.clip(logarithms, 0, math.log(LARGEST_SIZE)))).astype(np.int64)


def empirical_rows(generator: np.random.Generator, n: int, recorded: int) -> np.ndarray:
    """Return n rows of a recorded load, drawn with replacement: whole rows, so that prompt and output stay a pair.

    >>> empirical_rows(np.random.default_rng(0), 3, 1).tolist()
    [0, 0, 0]
    """
    return generator.integers(0, recorded, size=n)
