"""Counted work of a search: its allowance, its time, and what a request counts."""

from __future__ import annotations

import pytest

from kernelsight.sweeps import work_budget
from kernelsight.sweeps.work_budget import SearchEnded, TimeIsOver, Work


def test_time_ends_a_search_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(work_budget.time, "monotonic", lambda: now[0])
    counted = Work(seconds=5.0)
    counted.take(10)
    now[0] = 105.0
    with pytest.raises(TimeIsOver, match="^its time limit of 5 s is over$") as caught:
        counted.take(10)
    assert caught.value.for_good and counted.spent == 10


def test_a_new_allowance_goes_on() -> None:
    counted = Work(most=100)
    counted.take(100)
    with pytest.raises(SearchEnded) as caught:
        counted.take(1)
    assert not caught.value.for_good
    counted.most = 101
    counted.take(1)
    assert counted.spent == 101
