"""Gaussian-process fit of a small sweep's residual: the points and weights by which ``kernels.nearby`` interpolates.

Length and noise are those with the least leave-one-out error (Rasmussen and Williams 2006, section 5.4.2). A family
with more than MOST_POINTS points has none: its network alone is as good, and a pack stays small. Points are stored in
float16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelsight.kernels.nearby import Nearby, correlation

MOST_POINTS = 3000
# most points of one kernel by which length and noise are chosen
CHOOSING = 800
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
# standard deviation of repeated measurements over that of the residual
NOISES = (0.05, 0.2, 0.5, 1.0)


def fit_nearby(inputs: np.ndarray, residual: np.ndarray, kernels: Sequence[str]) -> dict[str, Nearby]:
    """Fit the points of each kernel; none with more than MOST_POINTS rows in all, or fewer than 3 points of a kernel.

    ``inputs``: (rows, F) scaled features; ``residual``: (rows,), log(measured / predicted); ``kernels``: of each row.
    Deterministic. Repeated rows are one point, at the mean of their residuals.
    """
    if residual.size > MOST_POINTS:
        return {}
    names = np.asarray(kernels)
    fit_of_kernel = {
        name: _fit_kernel(inputs[names == name], residual[names == name]) for name in np.unique(names).tolist()
    }
    return {name: nearby for name, nearby in fit_of_kernel.items() if nearby is not None}


def _fit_kernel(inputs: np.ndarray, residual: np.ndarray) -> Nearby | None:
    points, point_of_row = np.unique(np.asarray(inputs, np.float16).astype(float), axis=0, return_inverse=True)
    count = np.bincount(point_of_row.ravel())
    residual = np.bincount(point_of_row.ravel(), residual) / count
    if residual.size < 3:
        return None
    chosen = np.unique(np.linspace(0, residual.size - 1, min(residual.size, CHOOSING)).round().astype(int))
    tried = [
        (_leave_one_out_error(points[chosen], residual[chosen], count[chosen], length, noise), length, noise)
        for length in LENGTHS
        for noise in NOISES
    ]
    _, length, noise = min(tried)
    weights = np.linalg.solve(_covariance(points, count, length, noise), residual)
    return Nearby(points, weights, length)


def _leave_one_out_error(
    points: np.ndarray, residual: np.ndarray, count: np.ndarray, length: float, noise: float
) -> float:
    """Return the mean absolute error at each point, predicted by the others."""
    inverse = np.linalg.inv(_covariance(points, count, length, noise))
    return float(np.abs(inverse @ residual / np.diag(inverse)).mean())


def _covariance(points: np.ndarray, count: np.ndarray, length: float, noise: float) -> np.ndarray:
    return correlation(points, points, length) + np.diag(noise**2 / count)
