"""Sums over windows of time against the steps that they were made of, added up one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from kernelsight.serving.engine import records, step_rows, windows
from kernelsight.serving.engine.served import Outcome, Served
from tests.conftest import random_worlds
from tests.serving.engine.worlds import World, caching_worlds, constant_world, run_loop, worlds

(START, END, PROMPTS, DECODES, RUNNING, WAITING, UNITS, _, FOUND, LOOKED_UP, PREEMPTED) = range(11)
ROUNDING = 1e-9


def overlap(start: float, end: float, steps: np.ndarray) -> np.ndarray:
    """Time that each step has within a window."""
    return np.clip(np.minimum(end, steps[:, END]) - np.maximum(start, steps[:, START]), 0.0, None)


def in_flight_us(start: float, end: float, out: Outcome) -> float:
    """Time that accepted requests were in flight in a window, one by one."""
    accepted = out.status == records.FINISHED
    return float(np.clip(np.minimum(end, out.finish_us) - np.maximum(start, out.sent_us), 0.0, None)[accepted].sum())


def check(served: Served) -> None:
    """Hold every window against the steps."""
    found, steps = served.windows, served.steps
    whole = max(found.edges_us[-1], 1.0)
    for k, (start, end) in enumerate(zip(found.edges_us[:-1], found.edges_us[1:], strict=True)):
        within = overlap(start, end, steps)
        last = k == found.edges_us.size - 2
        begun = steps[(steps[:, START] >= start) & ((steps[:, START] < end) | last)]
        near = {"rel": 1e-7, "abs": ROUNDING * whole}
        assert found.sums[k, windows.BUSY] == pytest.approx(within.sum(), **near)
        assert found.sums[k, windows.UNITS_US] == pytest.approx((within * steps[:, UNITS]).sum(), **near)
        assert found.sums[k, windows.RUNNING_US] == pytest.approx((within * steps[:, RUNNING]).sum(), **near)
        assert found.in_flight_us[k] == pytest.approx(in_flight_us(start, end, served.out), rel=1e-7, abs=1e-6 * whole)
        assert found.peak_units[k] == steps[within > 0.0][:, UNITS].max(initial=0.0)
        assert found.peak_running[k] == steps[within > 0.0][:, RUNNING].max(initial=0.0)
        counts = [len(begun), *begun[:, [PROMPTS, DECODES, FOUND, LOOKED_UP, PREEMPTED]].sum(axis=0)]
        # these worlds draw no power: see tests/serving/runs/test_energy.py
        assert found.sums[k, windows.STEPS : windows.ENERGY_IN].tolist() == counts


@random_worlds(80)
@given(world=worlds() | caching_worlds())
def test_windows_are_the_steps_added_up_and_change_nothing(world: World) -> None:
    served = run_loop(world, windows_from_us=world.load.arrival_us[0])
    check(served)
    neither_windows_nor_chunks_of_steps_change_anything(world, served)
    found = served.windows
    assert found.edges_us[0] == world.load.arrival_us[0]
    assert found.edges_us[-1] == served.totals.last_us
    # what a whole simulation counts
    assert found.sums[:, windows.STEPS].sum() == served.totals.steps
    assert found.sums[:, windows.PROMPTS_IN].sum() == served.totals.prompt_tokens
    assert found.sums[:, windows.PREEMPTED_IN].sum() == served.totals.preemptions
    assert found.sums[:, windows.FOUND_IN].sum() == served.out.cached_tokens.sum()
    done = served.out.status == records.FINISHED
    assert found.sums[:, windows.LOOKED_UP_IN].sum() == world.load.prompt_tokens[done].sum()
    assert found.peak_units.max() == served.totals.peak_units


def neither_windows_nor_chunks_of_steps_change_anything(world: World, whole: Served) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_rows, "CHUNK", 3)
        patch.setattr(step_rows, "LEAST_CHUNK", 3)
        in_chunks = run_loop(world, windows_from_us=world.load.arrival_us[0])
        windows_alone = run_loop(world, keep_steps=False, windows_from_us=world.load.arrival_us[0])
    bare = run_loop(world, keep_steps=False)
    assert bare.windows is None and windows_alone.steps.size == 0
    for other in (in_chunks, windows_alone, bare):
        for name, values in whole.out._asdict().items():
            assert getattr(other.out, name) == pytest.approx(values, rel=1e-9, abs=1e-6), name
    assert in_chunks.steps == pytest.approx(whole.steps, rel=1e-9, abs=1e-6)
    for other in (in_chunks, windows_alone):
        assert other.windows.sums == pytest.approx(whole.windows.sums, rel=1e-6, abs=1e-3)


def test_a_long_time_has_wider_windows() -> None:
    # 1,000 requests of one step of 100 us, one every 10 ms: 10 s are 128 windows of 78 ms at least, the next power of
    # two of a second is 1/8
    served = run_loop(constant_world([(10_000.0 * i, 4, 1) for i in range(1000)]), windows_from_us=0.0)
    check(served)
    found = served.windows
    assert np.diff(found.edges_us)[:-1].tolist() == [125_000.0] * 79
    assert found.sums[:, windows.STEPS].sum() == 1000
    # 12 or 13 steps of 100 us in each
    assert set(found.sums[:-1, windows.STEPS]) == {12.0, 13.0}


def test_a_step_is_shared_out_over_the_windows_that_it_lies_in() -> None:
    # one step of 10 ms from 1 ms on: windows of 1/512 s have 953.125 us of it, then all of their time, then the rest
    served = run_loop(constant_world([(0.0, 4, 1)], step_us=10_000.0, host={"request_us": 1000.0}), windows_from_us=0.0)
    width = windows.NARROWEST_US
    busy = served.windows.sums[:, windows.BUSY].tolist()
    assert busy == pytest.approx([width - 1000.0, *[width] * 4, 11_000.0 - 5 * width])
    # one block of four tokens, one request; it is in flight while it waits, too
    assert (
        served.windows.sums[:, windows.UNITS_US].tolist() == busy == served.windows.sums[:, windows.RUNNING_US].tolist()
    )
    assert served.windows.in_flight_us.sum() == pytest.approx(11_000.0)
    assert served.windows.sums[:, windows.STEPS].tolist() == [1, 0, 0, 0, 0, 0]


def test_requests_that_are_turned_away_leave_no_windows() -> None:
    served = run_loop(constant_world([(5.0, 4, 2000)]), windows_from_us=5.0)
    assert served.windows.edges_us.tolist() == [5.0, 5.0]
    assert served.windows.sums.sum() == served.windows.in_flight_us.sum() == 0.0
