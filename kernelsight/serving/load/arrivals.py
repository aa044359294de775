"""Draws of synthetic loads: arrivals, lengths, pauses between turns, and the start of users of a closed loop.

Arrivals of an open loop are drawn as vLLM's benchmark client does: gamma-distributed gaps, at one rate or on a ramp.
Lengths, at least 1 token, are uniform, lognormal, or drawn from a recorded load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelsight.serving.load.dependencies import LONGEST_S
from kernelsight.serving.load.traces import LARGEST_SIZE

# standard deviation / mean of think times: 1 is the negative exponential distribution, from which the TPC-C benchmark
# draws them (TPC-C Standard Specification, revision 5.11, clause 5.2.5.4)
THINK_TIME_CV = 1.0


def think_times(generator: np.random.Generator, n: int, mean_s: float, cv: float | None) -> np.ndarray:
    """Return n think times in seconds: gamma-distributed with this mean and coefficient of variation.

    No cv: ``THINK_TIME_CV``. A cv of 0 makes all equal to the mean: conversations of equal lengths that begin together
    then stay in lock step, as no real users do.
    """
    cv = THINK_TIME_CV if cv is None else cv
    shape = min(1.0 / max(cv, 1e-9) ** 2, STEADY)
    if shape == STEADY:
        return np.full(n, mean_s)
    return np.minimum(generator.standard_gamma(shape, n) * (mean_s / shape), LONGEST_S)


def ramp_s_of(scenario: Mapping[str, Any]) -> float:
    """Return the seconds over which the users of a closed loop start: as stated, else over their pauses.

    The pauses of one conversation, (num_turns - 1) x think_time_s: users are then at every turn from the first on, as
    they are later. Without pauses all start at once.
    """
    if scenario.get("concurrency_ramp_s") is not None:
        return scenario["concurrency_ramp_s"]
    return ((scenario.get("num_turns") or 1) - 1) * (scenario.get("think_time_s") or 0.0)


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
    """
    if cv is None:
        return np.full(n, mean, dtype=np.int64)
    variance = math.log1p(cv * cv) if cv < 1e100 else 2 * math.log(cv)  # the square of a larger one overflows
    logarithms = math.log(mean) - variance / 2 + math.sqrt(variance) * generator.standard_normal(n)
    return np.rint(np.exp(np.clip(logarithms, 0, math.log(LARGEST_SIZE)))).astype(np.int64)


def empirical_rows(generator: np.random.Generator, n: int, recorded: int) -> np.ndarray:
    """Return n rows of a recorded load, drawn with replacement: whole rows, so that prompt and output stay a pair."""
    return generator.integers(0, recorded, size=n)


STEADY = 1e12  # largest shape of the gamma distribution: gaps then differ by less than one in a million


def steady_arrivals(generator: np.random.Generator, n: int, rate: float | None, burstiness: float) -> np.ndarray:
    """Return n arrivals in seconds after the first, spaced as vLLM's benchmark client spaces what it sends.

    Followed (vllm/benchmarks/serve.py, get_request): each request waits for a gap of the gamma distribution with shape
    ``burstiness`` and mean 1 / rate, and the n gaps are then scaled so that their sum is n / rate, whatever the seed.
    Not followed: the clock starts at the first arrival, where the client's starts one gap earlier; the random numbers
    are numpy's PCG64, so a seed does not give the client's own arrivals. No rate: all at once.
    """
    if rate is None:
        return np.zeros(n)
    sends = np.cumsum(generator.standard_gamma(min(burstiness, STEADY), n))
    if sends[-1] > 0:  # with shapes near 0 every gap may be rounded to 0
        sends *= n / rate / sends[-1]
    return sends - sends[0]


def ramp_rates(strategy: str, start: float, end: float, n: int) -> np.ndarray:
    """Return the rate (requests/s) before each of n requests, from ``start`` at the first to ``end`` at the last.

    linear: start + (end - start) x progress; exponential: start x (end / start)^progress, with progress by the count of
    requests, not by time (vllm/benchmarks/serve.py, _get_current_request_rate).
    """
    progress = np.arange(n) / max(n - 1, 1)
    if strategy == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress


def ramped_arrivals(generator: np.random.Generator, rates: np.ndarray, burstiness: float) -> np.ndarray:
    """Return arrivals in seconds after the first, one for each rate: gaps of mean 1 / rate and shape ``burstiness``.

    Their sum stays as drawn: the client scales it at a constant rate only.
    """
    shape = min(burstiness, STEADY)
    sends = np.cumsum(generator.standard_gamma(shape, rates.size) / shape / rates)
    return sends - sends[0]
