"""Several engines behind a router, sessions and warm-ups: the compiled loop against the plain-Python reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from kernelsight.serving.engine import inputs, records
from tests.conftest import random_worlds
from tests.serving.engine.near import near
from tests.serving.engine.reference_costs import Costs
from tests.serving.engine.reference_scenario import serve_scenario
from tests.serving.engine.test_loop_against_reference import STATUS
from tests.serving.engine.worlds import (
    Fleet,
    World,
    caching_worlds,
    fleets,
    policy_worlds,
    reference_requests,
    run_fleet,
    run_loop,
    worlds,
)


@random_worlds(300)
@given(fleet=fleets())
def test_fleets_agree_with_reference(fleet: Fleet) -> None:
    world = fleet.world
    served = run_fleet(fleet)
    requests = reference_requests(world.load)
    costs = Costs(world.surface, world.limits.window_tokens)
    stated = (world.load, world.limits, world.host, costs.gpu_time, fleet.routing, fleet.engines)
    runs, replicas = serve_scenario(requests, *stated, tiers=fleet.tiers if fleet.tiers.tiers else None)
    out = served.out
    assert out.status.tolist() == [(STATUS | {"earlier_turn": records.EARLIER_TURN})[r.status] for r in requests]
    assert out.replica.tolist() == replicas
    assert out.sent_us.tolist() == [r.sent_us for r in requests]
    assert out.cached_tokens.tolist() == [r.hit_tokens for r in requests]
    assert out.preemptions.tolist() == [r.preemptions for r in requests]
    assert out.scheduled_us.tolist() == [r.scheduled_us for r in requests]
    assert out.first_token_us.tolist() == [(r.token_times_us or [-1.0])[0] for r in requests]
    assert out.finish_us.tolist() == [r.finish_us for r in requests]
    for run, steps, totals in zip(runs, served.steps, served.totals, strict=True):
        expected = [
            (s.start_us, s.end_us, s.work.prompt_tokens, len(s.work.contexts), s.running, s.waiting, s.units)
            for s in run.steps
        ]
        assert steps[:, :7].tolist() == [list(row) for row in expected]
        assert totals.steps == len(run.steps)
        assert totals.idle_us == run.idle_us
        assert totals.gpu_us == near(sum(s.gpu_us for s in run.steps))
    # gaps of warm-ups are forgotten when the last of them has ended
    measured = requests[world.load.warmups :]
    assert served.histogram.sum() == sum(max(len(r.token_times_us) - 1, 0) for r in measured)


@random_worlds(60)
@given(world=worlds() | caching_worlds() | policy_worlds())
def test_engines_that_share_nothing_are_engines_by_themselves(world: World) -> None:
    """In turn and without a cap, a fleet is so many replicas, each with its part of the requests."""
    # what a front end does for those that are sent at once at the start is that of the fleet's start
    world = world._replace(host=world.host._replace(serial_us=0.0))
    load = world.load._replace(max_concurrency=records.NO_LIMIT, user_us=0.0)
    served = run_fleet(Fleet(world._replace(load=load), inputs.Routing(), 2))
    for i in range(min(2, load.arrival_us.size)):
        rows = np.arange(i, load.arrival_us.size, 2)
        part = load._replace(
            **{name: getattr(load, name)[rows] for name in ("arrival_us", "prompt_tokens", "output_tokens")},
            priority=load.priority[rows] if load.priority.size else load.priority,
            adapter=load.adapter[rows] if load.adapter.size else load.adapter,
        )
        if load.hash_tokens:
            spans = zip(load.hash_offsets[rows], load.hash_offsets[rows + 1], strict=True)
            own = [load.hashes[start:stop] for start, stop in spans]
            part = part._replace(hashes=np.concatenate(own), hash_offsets=np.cumsum([0, *(len(each) for each in own)]))
        alone = run_loop(world._replace(load=part))
        for name in ("status", "sent_us", "scheduled_us", "first_token_us", "finish_us", "cached_tokens"):
            assert getattr(served.out, name)[rows].tolist() == near(getattr(alone.out, name).tolist()), name
        assert served.steps[i][:, :7].tolist() == [near(row) for row in alone.steps[:, :7].tolist()]
        busy_us = [t.last_us - t.first_us - t.idle_us for t in (served.totals[i], alone.totals)]
        assert busy_us[0] == pytest.approx(busy_us[1], abs=1e-3)
