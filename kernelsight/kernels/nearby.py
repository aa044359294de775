"""Gaussian process over the residuals of a small sweep, for calls near its points, beside expression and correction.

delta = k(x, X) alpha with k = exp(-|x - X| / length) over the points of one kernel, 0 far from all of them: a measured
call is predicted by its measurement up to the noise, a call between two points by both (kriging; Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, chapter 2). :mod:`kernelsight.fitting.measured` fits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# rows that are predicted in one block
BLOCK = 1024


class Nearby(NamedTuple):
    """The P points of one kernel, with their kriging weights."""

    points: np.ndarray  # (P, F) features, scaled as the correction's inputs
    weights: np.ndarray  # (P,) alpha
    length: float  # of the correlation, in scaled features


def nearby_delta(inputs: np.ndarray, kernels: Sequence[str], nearby: Mapping[str, Nearby]) -> np.ndarray:
    """Return the log factor of each row, (rows,), 0 for kernels without points.

    ``inputs``: scaled features, (rows, F); ``kernels``: engine|implementation|dtype of each row.
    """
    log_delta, names = np.zeros(inputs.shape[0]), np.asarray(kernels)
    for name, near in nearby.items():
        rows = np.flatnonzero(names == name)
        for first in range(0, rows.size, BLOCK):
            block = rows[first : first + BLOCK]
            log_delta[block] = correlation(inputs[block], near.points, near.length) @ near.weights
    return log_delta


def nearby_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Nearby]:
    """Return the points by kernel from the ``eta_coefficients`` rows of one family, GPU and part nearby."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        kernel = "|".join((row["engine"], row["implementation"], row["dtype"]))
        arrays.setdefault(kernel, {})[row["coefficient"]] = np.array(row["array"])
    return {
        name: Nearby(
            of_kernel["points"].reshape(of_kernel["weights"].size, -1),
            of_kernel["weights"],
            float(of_kernel["length"][0]),
        )
        for name, of_kernel in arrays.items()
    }


def correlation(first: np.ndarray, second: np.ndarray, length: float) -> np.ndarray:
    """Return exp(-|x - y| / length) of every pair of rows, (rows of the first, rows of the second)."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2.0 * first @ second.T
    return np.exp(-np.sqrt(np.maximum(squares, 0.0)) / length)
