"""Arrivals of an open loop, drawn as vLLM's benchmark client does: gamma-distributed gaps, at one rate or on a ramp."""

from __future__ import annotations

import numpy as np

STEADY = 1e12  # largest shape of the gamma distribution: gaps then differ by less than one in a million


def steady_arrivals(generator: np.random.Generator, n: int, rate: float | None, burstiness: float) -> np.ndarray:
    """Return n arrivals in seconds after the first, spaced as vLLM's benchmark client spaces what it sends.

    Followed (vllm/benchmarks/serve.py, get_request): each request waits for a gap of the gamma distribution with shape
    ``burstiness`` and mean 1 / rate, and the n gaps are then scaled so that their sum is n / rate, whatever the seed.
    Not followed: the clock starts at the first arrival, where the client's starts one gap earlier; the random numbers
    are numpy's PCG64, so a seed does not give the client's own arrivals. No rate: all at once.

    >>> steady_arrivals(np.random.default_rng(0), 3, None, 1.0).tolist()
    [0.0, 0.0, 0.0]
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

    >>> ramp_rates("linear", 1.0, 3.0, 3).tolist(), ramp_rates("exponential", 1.0, 4.0, 3).tolist()
    ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    """
    progress = np.arange(n) / max(n - 1, 1)
    if strategy == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress


def ramped_arrivals(generator: np.random.Generator, rates: np.ndarray, burstiness: float) -> np.ndarray:
    """Return arrivals in seconds after the first, one for each rate: gaps of mean 1 / rate and shape ``burstiness``.

    Their sum stays as drawn: the client scales it at a constant rate only.

    >>> ramped_arrivals(np.random.default_rng(0), np.array([1.0, 2.0, 4.0]), 1e12).round(3).tolist()
    [0.0, 0.5, 0.75]
    """
    shape = min(burstiness, STEADY)
    sends = np.cumsum(generator.standard_gamma(shape, rates.size) / shape / rates)
    return sends - sends[0]
