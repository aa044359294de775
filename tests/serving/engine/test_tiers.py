"""KV tiers behind the prefix cache: worlds worked out by hand, and random ones against the reference scheduler.

In worlds by hand every step takes 100 us, blocks have 4 tokens, and prompts say one hash a block.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.engine import packed_costs, records, replica
from kernelsight.serving.engine.inputs import Tier, Tiers
from kernelsight.serving.engine.served import Served
from tests.conftest import random_worlds
from tests.serving.engine import reference_scheduler
from tests.serving.engine.near import near
from tests.serving.engine.reference_costs import Costs
from tests.serving.engine.test_loop_against_reference import STATUS
from tests.serving.engine.test_prefix_worlds import shared_world
from tests.serving.engine.worlds import World, caching_worlds, in_time, reference_requests

UNLIMITED = records.NO_LIMIT
THROUGH, BACK, MOVED = records.THROUGH, records.BACK, records.MOVED


def serve(world: World, tiers: Tiers) -> Served:
    costs = packed_costs.pack(world.surface)
    return in_time(lambda: replica.serve(world.load, world.limits, world.host, costs, tiers=tiers, keep_steps=True))


# "ab" leaves 3 blocks of 4; "p" takes all; then "ab" again
TURNS = [(0, 9, 1, "ab"), (500, 16, 1, "pqr"), (1000, 9, 1, "ab")]


def test_a_hit_goes_on_in_the_tier() -> None:
    alone = serve(shared_world(TURNS, capacity_units=4), Tiers())
    assert alone.out.cached_tokens.tolist() == [0, 0, 0]
    served = serve(shared_world(TURNS, capacity_units=4), Tiers((Tier(UNLIMITED),)))
    assert served.out.cached_tokens.tolist() == served.out.tier_tokens.tolist() == [0, 0, 8]
    assert [values.tolist() for values in served.tiers] == [[2], [2], [5], [0]]


@pytest.mark.parametrize(("blocks", "found"), [(5, 8), (4, 4), (3, 0), (0, 0)])
def test_the_least_recently_used_goes_first(blocks: int, found: int) -> None:
    # a, b, p, q, r: new blocks are the most recently used in their order, so that a goes first, and without a no b is
    # of use; but "ab" once more at 300 touches b, then a
    requests = [TURNS[0], (300, 9, 1, "ab"), *TURNS[1:]]
    served = serve(shared_world(requests, capacity_units=4), Tiers((Tier(blocks),)))
    assert served.out.cached_tokens.tolist() == [0, 8, 0, found]


def test_an_eviction_without_a_write_drops_the_only_copy() -> None:
    tiers = Tiers((Tier(1), Tier(UNLIMITED)), write_policy=BACK)
    served = serve(shared_world([*TURNS, (1500, 16, 1, "pqr")], capacity_units=4), tiers)
    # what the GPU evicts goes to the first tier, what that evicts to the second: nothing is lost
    assert served.out.cached_tokens.tolist() == [0, 0, 8, 12]
    one = serve(shared_world([*TURNS, (1500, 16, 1, "pqr")], capacity_units=4), tiers._replace(tiers=(Tier(1),)))
    assert one.out.cached_tokens.sum() < served.out.cached_tokens.sum()
    assert one.tiers.evicted[0] > 0


def test_a_block_that_moves_is_in_one_place() -> None:
    served = serve(shared_world(TURNS, capacity_units=4), Tiers((Tier(2),), write_policy=MOVED))
    assert served.out.tier_tokens.tolist() == [0, 0, 8]
    assert served.tiers.read.tolist() == [2]


def test_a_request_loads_beside_the_steps_of_others() -> None:
    # a decode runs on while the load of 2 blocks takes 2 x 150 us; the prompt is computed from 1300 on
    requests = [*TURNS[:2], (950, 4, 9, "z"), (1000, 9, 1, "ab")]
    tiers = Tiers((Tier(UNLIMITED),), load_ahead=True, link_read_us=150.0)
    served = serve(shared_world(requests, capacity_units=6), tiers)
    assert served.out.tier_tokens.tolist() == [0, 0, 0, 8]
    assert served.out.load_us.tolist() == [0, 0, 0, 300]
    assert served.out.scheduled_us[3] == 1050
    assert served.out.first_token_us[3] == 1450
    assert served.out.finish_us[2] == 1850
    # where the step waits for its load, so do the decodes in it
    waits = serve(shared_world(requests, capacity_units=6), tiers._replace(load_ahead=False))
    assert waits.out.first_token_us[3] == 1350
    assert waits.out.finish_us[2] > 1850


def test_an_engine_whose_requests_all_load_waits_for_the_first() -> None:
    tiers = Tiers((Tier(UNLIMITED),), load_ahead=True, link_read_us=150.0)
    served = serve(shared_world(TURNS, capacity_units=4), tiers)
    assert served.out.first_token_us.tolist() == [100, 600, 1000 + 300 + 100]
    assert len(served.steps) == 3
    queued = serve(shared_world(TURNS, capacity_units=4), tiers._replace(prefetch=True))
    assert queued.out.first_token_us.tolist() == served.out.first_token_us.tolist()


def test_a_tier_that_replicas_share() -> None:
    world = shared_world(TURNS, capacity_units=4)
    shared = Tiers((Tier(UNLIMITED, shared=True),))
    for tiers, found in ((shared, 8), (Tiers((Tier(UNLIMITED),)), 0)):
        pool = replica.Pool(world.limits, world.host, packed_costs.pack(world.surface), 3, tiers=tiers)
        served = in_time(lambda pool=pool: replica.serve_scenario(world.load, [pool]))
        assert served.out.cached_tokens.tolist() == [0, 0, found]


@st.composite
def tiers_drawn(draw: st.DrawFn) -> Tiers:
    """Draw one to three tiers, often small ones, with any policy and times."""
    times = st.sampled_from([0.0, 7.0, 130.0, 900.0])
    tier = st.builds(Tier, st.sampled_from([0, 1, 3, 8, UNLIMITED]), times, times, times)
    own = draw(st.lists(tier, min_size=1, max_size=3))
    policy, ahead = draw(st.sampled_from([THROUGH, BACK, MOVED])), draw(st.booleans())
    return Tiers(tuple(own), policy, ahead, draw(st.booleans()), draw(times), draw(times))


@random_worlds(600)
@given(world=caching_worlds(), tiers=tiers_drawn())
def test_loop_agrees_with_reference(world: World, tiers: Tiers) -> None:
    load, costs = world.load, Costs(world.surface, world.limits.window_tokens)
    made: list[reference_scheduler.Scheduler] = []

    def remembered(*arguments: object) -> reference_scheduler.Scheduler:
        made.append(Scheduler(*arguments))
        return made[-1]

    Scheduler, reference_scheduler.Scheduler = reference_scheduler.Scheduler, remembered
    try:
        run = reference_scheduler.serve(
            reference_requests(load), world.limits, world.host, costs.gpu_time, load.hash_tokens, load.max_concurrency,
            tiers, load.user_us,
        )  # fmt: skip
    finally:
        reference_scheduler.Scheduler = Scheduler
    tiers_of_no_capacity_change_nothing(world, tiers)
    served = serve(world, tiers)
    out, memory = served.out, made[0].memory
    assert out.status.tolist() == [STATUS[r.status] for r in run.requests]
    assert out.cached_tokens.tolist() == [r.hit_tokens for r in run.requests]
    assert out.tier_tokens.tolist() == [r.tier_tokens for r in run.requests]
    assert out.preemptions.tolist() == [r.preemptions for r in run.requests]
    counts = [(s.work.prompt_tokens, len(s.work.contexts), s.running, s.units) for s in run.steps]
    assert served.steps[:, [2, 3, 4, 6]].astype(int).tolist() == [list(row) for row in counts]
    assert served.steps[:, 0].tolist() == near([s.start_us for s in run.steps])
    assert served.steps[:, 1].tolist() == near([s.end_us for s in run.steps])
    assert out.finish_us.tolist() == near([r.finish_us for r in run.requests])
    assert served.totals.idle_us == near(run.idle_us + waited(run))
    if world.load.hash_tokens and world.limits.prefix_caching:
        moved = [list(values) for values in (memory.hit, memory.read, memory.written, memory.evicted)]
        if served.tiers is None:  # no tier has room
            assert not any(map(any, moved))
            return
        assert [values.tolist() for values in served.tiers] == moved
        assert (served.tiers.evicted <= served.tiers.written).all()


def waited(run: reference_scheduler.Run) -> float:
    """Time that steps waited for transfers."""
    return sum(step.waited_us for step in run.steps)


def tiers_of_no_capacity_change_nothing(world: World, tiers: Tiers) -> None:
    empty = tiers._replace(tiers=tuple(tier._replace(blocks=0) for tier in tiers.tiers))
    alone, served = serve(world, Tiers()), serve(world, empty)
    for name in ("whole", "real"):
        assert np.array_equal(getattr(alone.out, name), getattr(served.out, name)), name
    assert np.array_equal(alone.steps, served.steps)
    assert alone.totals == served.totals
    assert np.array_equal(alone.histogram, served.histogram)
