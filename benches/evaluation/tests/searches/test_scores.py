"""Scores, worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import stdtrit

from kernelsight.laboratory.searches import scores
from kernelsight.searching.experience import bins_of, ranked_scores
from kernelsight.searching.forecasts import BIN_EDGES, TAILS, Z90, bin_probabilities, quantiles
from kernelsight.searching.search_tables import regrets


def test_regret_is_of_the_believed_best():
    truth = np.log([2.0, 1.0, np.nan, 4.0])
    assert regrets([-1, 0, 1], truth).round(9).tolist() == [3.0, 1.0, 0.0]


def test_the_expected_course_of_random_search_is_the_mean_over_all_orders():
    times, failed = np.array([1.0, 2.0, 5.0]), 1
    every = [*times, np.inf]
    courses = [np.minimum.accumulate(order) for order in itertools.permutations(every)]
    expected = np.mean([np.where(np.isinf(course), 5.0, course) for course in courses], axis=0)
    assert scores.random_course(times, failed, 4) == pytest.approx(expected)


def test_the_score_is_one_for_the_optimum_and_zero_for_chance():
    truth = np.log(np.linspace(1.0, 10.0, 200))
    assert scores.score_p(np.zeros(100, dtype=int), truth) == pytest.approx(1.0)
    draws = np.random.default_rng(0)
    courses = []
    for _ in range(400):
        order = draws.permutation(200)[:60]
        best = [order[np.argmin(truth[order[: n + 1]])] for n in range(60)]
        courses.append(scores.score_p(np.array(best), truth))
    assert abs(np.mean(courses)) < 0.05


def test_bins_hold_their_speed_ups():
    edges = np.array(BIN_EDGES)
    inside = np.sqrt(np.concatenate([[edges[0] / 2], edges]) * np.concatenate([edges, [edges[-1] * 2]]))
    logs = np.log(3.0) - np.log(inside)
    assert bins_of(logs, np.log(3.0)).tolist() == list(range(8))
    stated = bin_probabilities(logs, np.full(8, 1e-6), np.log(3.0))
    assert stated.argmax(1).tolist() == list(range(8))
    assert stated.sum(1) == pytest.approx(np.ones(8))


def test_honest_forecasts_are_calibrated_and_narrow_ones_are_not():
    draws = np.random.default_rng(1)
    mean = draws.normal(0.0, 0.7, 40_000)
    tails = draws.standard_t(TAILS, len(mean)) * Z90 / stdtrit(TAILS, 0.95)
    truth = mean + 0.3 * tails
    hits = bins_of(truth, 0.0)
    errors = {}
    for stated in (0.3, 0.1):
        sd = np.full(len(mean), stated)
        errors[stated] = scores.calibration_error(bin_probabilities(mean, sd, 0.0), hits)
    assert errors[0.3] < 0.01 < 0.2 < errors[0.1]
    assert scores.coverage(truth, quantiles(mean, np.full(len(mean), 0.3))) == pytest.approx(0.9, abs=0.01)


def test_scores_of_certain_forecasts():
    certain = np.eye(8)[[0, 7]]
    assert scores.half_brier(certain, np.array([0, 7])) == 0.0
    assert scores.half_brier(certain, np.array([1, 7])) == 0.5
    # off by all seven steps, and by none
    assert ranked_scores(certain, np.array([7, 7])).mean() == pytest.approx(0.5)
    assert ranked_scores(certain, np.array([1, 7])).mean() == pytest.approx(0.5 / 7)


def test_sure_forecasts_are_trusted_first():
    coverage, risk = scores.risk_coverage(np.array([0.5, 0.9]), np.array([1.0, 0.0]))
    assert coverage.tolist() == [0.5, 1.0]
    assert risk.tolist() == [0.0, 0.5]
