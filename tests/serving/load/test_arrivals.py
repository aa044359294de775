"""Arrivals of an open loop: what a ramp-up does to the gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.load.arrivals import ramp_rates, ramped_arrivals, steady_arrivals

RATES = st.floats(1e-3, 1e4)
STRATEGIES = st.sampled_from(["linear", "exponential"])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@given(STRATEGIES, RATES, RATES, st.integers(2, 200))
def test_rates_go_evenly_from_start_to_end(strategy, start, end, n):
    rates = ramp_rates(strategy, start, end, n)
    assert rates[0] == pytest.approx(start) and rates[-1] == pytest.approx(end)
    assert ((np.diff(rates) >= -1e-9 * end) if end >= start else (np.diff(rates) <= 1e-9 * start)).all()
    steps = np.diff(rates) if strategy == "linear" else rates[1:] / rates[:-1]
    assert steps == pytest.approx(np.full(n - 1, steps[0]), rel=1e-6, abs=1e-9 * max(start, end))


@given(STRATEGIES, RATES, RATES, st.integers(1, 50), st.floats(0.01, 1e308), st.integers(0, 9))
def test_arrivals_begin_at_nothing_and_never_go_back(strategy, start, end, n, burstiness, seed):
    arrivals = ramped_arrivals(generator(seed), ramp_rates(strategy, start, end, n), burstiness)
    assert arrivals.shape == (n,) and arrivals[0] == 0
    assert np.isfinite(arrivals).all() and (np.diff(arrivals) >= 0).all()


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_each_gap_is_drawn_at_the_rate_of_its_request(strategy, burstiness):
    rates = ramp_rates(strategy, 2.0, 32.0, 40_000)
    gaps = np.diff(ramped_arrivals(generator(), rates, burstiness)) * rates[1:]
    for part in np.split(gaps[:39_996], 4):
        assert part.mean() == pytest.approx(1, rel=0.05)
        assert part.std() == pytest.approx(burstiness**-0.5, rel=0.08)


def test_a_ramp_between_equal_rates_is_a_constant_rate_that_is_not_scaled():
    ramped = ramped_arrivals(generator(), np.full(500, 4.0), 1.0)
    steady = steady_arrivals(generator(), 500, 4.0, 1.0)
    assert ramped[1:] / steady[1:] == pytest.approx(np.full(499, ramped[-1] / steady[-1]))
    assert ramped[-1] != pytest.approx(steady[-1], rel=1e-3)


def test_the_first_gap_is_before_the_clock_starts():
    """Five sends take 5 / 4 s with the gap before the first, from which arrivals count."""
    assert steady_arrivals(generator(), 5, 4.0, 1e12) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
