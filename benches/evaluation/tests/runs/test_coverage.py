"""How many measured runs lie within their intervals, and the spread that intervals lack."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelsight.laboratory.runs.coverage import coverage, spread_lacking, with_spread_of_others
from kernelsight.laboratory.runs.level_scores import USERS, spread_rows
from kernelsight.serving.engine.host import Z_90

RUN = {"osl": 2, "fitting": True, "is_moe": False, "errors": {"ttft": 0.1}, "max_concurrency": 8}


def runs(ratios, factor=1.0):
    interval = dict.fromkeys(("ttft", "tpot", "e2e"), (1 / factor, factor))
    times = {"ttft_mean_ms": 10.0, "tpot_mean_ms": 1.0, "interval_factors": interval}
    return [{**RUN, **times, "ttft_ms": 10.0 * ratio, "tpot_ms": ratio} for ratio in ratios]


def test_shares_and_widths_on_runs_made_by_hand():
    found = coverage(runs([0.6, 0.9, 1.0, 1.4, 3.0], factor=1.5))["ttft"]
    assert found["coverage_90"] == 0.6
    assert found["width_90"] == pytest.approx(2.25)
    # three of five lie within a factor of 1.4
    assert found["width_fixed"] == pytest.approx(1.4**2)
    assert coverage([])["e2e"]["coverage_90"] is None


def test_e2e_is_the_first_token_and_the_others():
    assert coverage(runs([1.2], factor=1.3))["e2e"]["coverage_90"] == 1.0
    assert coverage(runs([1.2], factor=1.1))["e2e"]["coverage_90"] == 0.0


def test_the_spread_of_normal_errors_is_found_again():
    errors = np.random.default_rng(5).normal(0.0, 0.3, 4000)
    assert spread_lacking(runs(np.exp(errors)), "tpot") == pytest.approx(0.3, abs=0.015)
    # an interval that has part of it already lacks the rest
    half = Z_90 * 0.18
    assert spread_lacking(runs(np.exp(errors), math.exp(half)), "tpot") == pytest.approx(0.24, abs=0.015)
    # with what is held taken out first, it lacks all of it again
    assert spread_lacking(runs(np.exp(errors), math.exp(half)), "tpot", held=0.18) == pytest.approx(0.3, abs=0.015)


def test_only_the_fitting_fifth_makes_the_spread_by_users_who_take_turns():
    held = [{"metric": name, "users": users, "log_sd": 0.0} for name in ("ttft", "tpot", "e2e") for users in USERS]
    mine, scored = runs([1.0] * 20), [run | {"fitting": False} for run in runs([9.0] * 20)]
    crowded = [run | {"max_concurrency": 33} for run in runs([4.0] * 20)]
    # all requests of a burst are sent at once: nobody takes turns
    burst = [run | {"max_concurrency": 33, "num_prompts": 33} for run in runs([1.0] * 20)]
    rows = spread_rows([*mine, *burst, *scored, *crowded], held)
    assert [(row["metric"], row["users"], row["n"]) for row in rows] == [
        (name, users, n) for users, n in ((0.0, 40), (33.0, 20)) for name in ("ttft", "tpot", "e2e")
    ]
    assert {row["log_sd"] for row in rows[:3]} == {0.0} and all(row["log_sd"] > 0.5 for row in rows[3:])


def test_no_run_of_a_group_widens_the_intervals_of_that_group():
    own = [run | {"model": "a"} for run in runs([4.0] * 20)]
    others = [run | {"model": "b"} for run in runs(np.exp(np.random.default_rng(5).normal(0.0, 0.3, 2000)))]
    scored, held = [run | {"model": "a"} for run in runs([1.0], factor=1.5)], {"ttft": 0.0, "tpot": 0.0, "e2e": 0.0}

    def of(row):
        return (row["model"],)

    low, high = with_spread_of_others(scored, [*own, *others], of, held)[0]["interval_factors"]["tpot"]
    assert math.log(high) == pytest.approx(math.hypot(math.log(1.5), Z_90 * 0.3), abs=0.03)
    assert low * high == pytest.approx(1.0)
    # a spread that was held is taken out first
    served = [run | {"model": "a"} for run in runs([1.0], factor=math.exp(Z_90 * 0.5))]
    high = with_spread_of_others(served, [*own, *others], of, dict.fromkeys(held, 0.5))[0]["interval_factors"]["e2e"][1]
    assert math.log(high) < Z_90 * 0.5
    # a group without others keeps its intervals
    assert with_spread_of_others(scored, own, of, held)[0]["interval_factors"]["ttft"] == pytest.approx((1 / 1.5, 1.5))
