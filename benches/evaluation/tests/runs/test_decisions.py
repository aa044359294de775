"""Decisions on measured runs: probabilities that are right are scored so, and too sure ones show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelsight.laboratory.decisions import (
    LEAST,
    MOST,
    Decision,
    brier,
    by_one_factor,
    decision_scores,
    decisions_of,
    reliability,
)
from kernelsight.serving.engine.host import Z_90

WIDTH = 0.2


def runs(truth: float, said: float = WIDTH, count: int = 4000) -> list[dict]:
    """Runs whose predictions are off by a normal error of deviation ``truth``, with intervals for ``said``."""
    errors = np.random.default_rng(1).normal(0.0, truth, count)
    reach = math.exp(Z_90 * said)
    return [
        {
            "campaign": f"c{number % 2}",
            "run_id": str(number),
            "compared": {
                "ttft_mean": {
                    "measured": 100.0,
                    "predicted": 100.0 * math.exp(error),
                    "low": 100.0 * math.exp(error) / reach,
                    "high": 100.0 * math.exp(error) * reach,
                }
            },
        }
        for number, error in enumerate(errors)
    ]


def test_objectives_are_drawn_around_what_was_measured_and_stay_the_same() -> None:
    rows = runs(WIDTH)
    decisions = decisions_of(rows)
    drawn = [each.drawn for each in decisions]
    assert LEAST <= min(drawn) < 0.72 and 1.37 < max(drawn) <= MOST
    assert decisions_of(rows[5:6])[0].drawn == drawn[5]
    assert np.mean([each.holds for each in decisions]) == pytest.approx(
        math.log(MOST) / math.log(MOST / LEAST), abs=0.03
    )


def test_a_throughput_holds_where_it_is_high_enough() -> None:
    own = {"measured": 100.0, "predicted": 150.0, "low": 140.0, "high": 160.0}
    fast, slow = (
        decisions_of([{"campaign": "c", "run_id": "1", "compared": {"throughput": {**own, **more}}}])[0]
        for more in ({}, {"predicted": 60.0, "low": 50.0, "high": 70.0})
    )
    assert fast.holds == slow.holds and fast.probability > 0.9 and slow.probability < 0.1
    assert fast.error == pytest.approx(-math.log(1.5))


def test_intervals_that_are_too_narrow_are_too_sure() -> None:
    honest, narrow = (decisions_of(runs(WIDTH, said)) for said in (WIDTH, WIDTH / 3.0))
    scores = [decision_scores(each)["all"] for each in (honest, narrow)]
    assert scores[0]["brier"] < scores[1]["brier"] < scores[1]["brier_always"]
    said, held = (scores[1]["sure"][name] for name in ("said", "held"))
    assert said > held + 0.02
    # as sure as the errors are: one factor of the other campaigns does as well, and no better
    assert scores[0]["brier"] == pytest.approx(scores[0]["brier_factor"], abs=0.01)


def test_every_decision_is_in_one_band() -> None:
    decisions = [Decision("c", "1", "ttft_mean", 1.1, spare, 0.0) for spare in (-9.0, -1.0, 0.0, 1.0, 9.0)]
    rows = reliability(decisions)
    assert sum(row["n"] for row in rows) == 5 and rows[-1]["held"] == 1.0
    assert brier(decisions, [1.0] * 5) == 0.0 and brier([], []) is None
    # without another campaign nothing is known of the factor
    assert by_one_factor(decisions) == [0.5] * 5
