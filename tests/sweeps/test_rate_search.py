"""Ends of the range of a rate that was searched roughly: between the simulated rates on their two sides."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from kernelsight.sweeps.rate_search import RateSearch


def ends(*levels: tuple[float, float], holds: tuple[float, float, float, float]) -> tuple[float, float]:
    """Return the ends of a search that has simulated levels at rates; ``holds``: its rate, level, worst and best."""

    def tried(rate: float, level: float, worst: float = 9.0, best: float = 0.1) -> Any:
        return SimpleNamespace(rate=rate, verdict=SimpleNamespace(level=level, worst=worst, best=best, drifts=False))

    found = tried(*holds)
    search: Any = SimpleNamespace(served=dict(enumerate([*(tried(*level) for level in levels), found])))
    low, high = (RateSearch._near_end(search, found, side) for side in (-1, 1))
    return low, high


def test_ends_are_where_one_run_breaks_its_objectives() -> None:
    """A run may be a quarter worse or better: levels of 0.8 and 1.25, whatever margins short runs have."""
    low, high = ends((4.0, 0.5), (6.0, 0.75), (9.0, 1.2), (12.0, 1.4), (20.0, 3.0), holds=(8.0, 0.98, 1.225, 0.784))
    assert low == pytest.approx(6.0 * (8.0 / 6.0) ** (math.log(0.8 / 0.75) / math.log(0.98 / 0.75)))
    assert 9.0 < high < 12.0


def test_an_end_without_a_simulated_rate_beyond_is_the_last_one() -> None:
    assert ends((4.0, 0.5), holds=(6.0, 0.7, 0.9, 0.6)) == (6.0, 6.0)
    assert ends((7.0, 0.8), holds=(6.0, 0.7, 0.9, 0.6))[1] == 7.0
    # slow runs break the objectives at all rates
    assert 3.5 < ends((9.0, 1.4), holds=(4.0, 0.9, 1.05, 0.7))[0] < 4.0


def test_a_load_that_rejects_requests_is_no_end() -> None:
    assert 6.0 <= ends((9.0, math.inf), holds=(6.0, 0.9, 0.95, 0.8))[1] < 6.1
