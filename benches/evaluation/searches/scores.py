"""Scores of replayed searches (score P) and of forecasts (calibration, CRPS, risk) against recorded latencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelsight.searching.experience import bins_of, ranked_scores
from kernelsight.searching.forecasts import Forecast, Quantiles, bin_probabilities, quantiles
from kernelsight.searching.rounds import Round

CONFIDENCE_BINS = 10
RANDOM_REACHES = 0.95


def first_within(regret: np.ndarray, share: float) -> int | None:
    """Return the number of measurements until the regret is within ``share`` of the optimum; None: never.

    >>> first_within(np.array([0.5, 0.04, 0.06, 0.01]), 0.05), first_within(np.array([0.5]), 0.05)
    (2, None)
    """
    within = np.flatnonzero(regret <= share)
    return int(within[0]) + 1 if len(within) else None


def coverage(truth: np.ndarray, predicted: Quantiles) -> float:
    """Return the coverage: the share of true log latencies within the 90 % interval."""
    return float(((truth >= predicted.low) & (truth <= predicted.high)).mean())


def calibration_error(probabilities: np.ndarray, hits: np.ndarray) -> float:
    """Return the expected calibration error (ECE): confidence of the likeliest bin against its share of hits."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == hits
    return sum(gap * share for _, _, gap, share in reliability(confidence, right))


def reliability(confidence: np.ndarray, right: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Return (mean confidence, share right, gap, share of forecasts) by tenths of confidence, without empty ones."""
    tenth_of = np.minimum((confidence * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    tenths = []
    for tenth in np.unique(tenth_of):
        inside = tenth_of == tenth
        mean_confidence, hit = float(confidence[inside].mean()), float(right[inside].mean())
        tenths.append((mean_confidence, hit, abs(mean_confidence - hit), float(inside.mean())))
    return tenths


def by_confidence(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return summed confidence, hits and number of forecasts for each tenth of confidence, as shares of all."""
    tenth_of = np.minimum((confidence * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    columns = [np.bincount(tenth_of, values, minlength=CONFIDENCE_BINS) for values in (confidence, right, None)]
    return np.column_stack(columns) / len(confidence)


def half_brier(probabilities: np.ndarray, hits: np.ndarray) -> float:
    """Return half the Brier score: mean squared distance between forecast probabilities and outcomes, over 2."""
    happened = np.eye(probabilities.shape[1])[hits]
    return float(0.5 * ((probabilities - happened) ** 2).sum(1).mean())


def risk_coverage(confidence: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the risk-coverage curve: the error rate of the most confident forecasts, by their share of all."""
    order = np.argsort(-confidence, kind="stable")
    counts = np.arange(1, len(order) + 1)
    return counts / len(order), np.cumsum(wrong[order]) / counts


def risk_at(confidence: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Return the risk of the most confident 10, 20, ... 100 % of forecasts."""
    risk = risk_coverage(confidence, wrong)[1]
    return risk[np.maximum(np.ceil(np.arange(1, 11) / 10 * len(risk)).astype(int), 1) - 1]


def area_under_risk(confidence: np.ndarray, wrong: np.ndarray) -> float:
    """Return the area under the risk-coverage curve (AURC): the mean risk over all coverages.

    >>> area_under_risk(np.array([0.9, 0.8, 0.7]), np.array([0.0, 0.0, 1.0])).__round__(3)
    0.111
    """
    return float(risk_coverage(confidence, wrong)[1].mean())


def random_course(truth: np.ndarray, failed: int, count: int) -> np.ndarray:
    """Return the expected best latency of random search after 1 .. ``count`` measurements, without replacement.

    ``truth``: latencies of the candidates that work; ``failed``: number of others. Before any works the slowest counts.
    """
    times = np.sort(truth)
    count_all = len(times) + failed
    expected = np.empty(count)
    # probability that none of the k fastest is among the drawn ones
    none_yet = np.ones(len(times))
    ranks = np.arange(1, len(times) + 1)
    for drawn in range(count):
        none_yet = none_yet * np.clip(count_all - ranks - drawn, 0, None) / (count_all - drawn)
        is_best = -np.diff(np.concatenate([[1.0], none_yet]))  # probability that the k-th fastest is the best drawn
        expected[drawn] = (is_best * times).sum() + none_yet[-1] * times[-1]
    return expected


def score_p(best: np.ndarray, truth: np.ndarray) -> float | None:
    """Return the score P of Kernel Tuner's benchmark: 1 is the optimum from the start, 0 is random search.

    (random - found) / (random - optimum), mean over the measurements in which random search gets 95 % of the way from
    the median to the optimum, or over those of the search. None: random search is as good as the optimum. FGCS 2024, "A
    methodology for comparing optimization algorithms for auto-tuning".
    """
    works = ~np.isnan(truth)
    times = np.exp(truth[works])
    random = random_course(times, int((~works).sum()), len(best))
    goal = np.median(times) + RANDOM_REACHES * (times.min() - np.median(times))
    reached = np.flatnonzero(random <= goal)
    until = int(reached[0]) + 1 if len(reached) else len(best)
    times_of_search = np.where(best >= 0, np.exp(truth[np.maximum(best, 0)]), times.max())[:until]
    possible_gain = random[:until] - times.min()
    if not (possible_gain > 0).all():
        return None
    return float(((random[:until] - times_of_search) / possible_gain).mean())


def replay_scores(best: np.ndarray, regret: np.ndarray, last_round: Round | None, logs: np.ndarray) -> dict[str, Any]:
    """Return the columns of ``search_summary`` that score a replayed search and its last forecast.

    ``best``: rows after each measurement, with their ``regret``; ``logs``: true log latencies, nan where none worked.
    """
    row: dict[str, Any] = {"n_to_5": first_within(regret, 0.05), "n_to_2": first_within(regret, 0.02)}
    row["score"] = score_p(best, logs)
    if last_round is not None and last_round.forecast is not None and last_round.forecast.fit is not None:
        row |= _calibration(last_round.forecast, last_round, logs)
    return row


def _calibration(forecast: Forecast, last_round: Round, logs: np.ndarray) -> dict[str, float]:
    """Return the scores of the last forecast over working candidates that were not measured."""
    unmeasured = ~np.isin(forecast.rows, last_round.history.rows) & ~np.isnan(logs[forecast.rows])
    return forecast_scores(
        forecast.mean[unmeasured], forecast.sd[unmeasured], logs[forecast.rows[unmeasured]], float(np.nanmedian(logs))
    )


def forecast_scores(mean: np.ndarray, sd: np.ndarray, truth: np.ndarray, anchor: float) -> dict[str, float]:
    """Return the coverage of forecasts, and the scores of their eight bins, against true log latencies."""
    if not len(mean):
        return {}
    bins, hits = bin_probabilities(mean, sd, anchor), bins_of(truth, anchor)
    wrong = (bins.argmax(1) != hits).astype(float)
    return {
        **{"coverage_90": coverage(truth, quantiles(mean, sd)), "ece": calibration_error(bins, hits)},
        **{"brier": half_brier(bins, hits), "crps": float(ranked_scores(bins, hits).mean())},
        "aurc": area_under_risk(bins.max(1), wrong),
    }
