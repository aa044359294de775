"""What a small sweep says of calls near its points: a Gaussian process over what expression and correction leave.

delta = k(x, X) alpha with k = exp(-|x - X| / length) among the points of one kernel, 0 far from all of them: what was
measured is answered by its measurement up to its noise, one between two measurements by both (kriging; Rasmussen
and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# rows that are answered at once
BLOCK = 1024


class Nearby(NamedTuple):
    """Points of one kernel: positions in units of the correction's features, their weights, and how far they reach."""

    points: np.ndarray  # (P, F)
    weights: np.ndarray  # (P,)
    length: float


def nearby_delta(inputs: np.ndarray, kernels: Sequence[str], nearby: Mapping[str, Nearby]) -> np.ndarray:
    """Return the logarithm of the factor of each row, 0 for kernels without points; ``inputs``: (rows, F), scaled."""
    log_delta, names = np.zeros(inputs.shape[0]), np.asarray(kernels)
    for name, one in nearby.items():
        rows = np.flatnonzero(names == name)
        for first in range(0, rows.size, BLOCK):
            block = rows[first : first + BLOCK]
            log_delta[block] = correlation(inputs[block], one.points, one.length) @ one.weights
    return log_delta


def nearby_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Nearby]:
    """Return the points that rows of one (family, GPU) hold, by kernel."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        kernel = "|".join((row["engine"], row["implementation"], row["dtype"]))
        arrays.setdefault(kernel, {})[row["coefficient"]] = np.array(row["array"])
    return {
        name: Nearby(one["points"].reshape(one["weights"].size, -1), one["weights"], float(one["length"][0]))
        for name, one in arrays.items()
    }


def correlation(left: np.ndarray, right: np.ndarray, length: float) -> np.ndarray:
    """Return exp(-|left - right| / length) of every pair of rows."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.exp(-np.sqrt(np.maximum(squares, 0.0)) / length)
