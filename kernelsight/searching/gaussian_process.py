"""A Gaussian process over the configurations of a kernel: what other GPUs measured, and the parameters themselves.

log latency = mean of the other GPUs' logs + a sum of terms: a constant; linear in the other GPUs' logs, over all and
within each regime (so that the weight of every source is learned, its sign included); smooth in these logs; a level per
regime; and smooth in parameters and what follows from them (Matern 5/2, one scale per column). Rasmussen and Williams,
Gaussian Processes for Machine Learning, 2006, chapters 2, 4 and 5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LEVEL_SD = 2.0  # of the constant, whose place is taken by the median of what was measured
# natural logarithms of: linear, regime, smooth in sources, its scale, smooth in parameters, its scale, noise
START = np.log(np.array([0.3, 0.15, 0.2, 1.0, 0.3, 0.5, 0.01]))
SPREAD = np.array([1.0, 1.0, 1.0, 0.7, 1.0, 0.7, 1.0])
LINEAR, REGIME, SOURCES, SOURCE_SCALE, PARAMETERS, PARAMETER_SCALE, NOISE = range(7)
SCALES = 0.7  # spread of the scale of one column
STEP = 0.5
LEAST_GAIN = 1e-3


class Inputs(NamedTuple):
    """What the process sees of all candidates: rows are candidates."""

    sources: np.ndarray  # (rows, other GPUs): log latencies, each less its median
    features: np.ndarray  # (rows, columns) between 0 and 1
    regimes: np.ndarray
    mean: np.ndarray


class Fit(NamedTuple):
    """A process given measurements."""

    settings: np.ndarray
    rows: np.ndarray
    level: float
    whiten: np.ndarray  # inverse of the Cholesky factor of the measurements' covariance
    weights: np.ndarray
    evidence: float  # log density of the measurements, settings included


def start(inputs: Inputs) -> np.ndarray:
    """Return the settings before anything was measured."""
    return np.concatenate([START, np.zeros(inputs.features.shape[1])])


def matern(squares: np.ndarray) -> np.ndarray:
    """Return the Matern 5/2 correlation at squared distances.

    >>> matern(np.array([0.0, 1.0])).round(3).tolist()
    [1.0, 0.524]
    """
    distance = np.sqrt(5.0 * np.maximum(squares, 0.0))
    return (1.0 + distance + distance * distance / 3.0) * np.exp(-distance)


def _squares(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2.0 * left @ right.T


def covariance(inputs: Inputs, left: np.ndarray, right: np.ndarray, settings: np.ndarray) -> np.ndarray:
    """Return the prior covariance of two sets of candidates."""
    size = np.exp(settings[: len(START)])
    scales = np.exp(settings[len(START) :]) / size[PARAMETER_SCALE]
    same = inputs.regimes[left][:, None] == inputs.regimes[right][None]
    found = LEVEL_SD**2 + size[REGIME] ** 2 * same
    found = found + size[PARAMETERS] ** 2 * matern(
        _squares(inputs.features[left] * scales, inputs.features[right] * scales)
    )
    count = inputs.sources.shape[1]
    if count:
        one, other = inputs.sources[left], inputs.sources[right]
        product = one @ other.T / count
        found += size[LINEAR] ** 2 * product + size[REGIME] ** 2 * same * product
        found += size[SOURCES] ** 2 * matern(_squares(one, other) / (count * size[SOURCE_SCALE] ** 2))
    return found


def variance(inputs: Inputs, rows: np.ndarray, settings: np.ndarray) -> np.ndarray:
    """Return the prior variance of candidates."""
    size = np.exp(settings[: len(START)])
    found = np.full(len(rows), LEVEL_SD**2 + size[REGIME] ** 2 + size[PARAMETERS] ** 2)
    if inputs.sources.shape[1]:
        square = (inputs.sources[rows] ** 2).mean(1)
        found += (size[LINEAR] ** 2 + size[REGIME] ** 2) * square + size[SOURCES] ** 2
    return found


class _Pairs:
    """Distances between measured candidates, which do not change while settings are fitted."""

    def __init__(self, inputs: Inputs, rows: np.ndarray) -> None:
        features = inputs.features[rows]
        self.by_column = (features[:, None] - features[None]) ** 2
        self.same = (inputs.regimes[rows][:, None] == inputs.regimes[rows][None]).astype(float)
        self.count = inputs.sources.shape[1]
        if self.count:
            sources = inputs.sources[rows]
            self.product = sources @ sources.T / self.count
            self.squares = _squares(sources, sources) / self.count

    def covariance(self, settings: np.ndarray) -> np.ndarray:
        size = np.exp(settings[: len(START)])
        scales = np.exp(2.0 * settings[len(START) :]) / size[PARAMETER_SCALE] ** 2
        found = LEVEL_SD**2 + size[REGIME] ** 2 * self.same + size[PARAMETERS] ** 2 * matern(self.by_column @ scales)
        if self.count:
            found += (size[LINEAR] ** 2 + size[REGIME] ** 2 * self.same) * self.product
            found += size[SOURCES] ** 2 * matern(self.squares / size[SOURCE_SCALE] ** 2)
        return found


def _evidence(pairs: _Pairs, values: np.ndarray, noise: np.ndarray, settings: np.ndarray) -> float:
    """Return the log density of values and settings, up to a constant; minus infinity where it cannot be computed."""
    found = pairs.covariance(settings)
    found[np.diag_indices(len(values))] += noise + np.exp(2.0 * settings[NOISE])
    try:
        factor = np.linalg.cholesky(found)
    except np.linalg.LinAlgError:
        return -np.inf
    white = np.linalg.solve(factor, values)
    prior = (((settings[: len(START)] - START) / SPREAD) ** 2).sum() + ((settings[len(START) :] / SCALES) ** 2).sum()
    return float(-0.5 * white @ white - np.log(np.diag(factor)).sum() - 0.5 * prior)


def evidence(inputs: Inputs, rows: np.ndarray, values: np.ndarray, noise: np.ndarray, settings: np.ndarray) -> float:
    """Return how well a process with these settings explains measurements: their log density, up to a constant."""
    deviations = values - inputs.mean[rows]
    return _evidence(_Pairs(inputs, rows), deviations - float(np.median(deviations)), noise, settings)


def fit(inputs: Inputs, rows: np.ndarray, values: np.ndarray, noise: np.ndarray, settings: np.ndarray) -> Fit:
    """Fit the process to log latencies of candidates with the variance of their noise, from earlier settings.

    One step up or down is tried for every setting in turn, which later calls go on from.
    """
    deviations = values - inputs.mean[rows]
    level = float(np.median(deviations))
    pairs = _Pairs(inputs, rows)
    best = _evidence(pairs, deviations - level, noise, settings)
    without = (LINEAR, SOURCES, SOURCE_SCALE) if not inputs.sources.shape[1] else ()
    for place in range(len(settings)):
        if place in without:
            continue
        for step in (STEP, -STEP):
            tried = settings.copy()
            tried[place] += step
            found = _evidence(pairs, deviations - level, noise, tried)
            if found > best + LEAST_GAIN:
                best, settings = found, tried
                break
    return given(inputs, rows, values, noise, settings, level, best)


def given(
    inputs: Inputs,
    rows: np.ndarray,
    values: np.ndarray,
    noise: np.ndarray,
    settings: np.ndarray,
    level: float,
    evidence: float = 0.0,
) -> Fit:
    """Return the process with these settings, given the measurements."""
    found = covariance(inputs, rows, rows, settings)
    found[np.diag_indices(len(rows))] += noise + np.exp(2.0 * settings[NOISE]) + 1e-9
    whiten = np.linalg.inv(np.linalg.cholesky(found))
    weights = whiten.T @ (whiten @ (values - inputs.mean[rows] - level))
    return Fit(settings, rows, level, whiten, weights, evidence)


def predict(inputs: Inputs, found: Fit, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and variance of candidates' log latencies, and their whitened covariance with the measurements."""
    across = covariance(inputs, rows, found.rows, found.settings)
    mean = inputs.mean[rows] + found.level + across @ found.weights
    white = found.whiten @ across.T
    left = variance(inputs, rows, found.settings) - np.einsum("ij,ij->j", white, white)
    return mean, np.maximum(left, 1e-10), white


def left_over(inputs: Inputs, found: Fit, rows: np.ndarray, white: np.ndarray) -> np.ndarray:
    """Return the covariance of candidates after the measurements."""
    return covariance(inputs, rows, rows, found.settings) - white.T @ white
