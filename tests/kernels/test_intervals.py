"""Factors of intervals: between the knots of a curve, and outside of what was measured."""

import numpy as np
import pytest

from kernelsight.kernels.call_kinds import interval_half_widths
from kernelsight.kernels.engine_versions import UNVERSIONED
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.intervals import KNOTS_US, MOST_HALF, NEAR_OCTAVES, growth, spread
from kernelsight.session import connect


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


@pytest.mark.parametrize("family", ["norm", "activation", "rope", "kv_write", "embedding", "sampling"])
def test_kernels_without_a_fit_keep_the_spread_of_their_family(family: str) -> None:
    # what another harness adds to a family stands in the pack beside no fit of it, and is no interval
    kind = {"answer_tier": "a-priori", "gpu": "h100_sxm", "vendor": None, "without": None, "point_count": None}
    kind |= {"interval_group": "bf16|unseen", "version": UNVERSIONED, "log_floor": None, "octaves": 0.0}
    with connect() as session:
        halves = interval_half_widths(family, [kind], session.table("eta_coefficients"))
    assert halves == pytest.approx(np.log(FAMILIES[family].latency_model.spread))
