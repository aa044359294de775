"""Factors of intervals: between the knots of a curve, and outside of what was measured."""

import numpy as np
import pytest

from kernelsight.kernels.intervals import KNOTS_US, MOST_HALF, NEAR_OCTAVES, growth, spread


def test_factors_are_bounded_smooth_and_widen_by_octave():
    latency = 2.0 ** np.linspace(-10.0, 30.0, 4001)
    halves = np.array([0.5, 0.1, 0.3, 0.05, 0.2])
    factor = spread(np, latency, halves)
    assert (factor >= 1.0).all()
    assert np.abs(np.diff(np.log(factor))).max() < 0.005
    assert (spread(np, latency, halves * growth(2.0)) > factor).all()
    assert growth(0.0) == growth(NEAR_OCTAVES) == 1.0 < growth(2.0) < growth(3.0)
    assert spread(np, latency, 1e6 * halves).max() <= np.exp(MOST_HALF) * (1 + 1e-12)


def test_each_row_reads_its_own_curve():
    table = np.array([[0.1] * len(KNOTS_US), [0.7] * len(KNOTS_US)])
    assert np.log(spread(np, np.array([30.0, 30.0]), table)) == pytest.approx([0.1, 0.7])
