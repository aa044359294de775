"""Placing of measurements: neighbours once, what weighs more and costs less first, groups apart."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.fitting.experimental_design import LENGTH, NOISE, greedy_design, remaining

ONES = np.ones(20)


def order(sizes: np.ndarray, **given: object) -> list[int]:
    count = len(sizes)
    words = {"deviation": np.ones(count), "weight": np.ones(count), "seconds": np.ones(count), "groups": ["a"] * count}
    return [step.candidate for step in greedy_design(sizes, **{**words, **given})]


def test_clusters_are_visited_before_neighbours() -> None:
    centres = np.repeat(np.array([0.0, 50.0, 100.0, 150.0]), 5)
    near = np.tile(np.arange(5.0) * 0.1, 4)
    first = order((centres + near)[:, None])[:4]
    assert {int(centres[number]) for number in first} == {0, 50, 100, 150}
    assert all(near[number] == pytest.approx(0.2) for number in first)


def test_weight_and_deviation_draw_and_seconds_repel() -> None:
    apart = 100.0 * np.arange(20.0)[:, None]
    heavy, uncertain, cheap = ONES.copy(), ONES.copy(), ONES.copy()
    heavy[7] = uncertain[3] = 5.0
    cheap[11] = 0.2
    assert order(apart, weight=heavy)[0] == 7
    assert order(apart, deviation=uncertain)[0] == 3
    assert order(apart, seconds=cheap)[0] == 11


def test_groups_do_not_teach_each_other() -> None:
    together = np.zeros((2, 1))
    left = remaining(together, np.ones(2), ["a", "b"], [0])
    assert left[0] < 2 * NOISE and left[1] == 1.0
    left = remaining(together, np.ones(2), ["a", "a"], [0])
    assert (left < 2 * NOISE).all()


def test_the_error_told_at_each_step_is_the_one_that_is_left() -> None:
    random = np.random.default_rng(0)
    sizes, deviation = random.uniform(0.0, 8.0, (30, 3)), random.uniform(0.05, 0.4, 30)
    weight, groups = random.uniform(0.1, 2.0, 30), ["a", "b"] * 15
    steps = list(greedy_design(sizes, deviation, weight, np.full(30, 0.5), groups))
    assert len({step.candidate for step in steps}) == len(steps)
    for count in (1, 7, len(steps)):
        left = remaining(sizes, deviation, groups, [step.candidate for step in steps[:count]])
        assert steps[count - 1].expected_error == pytest.approx(float(weight @ left), rel=1e-6)
        assert steps[count - 1].seconds == pytest.approx(0.5 * count)
    # each choice is the best of its moment, so that gains fall
    gains = -np.diff([float(weight @ deviation), *(step.expected_error for step in steps)])
    assert (gains > 0.0).all() and (np.diff(gains) < 1e-9).all()


def test_a_choice_beats_chance() -> None:
    random = np.random.default_rng(1)
    sizes, weight = random.normal(0.0, 3.0, (120, 2)), random.pareto(1.5, 120) + 0.1
    words = (sizes, np.ones(120), weight, np.ones(120), ["a"] * 120)
    chosen = [step.candidate for step in greedy_design(*words)][:12]
    left = float(weight @ remaining(sizes, np.ones(120), words[4], chosen))
    drawn = [
        float(weight @ remaining(sizes, np.ones(120), words[4], random.choice(120, 12, replace=False)))
        for _ in range(10)
    ]
    assert left < min(drawn)
    assert LENGTH > 0.0
