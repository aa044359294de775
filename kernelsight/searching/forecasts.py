"""Forecasts of a search's candidates: mean and standard deviation of log latency, and the probability to work.

From them follow quantiles, the probabilities of eight speed-up bins, and the probability to be faster.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.history import History
from kernelsight.searching.targets import Target

# reference time / candidate time at the edges of the bins: steps of the square root of two and of two
BIN_EDGES = (0.25, 0.5, 0.5**0.5, 1.0, 2.0**0.5, 2.0, 4.0)
BINS = len(BIN_EDGES) + 1
# log latency below the best's from which a candidate counts as faster
WORTH = np.log(0.98)
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


def chance_faster(mean: np.ndarray, sd: np.ndarray, works: np.ndarray, best: float) -> np.ndarray:
    """Return the probability that a candidate works and is at least 2 % faster than ``best`` (log latency)."""
    return ndtr((best + WORTH - mean) / sd) * works


# probability to work: length scale of measured neighbours in feature space, and weight of the prior, in measurements
NEARNESS, OWN_WEIGHT = 0.15, 1.0
# prior probability that a candidate works: one that failed on all other GPUs, and one without measurements
FAILED_ELSEWHERE, UNKNOWN = 0.1, 0.9
LEAST_FITTED = 3
# widening: weight of the prior USUAL, of random draws, width of a band (log), largest surprise
AS_STATED, RANDOM_WEIGHT, BAND, MOST_SURPRISE = 16.0, 8.0, 0.5, 5.0
USUAL = 1.6  # widening before any surprise: settings are fitted to few measurements


class Forecast(NamedTuple):
    """The forecast of the candidates ``rows`` by one forecaster, arrays of shape (rows,)."""

    forecaster: str
    rows: np.ndarray
    mean: np.ndarray  # of the log latency
    sd: np.ndarray
    unwidened_sd: np.ndarray  # standard deviation by the process alone, before it was widened by earlier surprises
    works: np.ndarray  # probability to compile and run
    evidence: str
    measured: int
    fit: gp.Fit | None  # None: too few measurements to fit it
    white: np.ndarray | None  # whitened covariance with the measurements


def inputs_of(target: Target) -> gp.Inputs:
    """Return the inputs of a Gaussian process over the candidates of a target."""
    logs = target.logs
    believed = np.flatnonzero(target.weights > 0)  # without external forecasts, which measurements must confirm first
    mean = logs[:, believed].mean(1) if logs.shape[1] else np.zeros(len(target.ids))
    return gp.Inputs(logs, target.features, target.regimes, mean, *gp.words_of(target.levels))


def forecast(
    name: str,
    target: Target,
    inputs: gp.Inputs,
    history: History,
    rows: np.ndarray,
    settings: np.ndarray,
    beside: Forecast | None = None,
) -> Forecast:
    """Forecast ``rows`` given the history, by a Gaussian process fitted from earlier ``settings``.

    ``beside``: another view's forecast of these rows, whose probabilities to work are reused; the standard deviation is
    not widened then.
    """
    fitted_runs = history.worked
    works = chance_to_work(target, history, rows) if beside is None else beside.works
    has_sources = inputs.sources.shape[1] > 0
    if len(fitted_runs) < LEAST_FITTED:
        level = (
            float(np.median(history.logs[fitted_runs] - inputs.mean[history.rows[fitted_runs]]))
            if len(fitted_runs)
            else 0.0
        )
        if not len(fitted_runs) and has_sources:
            level = float(np.mean(target.medians))
        spread = np.sqrt(gp.variance(inputs, rows, settings) - gp.LEVEL_SD**2 * bool(len(fitted_runs)))
        evidence = "sources" if has_sources else "prior"
        return Forecast(
            name, rows, inputs.mean[rows] + level, spread, spread, works, evidence, len(fitted_runs), None, None
        )
    fitted_runs = history.fitted
    fitted = gp.fit(inputs, history.rows[fitted_runs], history.logs[fitted_runs], history.noise[fitted_runs], settings)
    mean, variance, white = gp.predict(inputs, fitted, rows)
    evidence = "both" if has_sources else "measured"
    sd = np.sqrt(variance)
    wide = sd * widening(history, mean) if beside is None else sd
    return Forecast(name, rows, mean, wide, sd, works, evidence, len(fitted_runs), fitted, white)


def widening(history: History, mean: np.ndarray) -> np.ndarray:
    """Return the factors (rows,) on the standard deviations of forecasts, from the errors of earlier forecasts.

    Errors at similar latencies count. A search measures its favourites; candidates drawn at random represent all
    others, and count more.
    """
    forecast_before = np.flatnonzero(~np.isnan(history.surprise))
    if not len(forecast_before):
        return np.full(len(mean), USUAL)
    near = np.exp(-np.abs(mean[:, None] - history.forecast[forecast_before][None]) / BAND)
    weight = near * np.where(history.random[forecast_before], RANDOM_WEIGHT, 1.0)
    squares = np.minimum(history.surprise[forecast_before] ** 2, MOST_SURPRISE**2)
    return np.sqrt((AS_STATED * USUAL**2 + weight @ squares) / (AS_STATED + weight.sum(1)))


def chance_to_work(target: Target, history: History, rows: np.ndarray) -> np.ndarray:
    """Return the probability that candidates compile and run, by other GPUs and by measured candidates nearby."""
    prior = _chance_by_others(target, history)[rows] if target.sources else np.full(len(rows), UNKNOWN)
    if not len(history.failed):
        return prior
    measured = target.features[history.rows]
    features = target.features[rows]
    squares = (features**2).sum(1)[:, None] + (measured**2).sum(1)[None] - 2.0 * features @ measured.T
    near = np.exp(-np.maximum(squares, 0.0) / (2.0 * NEARNESS**2))
    good = near[:, history.worked].sum(1)
    return np.clip((OWN_WEIGHT * prior + good) / (OWN_WEIGHT + near.sum(1)), 0.0, 1.0)


def _chance_by_others(target: Target, history: History) -> np.ndarray:
    """Return the probability that each candidate works, by the other GPUs that it fails on.

    Candidates that fail on the same GPUs share a probability: a few measurements show which GPUs' failures recur here.
    """
    prior = 1.0 - (1.0 - FAILED_ELSEWHERE) * target.fails
    if not target.fails.any():
        return prior
    pattern = np.unique(target.fails.round(6), return_inverse=True)[1].ravel()
    rows, first_run = np.unique(history.rows, return_index=True)
    tried = np.bincount(pattern[rows], minlength=pattern.max() + 1)[pattern]
    good = np.bincount(pattern[rows], ~np.isnan(history.logs[first_run]), minlength=pattern.max() + 1)[pattern]
    return np.where(target.fails > 0, (OWN_WEIGHT * prior + good) / (OWN_WEIGHT + tried), prior)
