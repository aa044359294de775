"""Distributions of lengths: means, spreads and bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.load.arrivals import empirical_rows, lognormal_lengths


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.5])
def test_lognormal_lengths_have_the_stated_mean_and_spread(cv):
    lengths = lognormal_lengths(generator(), 200_000, 2000, cv)
    assert lengths.mean() == pytest.approx(2000, rel=0.02)
    assert lengths.std() / lengths.mean() == pytest.approx(cv, rel=0.05)
    logarithms = np.log(lengths)
    # symmetric in the logarithm, as no other distribution with this mean and spread is
    assert np.median(logarithms) == pytest.approx(logarithms.mean(), abs=0.02)
    assert np.median(lengths) == pytest.approx(2000 / np.sqrt(1 + cv**2), rel=0.02)


@given(st.integers(1, 2**53), st.floats(1e-9, 1e308), st.integers(0, 2**32))
def test_lognormal_lengths_are_whole_sizes(mean, cv, seed):
    lengths = lognormal_lengths(generator(seed), 50, mean, cv)
    assert lengths.dtype == np.int64 and lengths.min() >= 1 and lengths.max() <= 2**53


def test_the_spread_vanishes_with_the_coefficient_of_variation():
    assert set(lognormal_lengths(generator(), 1000, 700, 1e-9)) == {700}


@given(st.integers(1, 50), st.integers(0, 100))
def test_recorded_rows_are_drawn_with_replacement(recorded, seed):
    rows = empirical_rows(generator(seed), 60 * recorded, recorded)
    assert set(rows) <= set(range(recorded)) and rows.size == 60 * recorded
    assert np.bincount(rows).max() > 1 and len(set(rows)) > recorded / 2
