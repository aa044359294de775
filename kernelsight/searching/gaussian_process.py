"""A Gaussian process over the configurations of a kernel, from other GPUs' latencies and from the parameters.

log latency = mean of the other GPUs' logs + a sum of terms: a constant; linear in the other GPUs' logs, over all and
within each regime (so that the weight of every source is learned, its sign included); smooth in these logs; a level per
regime; smooth in the features of parameters (Matern 5/2, one length scale per feature); and categorical in the
parameters' values (exponential of the Hamming distance with one weight per parameter, because a kernel's latency may
jump from a tile of 3 to one of 4). Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4
and 5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

LEVEL_SD = 2.0  # standard deviation of the constant around the median of the measurements
# hyperparameters, as natural logarithms: sizes of the terms linear, regime, smooth in sources with its scale, smooth in
# features with its scale, noise, categorical with its scale
START = np.log(np.array([0.3, 0.15, 0.2, 1.0, 0.3, 0.5, 0.01, 0.2, 2.5]))
SPREAD = np.array([1.0, 1.0, 1.0, 0.7, 1.0, 0.7, 1.0, 1.0, 0.7])
LINEAR, REGIME, SOURCES, SOURCE_SCALE, PARAMETERS, PARAMETER_SCALE, NOISE, WORDS, WORD_SCALE = range(9)
SCALES = 0.7  # prior standard deviation of the log scale of one feature
# optimiser steps of one fit, and how far from its start a setting may go
STEPS, REACH = 10, 4.0
BLOCK = 512  # candidates whose covariances stay in the cache of a core


class Inputs(NamedTuple):
    """The inputs of the process for all candidates; rows are candidates."""

    sources: np.ndarray  # (rows, other GPUs): log latencies, each less its median
    features: np.ndarray  # (rows, columns) between 0 and 1
    regimes: np.ndarray
    mean: np.ndarray
    words: np.ndarray  # (rows, values of all parameters): one-hot, 1 where the candidate has the value
    word_of: np.ndarray  # the parameter that each of these columns belongs to


def words_of(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the one-hot encoding of parameters' values (rows, values), and the parameter of each column."""
    columns, owner = [], []
    for parameter in range(levels.shape[1]):
        equal = levels[:, parameter][:, None] == np.unique(levels[:, parameter])[None]
        columns.append(equal.astype(float))
        owner += [parameter] * equal.shape[1]
    return np.concatenate(columns, axis=1), np.array(owner)


class Fit(NamedTuple):
    """A process conditioned on measurements, with fitted ``settings``, its hyperparameters."""

    settings: np.ndarray
    rows: np.ndarray
    level: float
    whiten: np.ndarray  # inverse of the Cholesky factor of the measurements' covariance
    weights: np.ndarray
    evidence: float  # log density of the measurements, settings included


def start(inputs: Inputs) -> np.ndarray:
    """Return the prior mean of the settings, at which fits start."""
    return np.concatenate([START, np.zeros(inputs.features.shape[1] + int(inputs.word_of.max()) + 1)])


def matern(squares: np.ndarray) -> np.ndarray:
    """Return the Matern 5/2 correlation at squared distances.

    >>> matern(np.array([0.0, 1.0])).round(3).tolist()
    [1.0, 0.524]
    """
    distance = np.maximum(squares, 0.0)  # computed in place: half of a search's time is spent here
    distance *= 5.0
    np.sqrt(distance, out=distance)
    square = distance * distance
    square /= 3.0
    correlation = 1.0 + distance
    correlation += square
    np.exp(np.negative(distance, out=distance), out=distance)
    correlation *= distance
    return correlation


def squared_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return squared Euclidean distances (rows of left, rows of right), which rounding may bring just below 0."""
    distances = (left**2).sum(1)[:, None] + (right**2).sum(1)[None]
    distances -= left @ (2.0 * right).T
    return distances


def _scales(inputs: Inputs, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the settings as sizes of terms, scales of the features, and weights of the parameters."""
    size, count = np.exp(settings[: len(START)]), inputs.features.shape[1]
    scales = np.exp(settings[len(START) : len(START) + count]) / size[PARAMETER_SCALE]
    return size, scales, np.exp(settings[len(START) + count :]) / size[WORD_SCALE]


def covariance(inputs: Inputs, left: np.ndarray, right: np.ndarray, settings: np.ndarray) -> np.ndarray:
    """Return the prior covariance (left, right) of two sets of candidates."""
    size, scales, weights = _scales(inputs, settings)
    regime = size[REGIME] ** 2 * (inputs.regimes[left][:, None] == inputs.regimes[right][None])
    total = LEVEL_SD**2 + regime
    smooth = matern(squared_distances(inputs.features[left] * scales, inputs.features[right] * scales))
    smooth *= size[PARAMETERS] ** 2
    total += smooth
    words = inputs.words[left] @ (inputs.words[right] * weights[inputs.word_of]).T
    words -= weights.sum()
    np.exp(words, out=words)
    words *= size[WORDS] ** 2
    total += words
    count = inputs.sources.shape[1]
    if count:
        left_sources, right_sources = inputs.sources[left], inputs.sources[right]
        product = left_sources @ right_sources.T
        product /= count
        regime *= product
        product *= size[LINEAR] ** 2
        product += regime
        total += product
        distances = squared_distances(left_sources, right_sources)
        distances /= count * size[SOURCE_SCALE] ** 2
        smooth = matern(distances)
        smooth *= size[SOURCES] ** 2
        total += smooth
    return total


def variance(inputs: Inputs, rows: np.ndarray, settings: np.ndarray) -> np.ndarray:
    """Return the prior variance (rows,) of candidates."""
    size = np.exp(settings[: len(START)])
    total = np.full(len(rows), LEVEL_SD**2 + size[REGIME] ** 2 + size[PARAMETERS] ** 2 + size[WORDS] ** 2)
    if inputs.sources.shape[1]:
        square = (inputs.sources[rows] ** 2).mean(1)
        total += (size[LINEAR] ** 2 + size[REGIME] ** 2) * square + size[SOURCES] ** 2
    return total


class _Pairs:
    """Distances between measured candidates, computed once for all steps of a fit."""

    def __init__(self, inputs: Inputs, rows: np.ndarray) -> None:
        features = inputs.features[rows]
        self.columns = features.shape[1]
        self.by_column = ((features[:, None] - features[None]) ** 2).reshape(-1, self.columns)
        words = inputs.words[rows]
        owners = range(int(inputs.word_of.max()) + 1)
        self.unlike = np.stack(
            [1.0 - words[:, inputs.word_of == owner] @ words[:, inputs.word_of == owner].T for owner in owners], axis=-1
        ).reshape(-1, len(owners))
        self.same = (inputs.regimes[rows][:, None] == inputs.regimes[rows][None]).astype(float)
        self.count = inputs.sources.shape[1]
        if self.count:
            sources = inputs.sources[rows]
            self.product = sources @ sources.T / self.count
            self.squares = squared_distances(sources, sources) / self.count


class _Terms(NamedTuple):
    """The terms of the measured candidates' covariance, and factors of their derivatives."""

    regime: np.ndarray
    smooth: np.ndarray
    words: np.ndarray
    linear: np.ndarray | float  # these two without sources: 0
    sources: np.ndarray | float
    smooth_slope: np.ndarray  # derivative in the squared distance
    sources_slope: np.ndarray | float
    scales: np.ndarray  # squared, of the features
    weights: np.ndarray  # of the parameters

    @property
    def total(self) -> np.ndarray:
        """The covariance, without noise."""
        return LEVEL_SD**2 + self.regime + self.smooth + self.words + self.linear + self.sources


def _terms(pairs: _Pairs, settings: np.ndarray) -> _Terms:
    size, count = np.exp(settings[: len(START)]) ** 2, len(pairs.same)
    middle = len(START) + pairs.columns
    scales = np.exp(2.0 * settings[len(START) : middle]) / size[PARAMETER_SCALE]
    weights = np.exp(settings[middle:]) / np.sqrt(size[WORD_SCALE])
    smooth, smooth_slope = _matern((pairs.by_column @ scales).reshape(count, count))
    words = size[WORDS] * np.exp(-(pairs.unlike @ weights)).reshape(count, count)
    of_parameters = (size[PARAMETERS] * smooth, words)
    if not pairs.count:
        constant_regime = size[REGIME] * pairs.same
        return _Terms(constant_regime, *of_parameters, 0.0, 0.0, size[PARAMETERS] * smooth_slope, 0.0, scales, weights)
    regime = size[REGIME] * pairs.same * (1.0 + pairs.product)
    sources, slope = _matern(np.maximum(pairs.squares, 0.0) / size[SOURCE_SCALE])
    of_sources = (size[LINEAR] * pairs.product, size[SOURCES] * sources)
    slope *= size[SOURCES] / size[SOURCE_SCALE]
    return _Terms(regime, *of_parameters, *of_sources, size[PARAMETERS] * smooth_slope, slope, scales, weights)


def _matern(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Matern 5/2 correlation at squared distances, and its derivative in them."""
    distance = np.sqrt(5.0 * squares)
    return matern(squares), (-5.0 / 6.0) * (1.0 + distance) * np.exp(-distance)


def _log_density(
    pairs: _Pairs, values: np.ndarray, noise: np.ndarray, settings: np.ndarray, slopes: bool = True
) -> tuple[float, np.ndarray]:
    """Return the log posterior density of values and settings, up to a constant, and its gradient in the settings.

    Minus infinity where it cannot be computed; a gradient of zeros without ``slopes``.
    """
    terms, noise_variance = _terms(pairs, settings), float(np.exp(2.0 * settings[NOISE]))
    total = terms.total
    total[np.diag_indices(len(values))] += noise + noise_variance + 1e-9
    try:
        factor = np.linalg.cholesky(total)
    except np.linalg.LinAlgError:
        return -np.inf, np.zeros(len(settings))
    spread = np.concatenate([SPREAD, np.full(len(settings) - len(START), SCALES)])
    deviation = (settings - np.concatenate([START, np.zeros(len(settings) - len(START))])) / spread
    whiten = solve_triangular(factor, np.eye(len(values)), lower=True, check_finite=False)
    white = whiten @ values
    density = float(-0.5 * white @ white - np.log(np.diag(factor)).sum() - 0.5 * (deviation**2).sum())
    if not slopes:
        return density, np.zeros(len(settings))
    solved = whiten.T @ white
    in_covariance = 0.5 * (np.outer(solved, solved) - whiten.T @ whiten)
    return density, _slopes(pairs, terms, in_covariance, noise_variance) - deviation / spread


def _slopes(pairs: _Pairs, terms: _Terms, in_covariance: np.ndarray, noise_variance: float) -> np.ndarray:
    """Return the gradient of the log density in the settings; ``in_covariance``: its gradient in each covariance."""
    sizes = np.zeros(len(START))
    for setting, term in ((REGIME, terms.regime), (PARAMETERS, terms.smooth), (WORDS, terms.words)):
        sizes[setting] = 2.0 * (in_covariance * term).sum()
    sizes[NOISE] = 2.0 * noise_variance * np.trace(in_covariance)
    features = 2.0 * terms.scales * ((terms.smooth_slope * in_covariance).ravel() @ pairs.by_column)
    sizes[PARAMETER_SCALE] = -features.sum()
    parameters = -terms.weights * ((in_covariance * terms.words).ravel() @ pairs.unlike)
    sizes[WORD_SCALE] = -parameters.sum()
    if pairs.count:
        sizes[LINEAR] = 2.0 * (in_covariance * terms.linear).sum()
        sizes[SOURCES] = 2.0 * (in_covariance * terms.sources).sum()
        sizes[SOURCE_SCALE] = -2.0 * (terms.sources_slope * in_covariance * pairs.squares).sum()
    return np.concatenate([sizes, features, parameters])


def evidence(inputs: Inputs, rows: np.ndarray, values: np.ndarray, noise: np.ndarray, settings: np.ndarray) -> float:
    """Return the evidence of measurements under these settings: their log density, up to a constant."""
    deviations = values - inputs.mean[rows]
    return _log_density(_Pairs(inputs, rows), deviations - float(np.median(deviations)), noise, settings, False)[0]


def fit(inputs: Inputs, rows: np.ndarray, values: np.ndarray, noise: np.ndarray, settings: np.ndarray) -> Fit:
    """Fit the process to log latencies ``values`` of candidates ``rows``, with the variance of their ``noise``.

    L-BFGS from earlier ``settings``, a few steps only: later calls continue from its result.
    """
    deviations = values - inputs.mean[rows]
    level = float(np.median(deviations))
    pairs = _Pairs(inputs, rows)

    def cost(tried: np.ndarray) -> tuple[float, np.ndarray]:
        density, slopes = _log_density(pairs, deviations - level, noise, tried)
        return (-density, -slopes) if np.isfinite(density) else (1e9, np.zeros(len(tried)))

    middle = start(inputs)
    best = minimize(
        cost,
        settings,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(middle - REACH, middle + REACH, strict=True)),
        options={"maxiter": STEPS},
    )
    return conditioned(inputs, rows, values, noise, best.x, level, -float(best.fun))


def conditioned(
    inputs: Inputs,
    rows: np.ndarray,
    values: np.ndarray,
    noise: np.ndarray,
    settings: np.ndarray,
    level: float,
    evidence: float = 0.0,
) -> Fit:
    """Condition the process with these settings on the measurements."""
    total = covariance(inputs, rows, rows, settings)
    total[np.diag_indices(len(rows))] += noise + np.exp(2.0 * settings[NOISE]) + 1e-9
    whiten = np.linalg.inv(np.linalg.cholesky(total))
    weights = whiten.T @ (whiten @ (values - inputs.mean[rows] - level))
    return Fit(settings, rows, level, whiten, weights, evidence)


def predict(inputs: Inputs, fit: Fit, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and variance (rows,) of log latencies, and their whitened covariance with the measurements."""
    mean, white = np.empty(len(rows)), np.empty((len(fit.rows), len(rows)))
    for begin in range(0, len(rows), BLOCK):
        block = slice(begin, begin + BLOCK)
        across = covariance(inputs, rows[block], fit.rows, fit.settings)
        mean[block] = across @ fit.weights
        white[:, block] = fit.whiten @ across.T
    mean += inputs.mean[rows] + fit.level
    remaining = variance(inputs, rows, fit.settings) - np.einsum("ij,ij->j", white, white)
    return mean, np.maximum(remaining, 1e-10), white


def posterior_covariance(inputs: Inputs, fit: Fit, rows: np.ndarray, white: np.ndarray) -> np.ndarray:
    """Return the covariance (rows, rows) of candidates after the measurements; ``white``: from :func:`predict`."""
    return covariance(inputs, rows, rows, fit.settings) - white.T @ white
