"""What a few measured calls say of all others on their GPU: where its constants lie, and what these leave by size.

The model is of e = log(measured / predicted across generations). Constants of the expression may be others on a new
GPU: each has a move for the family, for its implementation and for its kernel (engine and number formats, too), normal
around none, in units of the constant's spread. What moved constants leave is shared by calls of one family, of one
implementation and of one kernel, the latter two by how near their sizes lie: kriging (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapter 2). :mod:`kernelsight.fitting.few_points` fits both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.forms import Coefficient, moved

# rows that are answered at once
BLOCK = 2048
# what moved constants leave changes no prediction by more: a factor of 20
MOST_DELTA = 3.0


class Parts(NamedTuple):
    """Standard deviations: of the moves of constants, and of what two calls share beside; the length in log sizes.

    Chosen on A100, L40S, H100 and RTX PRO 6000 after 1, 3, 5 and 10 points a kernel, each GPU predicted by a fit
    without its generation. Half or twice of any of them changes the mean error by 0 to 0.4 points.
    """

    # of the logarithm of a constant, in units of its spread, at each of the three levels
    constant: float = 0.8
    family: float = 0.05
    implementation: float = 0.10
    implementation_by_size: float = 0.20
    kernel_by_size: float = 0.20
    noise: float = 0.15
    size_length: float = 3.0


PARTS = Parts()
# features count in octaves, lengths in natural logarithms
LN2 = float(np.log(2.0))


class Places(NamedTuple):
    """Where calls of one family lie: engine, implementation and number formats of each, its sizes, and its slopes.

    ``features``: (N, F) logarithms of sizes; ``slopes``: (N, C) d log latency / d log constant, times the constant's
    spread; no columns where they are not asked for.
    """

    engine: np.ndarray
    implementation: np.ndarray
    dtype: np.ndarray
    features: np.ndarray
    slopes: np.ndarray

    @property
    def size(self) -> int:
        """The number of calls."""
        return self.features.shape[0]

    def at(self, rows: Any) -> Places:
        """Return the places of some rows."""
        return Places(*(column[rows] for column in self))

    def kernels(self) -> np.ndarray:
        """Return engine|implementation|dtype of each call."""
        words = zip(self.engine, self.implementation, self.dtype, strict=True)
        return np.array(["|".join(one) for one in words], dtype=object)


def sizes_of(family: str, seen: np.ndarray) -> np.ndarray:
    """Return natural logarithms of the sizes that a correction sees of calls, and its flags; no rounding to tiles.

    ``seen``: :func:`kernelsight.kernels.features.features` of the calls.
    """
    return LN2 * seen[:, : size_count(family)]


def size_count(family: str) -> int:
    """Return the number of a family's sizes and flags."""
    return len(FAMILIES[family].features.sizes) + len(FAMILIES[family].features.flags)


def places(words: Mapping[str, Any], features: np.ndarray, slopes: np.ndarray | None = None) -> Places:
    """Return the places of calls of one kernel or of many; ``words``: a word for all calls, or one for each."""
    count = features.shape[0]
    names = (
        np.broadcast_to(np.asarray(words[name], dtype=object), count) for name in ("engine", "implementation", "dtype")
    )
    return Places(*names, features, np.empty((count, 0)) if slopes is None else slopes)


def covariance(of: Places, to: Places, parts: Parts = PARTS) -> np.ndarray:
    """Return (calls of the first, calls of the second): the covariance of their log errors, without noise."""
    return _by_kernel(of, to, lambda one, alike: _left(one, to, alike, parts) + _moves(one, to, alike, parts))


def covariance_of_left(of: Places, to: Places, parts: Parts = PARTS) -> np.ndarray:
    """Return the covariance of what moved constants leave of calls, without noise."""
    return _by_kernel(of, to, lambda one, alike: _left(one, to, alike, parts))


def _by_kernel(of: Places, to: Places, shared: Any) -> np.ndarray:
    """Calls of each kernel with those of the second; ``shared``: by calls of one kernel and who is like them."""
    covariances = np.empty((of.size, to.size))
    kernels, kernel_of_row = np.unique(of.kernels().astype(str), return_inverse=True)
    others = to.kernels().astype(str)
    for number, kernel in enumerate(kernels.tolist()):
        rows = np.flatnonzero(kernel_of_row == number)
        one = of.at(rows)
        alike = np.asarray(to.implementation == one.implementation[0], float)
        covariances[rows] = shared(one, (alike, np.asarray(others == kernel, float)))
    return covariances


def _left(of: Places, to: Places, alike: tuple[np.ndarray, np.ndarray], parts: Parts) -> np.ndarray:
    implementation, kernel = alike
    near = np.exp(-0.5 * _squares(of.features, to.features) / parts.size_length**2)
    by_size = implementation * parts.implementation_by_size**2 + kernel * parts.kernel_by_size**2
    return parts.family**2 + implementation * parts.implementation**2 + near * by_size


def _moves(of: Places, to: Places, alike: tuple[np.ndarray, np.ndarray], parts: Parts) -> np.ndarray:
    return parts.constant**2 * (1.0 + alike[0] + alike[1]) * (of.slopes @ to.slopes.T)


def _squares(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    squared_distance = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.maximum(squared_distance, 0.0)


def prior_variance(of: Places, parts: Parts = PARTS) -> np.ndarray:
    """Return the variance of each call's log error before anything is measured, without noise."""
    variance = parts.family**2 + parts.implementation**2 + parts.implementation_by_size**2 + parts.kernel_by_size**2
    return variance + 3.0 * parts.constant**2 * (of.slopes**2).sum(axis=1)


# logarithms by which constants of a family, of an implementation of it and of a kernel are others, by their words
Moves = Mapping[tuple[str, ...], Mapping[str, float]]


class PointsOf(NamedTuple):
    """What is known of one family on one GPU: how its constants move, and points with the weights of what is left."""

    moves: Moves
    places: Places
    weights: np.ndarray

    def count(self, kernel: str) -> int:
        """Return the number of points of engine|implementation|dtype."""
        return int((self.places.kernels() == kernel).sum())


def levels_of(engine: str, implementation: str, dtype: str) -> tuple[tuple[str, ...], ...]:
    """Return the words by which the moves of a kernel are found: of its family, implementation, and of itself."""
    return (), (implementation,), (engine, implementation, dtype)


def moved_constants(
    points: PointsOf, coefficients: Sequence[Coefficient], words: Mapping[str, str], at: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the constants of a kernel as its GPU's points have moved them, within the bounds of a fit."""
    moves_of_levels = [
        points.moves.get(level, {}) for level in levels_of(*(words[name] for name in Places._fields[:3]))
    ]
    fitted = {one.name: one for one in coefficients if one.owner != "fixed"}
    logs = {name: sum(one.get(name, 0.0) for one in moves_of_levels) for name in fitted}
    return {name: moved(fitted[name], value, logs[name]) if name in fitted else value for name, value in at.items()}


def mean_of(of: Places, points: PointsOf, parts: Parts = PARTS) -> np.ndarray:
    """Return the log error to expect of each call of a family beside moved constants."""
    log_delta = np.empty(of.size)
    for first in range(0, of.size, BLOCK):
        block = slice(first, first + BLOCK)
        log_delta[block] = covariance_of_left(of.at(block), points.places, parts) @ points.weights
    return np.clip(log_delta, -MOST_DELTA, MOST_DELTA)


def points_of(rows: Sequence[Mapping[str, Any]]) -> PointsOf:
    """Return the points that ``eta_coefficients`` rows of one family and GPU hold."""
    moves: dict[tuple[str, ...], dict[str, float]] = {}
    arrays: dict[tuple[str, ...], dict[str, np.ndarray]] = {}
    for row in rows:
        words = tuple(row[name] for name in ("engine", "implementation", "dtype") if row[name] is not None)
        if row["array"] is None:
            moves.setdefault(words, {})[row["coefficient"]] = float(np.log(row["value"]))
        else:
            arrays.setdefault(words, {})[row["coefficient"]] = np.array(row["array"])
    parts, weights = [], []
    for words, one in sorted(arrays.items()):
        words_of_place = dict(zip(("engine", "implementation", "dtype"), words, strict=True))
        parts.append(places(words_of_place, one["features"].reshape(one["weights"].size, -1)))
        weights.append(one["weights"])
    return PointsOf(moves, Places(*map(np.concatenate, zip(*parts, strict=True))), np.concatenate(weights))
