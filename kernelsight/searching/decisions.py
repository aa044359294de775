"""Acquisition functions: which candidates a round measures, as pure functions of forecasts, history and scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.forecasts import WORTH, Forecast
from kernelsight.searching.history import History, weighted_means

# candidates whose covariance is updated while a batch is chosen
SHORTLIST = 300
MOST_RUNS = 4
# factor on forecasts' standard deviations in expected gains: settings are fitted to few measurements
EXPLORE = 2.0


class Decisions(NamedTuple):
    """Candidates to measure, in order, each with its reason and its expected gain over the best so far (log)."""

    rows: np.ndarray
    reasons: list[str]
    gains: np.ndarray


class Best(NamedTuple):
    """The candidate of lowest expected log latency, among measured ones."""

    row: int
    log: float


def best_of(forecast: Forecast | None, inputs: gp.Inputs, history: History) -> Best | None:
    """Return the candidate with the lowest expected log latency among those that worked; None: none did.

    Measurements are weighted by their noise, so that a lucky one is shrunk to its forecast.
    """
    rows, mean, _ = weighted_means(history)
    if not len(rows):
        return None
    if forecast is not None and forecast.fit is not None:
        mean = gp.predict(inputs, forecast.fit, rows)[0]
    index = int(np.argmin(mean))
    return Best(int(rows[index]), float(mean[index]))


def expected_gain(mean: np.ndarray, sd: np.ndarray, best: float) -> np.ndarray:
    """Return the expected improvement of log latency over ``best`` of normal forecasts.

    >>> expected_gain(np.array([0.0, 1.0]), np.array([1.0, 1e-9]), 0.0).round(3).tolist()
    [0.399, 0.0]
    """
    z = (best - mean) / sd
    return sd * (z * ndtr(z) + np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi))


def generator(scenario: Mapping[str, Any], number: int, purpose: int) -> np.random.Generator:
    """Return the random generator of one purpose in one round, so that a resumed search draws the same."""
    return np.random.default_rng([int(scenario["seed"]), number, purpose])


def first_round(scores: np.ndarray, sources: np.ndarray, rows: np.ndarray, count: int) -> Decisions:
    """Return the best candidates by the other GPUs: by their mean, by each of them, and then further ones by the mean.

    ``scores``: (candidates,), mean log latency; ``sources``: (candidates, GPUs); ``rows``: candidates to choose from.
    """
    order = rows[np.argsort(scores[rows], kind="stable")]
    best_of_each = [int(rows[np.argmin(sources[rows, source])]) for source in range(sources.shape[1])]
    chosen = list(dict.fromkeys([int(order[0]), *best_of_each, *map(int, order[: count + len(best_of_each)])]))[:count]
    return Decisions(np.array(chosen), ["order"] * len(chosen), np.full(len(chosen), np.nan))


NONE = np.zeros(0, dtype=np.int64)


def by_gain(
    forecast: Forecast, inputs: gp.Inputs, history: History, best: Best, count: int, taken_rows: np.ndarray = NONE
) -> Decisions:
    """Return the batch of largest expected improvement, without ``taken_rows``.

    Greedy: a chosen candidate counts as measured, at its expected value, for the rest of the batch.
    """
    assert forecast.fit is not None and forecast.white is not None
    gain = expected_gain(forecast.mean, EXPLORE * forecast.unwidened_sd, best.log) * forecast.works
    gain[np.isin(forecast.rows, np.concatenate([history.rows, taken_rows]))] = -1.0
    if count == 1:
        index = int(np.argmax(gain))
        if gain[index] < 0.0:  # all were measured
            return Decisions(NONE, [], np.zeros(0))
        return Decisions(forecast.rows[[index]], ["gain"], gain[[index]])
    shortlist = np.argsort(-gain, kind="stable")[:SHORTLIST]
    rows = forecast.rows[shortlist]
    covariance = EXPLORE**2 * gp.posterior_covariance(inputs, forecast.fit, rows, forecast.white[:, shortlist])
    works, free = forecast.works[shortlist], gain[shortlist] > 0
    mean, spread = forecast.mean[shortlist], np.diag(covariance).copy()
    chosen, gains = [], []
    for _ in range(min(count, int(free.sum()))):
        gain_now = expected_gain(mean, np.sqrt(np.maximum(spread, 1e-12)), best.log) * works
        index = int(np.argmax(np.where(free, gain_now, -1.0)))
        chosen.append(int(rows[index]))
        gains.append(float(gain_now[index]))
        free[index] = False
        column = covariance[:, index]
        covariance = covariance - np.outer(column / (spread[index] + 1e-6), column)
        spread = np.diag(covariance).copy()
    return Decisions(np.array(chosen, dtype=np.int64), ["gain"] * len(chosen), np.array(gains))


def by_mean(forecast: Forecast, taken_rows: np.ndarray, count: int, best: float) -> Decisions:
    """Return the candidates of lowest expected latency, weighted by the chance to work, without ``taken_rows``."""
    free = ~np.isin(forecast.rows, taken_rows)
    cost = np.where(free, forecast.mean - np.log(forecast.works + 1e-3), np.inf)
    order = np.argsort(cost, kind="stable")[: min(count, int(free.sum()))]
    return Decisions(forecast.rows[order], ["fastest"] * len(order), best - forecast.mean[order])


def joined(left: Decisions, right: Decisions) -> Decisions:
    """Concatenate two batches."""
    rows = np.concatenate([left.rows, right.rows]).astype(np.int64)
    return Decisions(rows, [*left.reasons, *right.reasons], np.concatenate([left.gains, right.gains]))


def repeats(forecast: Forecast, inputs: gp.Inputs, history: History, best: Best) -> Decisions:
    """Return the measured candidate that is most worth another run, to decide whether it is the fastest."""
    assert forecast.fit is not None
    rows, _, noise = weighted_means(history)
    mean, variance, _ = gp.predict(inputs, forecast.fit, rows)
    runs = np.bincount(history.rows, minlength=int(rows.max()) + 1)[rows]
    # each is compared with the best, and the best with the second
    rival = np.where(rows == best.row, np.partition(mean, 1)[1] if len(mean) > 1 else best.log + 1.0, best.log)
    change = variance / np.sqrt(variance + noise * runs)
    gain = np.where(runs < MOST_RUNS, expected_gain(np.abs(mean - rival), change, 0.0), 0.0)
    index = int(np.argmax(gain))
    return Decisions(rows[[index]], ["repeat"], gain[[index]])


def expected_better(forecast: Forecast, history: History, best: float) -> float:
    """Return the expected number of unmeasured candidates that are faster than the best by 2 %."""
    unmeasured = ~np.isin(forecast.rows, history.rows)
    z = (best + WORTH - forecast.mean[unmeasured]) / forecast.sd[unmeasured]
    return float((ndtr(z) * forecast.works[unmeasured]).sum())
