"""Points of a small sweep, fitted: which of them :mod:`kernelsight.kernels.nearby` answers by, and with which weights.

Length and noise are those with the least leave-one-out error (Rasmussen and Williams 2006, section 5.4.2). Sweeps of
more than MOST_POINTS points of a family have none: their network is as good, and a pack stays small; points have the
11 bits of a float16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelsight.kernels.nearby import Nearby, correlation

MOST_POINTS = 3000
# rows of one kernel that choose length and noise
CHOOSING = 800
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
# standard deviation of repeated measurements against that of what is left to explain
NOISES = (0.05, 0.2, 0.5, 1.0)


def fit_nearby(inputs: np.ndarray, left: np.ndarray, kernels: Sequence[str]) -> dict[str, Nearby]:
    """Fit the points of each kernel; none where there are more than MOST_POINTS in all, or fewer than 3 of a kernel.

    ``inputs``: (rows, F) scaled features; ``left``: log(measured / predicted). Deterministic. Repeats of one point are
    one point, at the mean of what they leave.
    """
    if left.size > MOST_POINTS:
        return {}
    names = np.asarray(kernels)
    fit_of_kernel = {
        name: _fit_kernel(inputs[names == name], left[names == name]) for name in np.unique(names).tolist()
    }
    return {name: one for name, one in fit_of_kernel.items() if one is not None}


def _fit_kernel(inputs: np.ndarray, residual: np.ndarray) -> Nearby | None:
    points, point_of_row = np.unique(np.asarray(inputs, np.float16).astype(float), axis=0, return_inverse=True)
    count = np.bincount(point_of_row.ravel())
    residual = np.bincount(point_of_row.ravel(), residual) / count
    if residual.size < 3:
        return None
    chosen = np.unique(np.linspace(0, residual.size - 1, min(residual.size, CHOOSING)).round().astype(int))
    tried = [
        (_left_out_error(points[chosen], residual[chosen], count[chosen], length, noise), length, noise)
        for length in LENGTHS
        for noise in NOISES
    ]
    _, length, noise = min(tried)
    weights = np.linalg.solve(_covariance(points, count, length, noise), residual)
    return Nearby(points, weights, length)


def _left_out_error(points: np.ndarray, residual: np.ndarray, count: np.ndarray, length: float, noise: float) -> float:
    """Mean absolute error at each point as the others foretell it."""
    inverse = np.linalg.inv(_covariance(points, count, length, noise))
    return float(np.abs(inverse @ residual / np.diag(inverse)).mean())


def _covariance(points: np.ndarray, count: np.ndarray, length: float, noise: float) -> np.ndarray:
    return correlation(points, points, length) + np.diag(noise**2 / count)
