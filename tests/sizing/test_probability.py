"""How surely objectives hold: tight at the found rate, surer below it, as sure as the tightest of them."""

from __future__ import annotations

import math

import pytest

from kernelsight.scenario.objectives import objective_of
from kernelsight.serving.engine.host import Z_90
from kernelsight.sizing.probability import NORMAL, SUREST, chances_of, spare_of

TTFT, TPOT = objective_of("ttft_p99_ms", 200.0), objective_of("tpot_mean_ms", 40.0)


def rows(ttft: float, tpot: float, off: float = 2.0) -> dict[str, dict[str, float]]:
    return {
        "ttft_p99_ms": {"predicted": ttft, "low": ttft / off, "high": ttft * off},
        "tpot_mean_ms": {"predicted": tpot, "low": tpot / 1.1, "high": tpot * 1.1},
    }


def test_a_figure_at_its_objective_holds_half_of_times() -> None:
    chances = chances_of({0.5: rows(100.0, 30.0), 1.0: rows(200.0, 36.0)}, [TTFT, TPOT], 8.0, None)
    assert chances.at(1.0) == pytest.approx(0.5)
    # a factor of 2 below, where the 90 % interval reaches a factor of 2 above: its end
    assert chances.at(0.5) == pytest.approx(0.95)
    assert chances.share_for(0.95) == pytest.approx(0.5) and chances.share_for(0.5) == 1.0
    assert chances.share_for(0.96) == 0.0


def test_all_hold_where_the_tightest_holds() -> None:
    both = chances_of({1.0: rows(100.0, 39.0)}, [TTFT, TPOT], 8.0, None)
    tpot = chances_of({1.0: rows(100.0, 39.0)}, [TPOT], 8.0, None)
    assert both == tpot
    assert both.spare == (pytest.approx(math.log(40.0 / 39.0) / (math.log(1.1) / Z_90)),)


def test_what_a_figure_reaches_at_the_found_rate_is_kept_there() -> None:
    chances = chances_of({0.5: rows(100.0, 30.0), 1.0: rows(400.0, 30.0)}, [TTFT], 8.0, None)
    assert chances.at(1.0) == 0.5 and chances.at(0.5) == pytest.approx(NORMAL.cdf(2.0 * Z_90))


def test_each_side_of_an_interval_counts_where_the_objective_lies() -> None:
    # an objective above the prediction is broken by slow kernels, the upper end; one below it is kept by fast ones
    assert spare_of(100.0, 80.0, 400.0, 200.0) == pytest.approx(Z_90 / 2.0)
    assert spare_of(100.0, 25.0, 110.0, 50.0) == pytest.approx(-Z_90 / 2.0)


def test_bursts_make_it_less_sure() -> None:
    at = {0.5: rows(100.0, 30.0), 1.0: rows(200.0, 36.0)}
    calm, bursty = (chances_of(at, [TTFT], 8.0, low).at(0.5) for low in (None, 5.0))
    assert 0.5 < bursty < calm


def test_nothing_is_surer_than_the_surest_and_less_load_is_never_less_sure() -> None:
    at = {0.3: rows(150.0, 30.0), 0.5: rows(1.0, 30.0, 1.0001), 1.0: rows(2.0, 30.0, 1.0001)}
    chances = chances_of(at, [TTFT], 8.0, None)
    assert max(chances.spare) <= SUREST
    assert chances.spare == tuple(sorted(chances.spare, reverse=True))
