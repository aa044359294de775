"""Ends of the range of a rate that was searched roughly: between the simulated rates on their two sides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernelsight.sweeps.rate_search import RateSearch


def searched(*points: tuple[float, float, float]) -> Any:
    """Return a search that has simulated rates, each with the pressure of its worst and of its best run."""

    def tried(rate: float, worst: float, best: float) -> Any:
        return SimpleNamespace(rate=rate, verdict=SimpleNamespace(worst=worst, best=best, drifts=False))

    return SimpleNamespace(served={(point[0], number): tried(*point) for number, point in enumerate(points)})


def test_ends_are_between_simulated_rates() -> None:
    found = searched((4.0, 0.7, 0.5), (6.0, 0.9, 0.8), (8.0, 1.2, 0.9), (9.0, 1.6, 1.3))
    low, high = (RateSearch._near_end(found, side) for side in (-1, 1))
    assert 6.0 < low < 8.0 < high < 9.0
    # the longest run of a rate counts, which is the last
    again = searched((4.0, 0.7, 0.5), (6.0, 1.4, 0.8), (6.0, 0.9, 0.8), (9.0, 1.6, 1.3))
    assert 6.0 < RateSearch._near_end(again, -1) < 9.0


def test_an_end_without_a_simulated_rate_beyond_is_the_last_one() -> None:
    found = searched((4.0, 0.7, 0.5), (6.0, 0.9, 0.8))
    assert RateSearch._near_end(found, 1) == pytest.approx(6.0)
    # slow runs break the objectives at all rates
    assert RateSearch._near_end(searched((4.0, 1.7, 1.5)), -1) < 4.0
