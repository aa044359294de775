"""What a small sweep says of calls near its points: a Gaussian process over what head and correction leave of them.

delta = k(x, X) alpha with k = exp(-|x - X| / length) among the points of one kernel, 0 far from all of them: what was
measured is answered by its measurement up to its noise, one between two measurements by both (kriging; Rasmussen
and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2). Length and noise are those with the least
leave-one-out error (their section 5.4.2). Sweeps of more than MOST_POINTS points of a family have none: their network
is as good, and a pack stays small; points have the 11 bits of a float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_POINTS = 3000
# rows that are answered at once
BLOCK = 1024
# rows of one kernel that choose length and noise
CHOOSING = 800
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
# standard deviation of repeated measurements against that of what is left to explain
NOISES = (0.05, 0.2, 0.5, 1.0)


class Nearby(NamedTuple):
    """Points of one kernel: positions in units of the correction's features, their weights, and how far they reach."""

    points: np.ndarray  # (P, F)
    weights: np.ndarray  # (P,)
    length: float


def fit_nearby(inputs: np.ndarray, left: np.ndarray, kernels: Sequence[str]) -> dict[str, Nearby]:
    """Fit the points of each kernel; none where there are more than MOST_POINTS in all, or fewer than 3 of a kernel.

    ``inputs``: (rows, F) scaled features; ``left``: log(measured / predicted). Deterministic. Repeats of one point are
    one point, at the mean of what they leave.
    """
    if left.size > MOST_POINTS:
        return {}
    names = np.asarray(kernels)
    found = {name: _fit_kernel(inputs[names == name], left[names == name]) for name in np.unique(names).tolist()}
    return {name: one for name, one in found.items() if one is not None}


def nearby_delta(inputs: np.ndarray, kernels: Sequence[str], nearby: Mapping[str, Nearby]) -> np.ndarray:
    """Return the logarithm of the factor of each row, 0 for kernels without points; ``inputs``: (rows, F), scaled."""
    found, names = np.zeros(inputs.shape[0]), np.asarray(kernels)
    for name, one in nearby.items():
        rows = np.flatnonzero(names == name)
        for first in range(0, rows.size, BLOCK):
            block = rows[first : first + BLOCK]
            found[block] = _kernel(inputs[block], one.points, one.length) @ one.weights
    return found


def nearby_rows(family: str, gpu: str, nearby: Mapping[str, Nearby], source: str) -> list[dict]:
    """Return the points as ``eta_coefficients`` rows, one an array."""
    rows = []
    for name, one in nearby.items():
        engine, implementation, dtype = name.split("|")
        for coefficient, values in (("points", one.points), ("weights", one.weights), ("length", [one.length])):
            rows.append(
                {
                    "family": family, "part": "nearby", "level": "gpu", "gpu": gpu, "engine": engine,
                    "implementation": implementation, "dtype": dtype, "coefficient": coefficient, "position": 0,
                    "array": np.ravel(np.asarray(values, dtype=np.float32)).astype(float).tolist(), "unit": "1",
                    "source": source,
                }
            )  # fmt: skip
    return rows


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


def _fit_kernel(inputs: np.ndarray, left: np.ndarray) -> Nearby | None:
    points, place = np.unique(np.asarray(inputs, np.float16).astype(float), axis=0, return_inverse=True)
    count = np.bincount(place.ravel())
    left = np.bincount(place.ravel(), left) / count
    if left.size < 3:
        return None
    chosen = np.unique(np.linspace(0, left.size - 1, min(left.size, CHOOSING)).round().astype(int))
    tried = [
        (_left_out_error(points[chosen], left[chosen], count[chosen], length, noise), length, noise)
        for length in LENGTHS
        for noise in NOISES
    ]
    _, length, noise = min(tried)
    weights = np.linalg.solve(_covariance(points, count, length, noise), left)
    return Nearby(points, weights, length)


def _left_out_error(points: np.ndarray, left: np.ndarray, count: np.ndarray, length: float, noise: float) -> float:
    """Mean absolute error at each point as the others foretell it."""
    inverse = np.linalg.inv(_covariance(points, count, length, noise))
    return float(np.abs(inverse @ left / np.diag(inverse)).mean())


def _covariance(points: np.ndarray, count: np.ndarray, length: float, noise: float) -> np.ndarray:
    return _kernel(points, points, length) + np.diag(noise**2 / count)


def _kernel(left: np.ndarray, right: np.ndarray, length: float) -> np.ndarray:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.exp(-np.sqrt(np.maximum(squares, 0.0)) / length)
