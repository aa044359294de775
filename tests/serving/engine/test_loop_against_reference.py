"""The compiled loop gives what the plain-Python reference scheduler gives, on random small worlds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from kernelsight.serving.engine import records
from kernelsight.serving.engine.served import Outcome, Served, Uses
from tests.conftest import random_worlds
from tests.serving.engine.near import near
from tests.serving.engine.reference_costs import PARTS, PHASES, Costs
from tests.serving.engine.reference_scheduler import Run
from tests.serving.engine.worlds import World, caching_worlds, policy_worlds, run_loop, run_reference, worlds

STATUS = {"finished": records.FINISHED, "too_long": records.TOO_LONG, "no_memory": records.NO_MEMORY}


@random_worlds(400)
@given(world=worlds())
def test_loop_agrees_with_reference(world: World) -> None:
    check(world)


@random_worlds(800)
@given(world=caching_worlds())
def test_loop_agrees_with_reference_where_prefixes_are_cached(world: World) -> None:
    check(world)


@random_worlds(800)
@given(world=policy_worlds())
def test_loop_agrees_with_reference_under_policies_of_single_engines(world: World) -> None:
    check(world)


def check(world: World) -> None:
    served, run = run_loop(world), run_reference(world)
    check_requests(served, run)
    check_steps(served, run)
    check_totals(world, served, run)
    check_uses(world, served, run)
    check_gaps(served, run)
    keeping_steps_changes_nothing(world, served)


def keeping_steps_changes_nothing(world: World, kept: Served) -> None:
    left = run_loop(world, keep_steps=False)
    assert len(left.steps) == 0
    for name in Outcome._fields:
        assert np.array_equal(getattr(kept.out, name), getattr(left.out, name)), name
    for name in Uses._fields:
        assert np.array_equal(getattr(kept.uses, name), getattr(left.uses, name)), name
    assert np.array_equal(kept.totals, left.totals)
    assert np.array_equal(kept.histogram, left.histogram)


def check_requests(served: Served, run: Run) -> None:
    out = served.out
    assert out.status.tolist() == [STATUS[r.status] for r in run.requests]
    assert out.preemptions.tolist() == [r.preemptions for r in run.requests]
    assert out.cached_tokens.tolist() == [r.hit_tokens for r in run.requests]
    assert out.requeued_us.tolist() == near([r.requeued_us for r in run.requests])
    assert out.recomputed_us.tolist() == near([r.recomputed_us for r in run.requests])
    assert out.sent_us.tolist() == near([r.sent_us for r in run.requests])
    assert out.scheduled_us.tolist() == near([r.scheduled_us for r in run.requests])
    assert out.first_token_us.tolist() == near([(r.token_times_us or [-1.0])[0] for r in run.requests])
    assert out.finish_us.tolist() == near([r.finish_us for r in run.requests])


def check_steps(served: Served, run: Run) -> None:
    counts = [(s.work.prompt_tokens, len(s.work.contexts), s.running, s.waiting, s.units) for s in run.steps]
    assert served.steps[:, 2:7].astype(int).tolist() == [list(row) for row in counts]
    assert served.steps[:, 0].tolist() == near([s.start_us for s in run.steps])
    assert served.steps[:, 1].tolist() == near([s.end_us for s in run.steps])
    # a difference of two clocks: as exact as the clock
    host_us = [s.end_us - s.start_us - s.gpu_us - s.waited_us for s in run.steps]
    assert served.steps[:, 7].tolist() == near(host_us, 1e-5)


def check_totals(world: World, served: Served, run: Run) -> None:
    totals, steps = served.totals, run.steps
    gaps = [b - a for r in run.requests for a, b in zip(r.token_times_us, r.token_times_us[1:], strict=False)]
    first = world.load.arrival_us[0]
    assert totals.steps == len(steps)
    assert totals.preemptions == sum(r.preemptions for r in run.requests)
    assert totals.peak_units == max((s.units for s in steps), default=0)
    assert totals.prompt_tokens == sum(s.work.prompt_tokens for s in steps)
    assert totals.gpu_us == near(sum(s.gpu_us for s in steps))
    assert totals.host_us == pytest.approx(sum(s.end_us - s.start_us - s.gpu_us - s.waited_us for s in steps), abs=1e-4)
    assert totals.idle_us == near(run.idle_us + sum(s.waited_us for s in steps))
    assert totals.gap_sum_us == near(sum(gaps))
    assert totals.first_us == first
    assert totals.last_us == near(steps[-1].end_us if steps else first)


def check_uses(world: World, served: Served, run: Run) -> None:
    expected = Costs(world.surface, world.limits.window_tokens).uses(run)
    for number, phase in enumerate(PHASES):
        for part in PARTS:
            counted = getattr(served.uses, part)[number]
            wanted = np.zeros_like(counted)
            for (name, i, j), weight in expected[phase].items():
                if name == part:
                    wanted[(i, j)[: wanted.ndim]] += weight
            assert counted.ravel().tolist() == near(wanted.ravel(), 1e-7), (phase, part)


def check_gaps(served: Served, run: Run) -> None:
    """Every gap between two tokens is in its bin of 0.2 %, or next to it where it lies on the edge."""
    gaps = np.array([b - a for r in run.requests for a, b in zip(r.token_times_us, r.token_times_us[1:], strict=False)])
    wanted = np.sort((np.log(np.maximum(gaps, 1.0)) / np.log(1.002)).astype(int))
    counted = np.repeat(np.arange(served.histogram.size), served.histogram)
    assert counted.size == wanted.size
    assert np.all(np.abs(counted - wanted) <= 1)
