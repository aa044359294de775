"""Quantiles, probabilities of the eight speed-up bins, and the probability to be faster, from a forecast."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from kernelsight.searching.decisions import WORTH

# reference time / candidate time at the edges of the bins: steps of the square root of two and of two
BIN_EDGES = (0.25, 0.5, 0.5**0.5, 1.0, 2.0**0.5, 2.0, 4.0)
BINS = len(BIN_EDGES) + 1
Z90 = 1.6448536269514722
# degrees of freedom of Student's t: a forecast's standard deviation is learned from few errors
TAILS = 4


class Quantiles(NamedTuple):
    """The median of log latency, and its 5th and 95th percentiles, arrays of shape (candidates,)."""

    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def quantiles(mean: np.ndarray, sd: np.ndarray) -> Quantiles:
    """Return the 90 % interval of normal forecasts of the log latency."""
    return Quantiles(mean - Z90 * sd, mean, mean + Z90 * sd)


def bin_probabilities(mean: np.ndarray, sd: np.ndarray, anchor_log: float) -> np.ndarray:
    """Return the probability of each speed-up bin over an anchor, shape (candidates, BINS).

    By Student's t distribution with the 5th and 95th percentiles of the normal forecast.

    >>> bin_probabilities(np.array([0.0]), np.array([1e-6]), np.log(1.2)).round(3).tolist()
    [[0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]
    """
    edges = np.log(np.array(BIN_EDGES))
    # speed-up below an edge: log latency above anchor less edge
    scale = sd * (Z90 / stdtrit(TAILS, 0.95))
    below = stdtr(TAILS, (edges[None] - anchor_log + mean[:, None]) / scale[:, None])
    return np.diff(np.column_stack([np.zeros(len(mean)), below, np.ones(len(mean))]), axis=1)


def bins_of(logs: np.ndarray, anchor_log: float) -> np.ndarray:
    """Return the bins, from 0, of measured log latencies."""
    return np.searchsorted(np.log(np.array(BIN_EDGES)), anchor_log - logs, side="right")


def chance_faster(mean: np.ndarray, sd: np.ndarray, works: np.ndarray, best: float) -> np.ndarray:
    """Return the probability that a candidate works and is at least 2 % faster than ``best`` (log latency)."""
    return ndtr((best + WORTH - mean) / sd) * works
