"""Every metric on four rows worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.fitting.metrics import METRICS, mean_of, score

MEASURED = np.array([10.0, 20.0, 40.0, 100.0])
PREDICTED = np.array([12.0, 19.0, 40.0, 60.0])  # errors 20 %, 5 %, 0, 40 %


def test_errors_are_fractions_of_the_measured_latency():
    found = score(MEASURED, PREDICTED)
    assert tuple(found) == METRICS
    assert found["n"] == 4
    assert found["mape"] == pytest.approx((0.20 + 0.05 + 0.0 + 0.40) / 4)
    assert found["median_ape"] == pytest.approx((0.05 + 0.20) / 2)
    # three steps of sorted errors 0, 5, 20, 40 %: 0.9 lies 0.7 of the way through the last
    assert found["p90_ape"] == pytest.approx(0.20 + 0.7 * 0.20)
    assert found["bias"] == pytest.approx((0.20 - 0.05 + 0.0 - 0.40) / 4)
    assert found["time_weighted_ape"] == pytest.approx((2 + 1 + 0 + 40) / 170)


def test_intervals_include_their_ends_and_width_is_a_ratio():
    low, high = np.array([10.0, 5.0, 41.0, 30.0]), np.array([20.0, 20.0, 82.0, 90.0])
    found = score(MEASURED, PREDICTED, low, high)
    assert found["coverage_90"] == pytest.approx(2 / 4)
    assert found["width_90"] == pytest.approx((2.0 + 3.0) / 2)  # ratios 2, 4, 2, 3


def test_without_intervals_there_is_neither_coverage_nor_width():
    found = score(MEASURED, PREDICTED)
    assert found["coverage_90"] is None
    assert found["width_90"] is None


def test_rows_without_prediction_are_not_counted():
    found = score(MEASURED, np.array([12.0, np.nan, np.nan, 60.0]), MEASURED, MEASURED)
    assert found["n"] == 2
    assert found["mape"] == pytest.approx(0.30)
    assert found["coverage_90"] == 1.0


def test_no_rows_have_no_error():
    found = score(np.empty(0), np.empty(0))
    assert found == {"n": 0, **dict.fromkeys(METRICS[1:])}


def test_mean_over_cells_does_not_weigh_by_rows():
    small = score(np.array([10.0]), np.array([15.0]))
    large = score(np.full(9, 10.0), np.full(9, 11.0))
    found = mean_of([small, large, score(np.empty(0), np.empty(0))])
    assert found["n"] == 10
    assert found["mape"] == pytest.approx((0.5 + 0.1) / 2)
    assert found["coverage_90"] is None
