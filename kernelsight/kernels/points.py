"""What a few measured calls say of all others on their GPU: a Gaussian model of what a prediction leaves of them.

The model is of e = log(measured / predicted across generations). Two calls err together by what they share: the GPU;
the family, and within it engine, implementation and number formats; the kernel, which is all of these; and by how near
they lie in predicted time and in size. Their covariance is the sum of these parts (:data:`PARTS`). The mean given some
points is k(x, X) (K + noise^2)^-1 e: kriging (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
chapter 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.kernels.families import FAMILIES

# rows that are answered at once
BLOCK = 2048
# no few points move a prediction by more: a factor of 20
MOST_DELTA = 3.0


class Parts(NamedTuple):
    """Standard deviations of what the log errors of two calls share, and over which logarithms of time and size.

    Those that left the least error after 3 and 5 points a kernel of A100, L40S, H100 and RTX PRO 6000, each predicted
    by a fit without its generation (random search). Half or twice of any of them costs 0 to 1 points of error.
    """

    gpu: float = 0.04
    family: float = 0.03
    engine: float = 0.05
    implementation: float = 0.12
    cell: float = 0.03
    kernel: float = 0.03
    # by predicted time alone: of all families (what short kernels of a GPU share), of a family, of an implementation
    gpu_by_time: float = 0.07
    family_by_time: float = 0.08
    implementation_by_time: float = 0.11
    # by time and sizes, of an implementation
    implementation_by_size: float = 0.30
    noise: float = 0.13
    time_length: float = 1.7
    size_length: float = 3.0


PARTS = Parts()
# logarithms of microseconds between which what families share is drawn straight
KNOTS = np.linspace(-2.0, 16.0, 37)
# features count in octaves, lengths in natural logarithms
LN2 = float(np.log(2.0))


class Places(NamedTuple):
    """Where calls lie: family, engine, implementation and number formats of each, predicted time, and features.

    ``features``: (N, F) logarithms of sizes, of which calls of one family have the same ones.
    """

    family: np.ndarray
    engine: np.ndarray
    implementation: np.ndarray
    dtype: np.ndarray
    log_us: np.ndarray
    features: np.ndarray

    @property
    def size(self) -> int:
        """The number of calls."""
        return self.log_us.size

    def at(self, rows: Any) -> Places:
        """Return the places of some rows."""
        return Places(*(column[rows] for column in self))

    def kernels(self) -> np.ndarray:
        """Return family|engine|implementation|dtype of each call."""
        words = zip(self.family, self.engine, self.implementation, self.dtype, strict=True)
        return np.array(["|".join(one) for one in words], dtype=object)


def sizes_of(family: str, seen: np.ndarray) -> np.ndarray:
    """Return natural logarithms of the sizes that a correction sees of calls, and its flags; no rounding to tiles.

    ``seen``: :func:`kernelsight.kernels.features.features` of the calls.
    """
    return LN2 * seen[:, : size_count(family)]


def size_count(family: str) -> int:
    """Return the number of a family's sizes and flags."""
    return len(FAMILIES[family].features.sizes) + len(FAMILIES[family].features.flags)


def places(words: Mapping[str, Any], log_us: np.ndarray, features: np.ndarray) -> Places:
    """Return the places of calls of one kernel or of many; ``words``: a word for all calls, or one for each."""
    names = (
        np.broadcast_to(np.asarray(words[name], dtype=object), log_us.shape)
        for name in ("family", "engine", "implementation", "dtype")
    )
    return Places(*names, log_us, features)


def joined(parts: Sequence[Places]) -> Places:
    """Return the places of several families together: features that a family lacks are 0."""
    width = max((one.features.shape[1] for one in parts), default=0)
    wide = [one._replace(features=np.pad(one.features, ((0, 0), (0, width - one.features.shape[1])))) for one in parts]
    return Places(*(np.concatenate(column) for column in zip(*wide, strict=True)))


def covariance(of: Places, to: Places, parts: Parts = PARTS) -> np.ndarray:
    """Return (calls of the first, calls of the second): the covariance of their log errors, without noise."""
    found = np.empty((of.size, to.size))
    kernels, place = np.unique(of.kernels().astype(str), return_inverse=True)
    for number in range(kernels.size):
        rows = np.flatnonzero(place == number)
        found[rows] = _of_kernel(of.at(rows), to, parts)
    return found


def _of_kernel(of: Places, to: Places, parts: Parts) -> np.ndarray:
    """Covariance of calls of one kernel, by the first of them, with others."""
    family = np.asarray(to.family == of.family[0], float)
    engine = family * (to.engine == of.engine[0])
    implementation = family * (to.implementation == of.implementation[0])
    cell = family * (to.dtype == of.dtype[0])
    constant = parts.gpu**2 + family * parts.family**2 + engine * parts.engine**2
    constant = constant + implementation * parts.implementation**2 + cell * parts.cell**2
    constant = constant + engine * implementation * cell * parts.kernel**2
    by_time = parts.gpu_by_time**2 + family * parts.family_by_time**2
    by_time = by_time + implementation * parts.implementation_by_time**2
    near = np.exp(-0.5 * ((of.log_us[:, None] - to.log_us) / parts.time_length) ** 2)
    found = constant + near * by_time
    alike = np.flatnonzero(implementation)
    # beyond the features of a family there are but noughts
    width = min(of.features.shape[1], to.features.shape[1])
    apart = _squares(of.features[:, :width], to.features[alike, :width]) / parts.size_length**2
    found[:, alike] += parts.implementation_by_size**2 * near[:, alike] * np.exp(-0.5 * apart)
    return found


def _squares(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    found = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.maximum(found, 0.0)


def prior_variance(parts: Parts = PARTS) -> float:
    """Return the variance of a call's log error before anything is measured, without noise."""
    lengths = {"noise", "time_length", "size_length"}
    return sum(value**2 for name, value in parts._asdict().items() if name not in lengths)


def weights_of(points: Places, log_error: np.ndarray, parts: Parts = PARTS) -> np.ndarray:
    """Return what each point weighs in the mean of any call: (K + noise^2)^-1 e."""
    return np.linalg.solve(covariance(points, points, parts) + parts.noise**2 * np.eye(points.size), log_error)


class PointsOf(NamedTuple):
    """What is known of one family on one GPU: its points with their weights, and at KNOTS what other families say."""

    places: Places
    weights: np.ndarray
    shared: np.ndarray

    def count(self, kernel: str) -> int:
        """Return the number of points of engine|implementation|dtype."""
        words = (self.places.engine, self.places.implementation, self.places.dtype)
        return sum("|".join(one) == kernel for one in zip(*words, strict=True))


def shared_by_time(points: Places, weights: np.ndarray, parts: Parts = PARTS) -> np.ndarray:
    """Return at KNOTS, logarithms of predicted us, the log error that points of other families make likely."""
    near = np.exp(-0.5 * ((KNOTS[:, None] - points.log_us) / parts.time_length) ** 2)
    return (parts.gpu**2 + parts.gpu_by_time**2 * near) @ weights


def mean_of(of: Places, points: PointsOf, parts: Parts = PARTS) -> np.ndarray:
    """Return the log error to expect of each call of a family."""
    found = np.interp(of.log_us, KNOTS, points.shared)
    for first in range(0, of.size, BLOCK):
        block = slice(first, first + BLOCK)
        found[block] += covariance(of.at(block), points.places, parts) @ points.weights
    return np.clip(found, -MOST_DELTA, MOST_DELTA)


def points_of(rows: Sequence[Mapping[str, Any]]) -> PointsOf:
    """Return the points that ``eta_coefficients`` rows of one family and GPU hold."""
    shared, arrays = np.zeros(KNOTS.size), {}
    for row in rows:
        if row["coefficient"] == "shared":
            shared = np.array(row["array"])
        else:
            kernel = tuple(row[name] for name in ("family", "engine", "implementation", "dtype"))
            arrays.setdefault(kernel, {})[row["coefficient"]] = np.array(row["array"])
    parts, weights = [], []
    for (family, engine, implementation, dtype), one in sorted(arrays.items()):
        words = {"family": family, "engine": engine, "implementation": implementation, "dtype": dtype}
        parts.append(places(words, one["log_us"], one["features"].reshape(one["log_us"].size, -1)))
        weights.append(one["weights"])
    return PointsOf(joined(parts), np.concatenate(weights), shared)
