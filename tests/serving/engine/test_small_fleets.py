"""Sessions, warm-ups and routers, one small world each, worked out by hand.

Every step takes 100 us; requests are (arrival us, prompt, output). A prompt gives its first token at the end of its
step, every further token takes a step.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine import inputs, records
from kernelsight.serving.engine.served import ServedScenario
from tests.serving.engine.test_prefix_worlds import shared_world
from tests.serving.engine.worlds import Fleet, World, constant_world, run_fleet, waits_of


def serve(world: World, engines: int = 1, router: str = "round_robin", **thresholds: float) -> ServedScenario:
    routing = inputs.Routing(records.ROUTERS.index(router), **thresholds)
    return run_fleet(Fleet(world, routing, engines))


def turns(world: World, follows: list[int], think_us: list[float]) -> World:
    """Return the world with later turns: the request that each one follows, and the time in between."""
    pairs = [(i, before, think_us[i]) for i, before in enumerate(follows) if before >= 0]
    return world._replace(load=world.load._replace(waits=waits_of(pairs)))


def test_in_turn() -> None:
    # the first engine takes two prompts in one step
    served = serve(constant_world([(0, 4, 2), (0, 4, 2), (0, 4, 2)]), 2)
    assert served.out.replica.tolist() == [0, 1, 0]
    assert served.out.finish_us.tolist() == [200, 200, 200]
    assert [len(steps) for steps in served.steps] == [2, 2]


def test_least_loaded() -> None:
    # The second request has ended at 100. At 150 the first engine still decodes: the third request goes to the second
    # engine. Then both have one: the next in turn is, at the fourth request, the second engine again.
    requests = [(0, 4, 10), (0, 4, 1), (150, 4, 1), (150, 4, 1)]
    assert serve(constant_world(requests), 2, "least_loaded").out.replica.tolist() == [0, 1, 1, 1]
    assert serve(constant_world(requests), 2, "round_robin").out.replica.tolist() == [0, 1, 0, 1]


def test_where_the_prefix_was_sent_before() -> None:
    # 8 of 12 tokens were sent before: to the second engine for the third request, to the first for the fourth
    world = shared_world([(0, 12, 1, "abc"), (0, 12, 1, "xyz"), (500, 12, 1, "xyw"), (500, 12, 1, "abd")])
    served = serve(world, 2, "prefix_aware")
    assert served.out.replica.tolist() == [0, 1, 1, 0]
    assert served.out.cached_tokens.tolist() == [0, 0, 8, 8]
    # two thirds of the prompt are not enough: least loaded, in turn where loads are equal
    served = serve(world, 2, "prefix_aware", cache_threshold=0.7)
    assert served.out.replica.tolist() == [0, 1, 0, 1]
    assert served.out.cached_tokens.tolist() == [0, 0, 0, 0]


def test_prefixes_do_not_overload_an_engine() -> None:
    # all four begin alike; where a difference of one request is too much, every other one goes to the second engine
    world = shared_world([(0, 12, 1, "abc"), (500, 12, 9, "abd"), (500, 12, 9, "abe"), (500, 12, 9, "abf")])
    assert serve(world, 2, "prefix_aware").out.replica.tolist() == [0, 0, 0, 0]
    strict = {"balance_abs_threshold": 0, "balance_rel_threshold": 1.0}
    assert serve(world, 2, "prefix_aware", **strict).out.replica.tolist() == [0, 0, 1, 0]


def test_a_turn_follows_the_one_before_it() -> None:
    # the first turn ends at 200; 50 us later the second one goes out, and finds the first one's block
    world = turns(shared_world([(0, 5, 2, "a"), (0, 9, 1, "ab")]), [-1, 0], [0.0, 50.0])
    out = serve(world).out
    assert out.sent_us.tolist() == [0, 250]
    assert out.finish_us.tolist() == [200, 350]
    assert out.cached_tokens.tolist() == [0, 4]


def test_a_session_keeps_its_slot() -> None:
    # one session at a time: A (requests 0 and 2) thinks from 100 to 200 and ends at 300, then B (1 and 3) begins
    world = turns(constant_world([(0, 4, 1)] * 4, max_concurrency=1), [-1, -1, 0, 1], [0.0, 0.0, 100.0, 100.0])
    out = serve(world).out
    assert out.sent_us.tolist() == [0, 300, 200, 500]
    assert out.finish_us.tolist() == [100, 400, 300, 600]


def test_a_turn_that_is_turned_away_ends_its_session() -> None:
    # the second turn is too long; the third is never sent, and the slot is free for the other session
    world = constant_world([(0, 4, 1), (0, 30, 1), (0, 4, 1), (0, 4, 1)], max_model_len=20, max_concurrency=1)
    out = serve(turns(world, [-1, 0, 1, -1], [0.0] * 4)).out
    reasons = [records.FINISHED, records.TOO_LONG, records.EARLIER_TURN, records.FINISHED]
    assert out.status.tolist() == reasons
    assert out.sent_us.tolist() == [0, 100, -1, 100]


def test_measured_requests_begin_when_the_warmups_have_ended() -> None:
    # the warm-ups end at 100 and 300: the others arrive 0 and 70 us after that
    world = constant_world([(0, 4, 1), (0, 4, 3), (0, 4, 1), (70, 4, 1)])
    out = serve(world._replace(load=world.load._replace(warmups=2)), 2).out
    assert out.finish_us[:2].tolist() == [100, 300]
    assert out.sent_us.tolist() == [0, 0, 300, 370]


def test_a_closed_loop_counts_the_requests_of_all_engines() -> None:
    # one in flight: engines take turns, and rest in between
    served = serve(constant_world([(0, 4, 1)] * 3, max_concurrency=1), 2)
    assert served.out.sent_us.tolist() == [0, 100, 200]
    assert served.out.replica.tolist() == [0, 1, 0]
    assert [totals.idle_us for totals in served.totals] == [100, 100]


def test_an_arrival_cuts_the_decode_run_of_its_engine_alone() -> None:
    # C comes in the step from 1100 to 1200 of the first engine, whose next step takes it; the other engine decodes on
    requests = [(0, 4, 50), (0, 4, 50), (1120, 4, 1)]
    served = serve(constant_world(requests), 2, "least_loaded")
    assert served.out.replica.tolist() == [0, 1, 0]
    assert served.out.scheduled_us.tolist() == [0, 0, 1200]
    assert served.out.finish_us.tolist() == [5000, 5000, 1300]
    assert [len(steps) for steps in served.steps] == [50, 50]


def scored(world: World, tiers: inputs.Tiers | None = None, **weights: float) -> ServedScenario:
    routing = inputs.Routing(records.SCORED, weights=inputs.Weights(**weights))
    return run_fleet(Fleet(world, routing, 2, tiers or inputs.Tiers()))


def test_the_highest_sum_of_scores() -> None:
    # at 150 the first engine runs a request of 4 tokens and the second none, with "xyz" in its cache
    requests = [(0, 4, 10, "a"), (0, 12, 1, "xyz"), (150, 12, 1, "xyw"), (150, 12, 1, "abc"), (160, 12, 1, "abc")]
    world = shared_world(requests, capacity_units=100)
    # two thirds of the third prompt, a third of the fourth; at 160 "abc" is on its way, and not cached yet
    assert scored(world, prefix=1.0).out.replica.tolist() == [0, 1, 1, 0, 0]
    # a third of the fourth prompt counts less than that the second engine runs nothing; at 160 that runs two requests
    assert scored(world, prefix=1.0, running=2.0).out.replica.tolist() == [0, 1, 1, 1, 0]
    # the first request holds part of the first engine's KV cache
    assert scored(world, kv_use=1.0).out.replica.tolist()[2:4] == [1, 1]
    # equal queues go in turn; at 160 the third request waits for the step of the first, and the fourth runs
    for name in ("queue", "load"):
        assert scored(world, **{name: 1.0}).out.replica.tolist() == [0, 1, 0, 1, 1]


def test_scores_are_of_the_steps_that_engines_are_in() -> None:
    # A (3 tokens) and B (2) hold a block each in the step from 100 to 200, as C comes: the first engine is next in
    # turn. The next step, for which A needs a second block, may be prepared (asynchronous), but has not begun.
    for asynchronous in (False, True):
        requests = [(0, 3, 9), (0, 2, 9), (150, 4, 1)]
        served = scored(constant_world(requests, asynchronous=asynchronous), kv_use=1.0)
        assert served.out.replica.tolist() == [0, 1, 0]
        # 400 us in the front end: when the fifth comes at 550, the third and fourth, seen at 700, let A and B decode
        requests = [(0, 3, 9), (0, 1, 9), (300, 4, 1), (300, 4, 1), (550, 4, 1)]
        world = constant_world(requests, asynchronous=asynchronous, host={"request_us": 400.0})
        assert scored(world, kv_use=1.0).out.replica.tolist() == [0, 1, 0, 1, 0]


def test_scores_count_the_steps_of_a_decode_run_that_have_begun() -> None:
    # A (3 tokens) and B (1) held a block each as they began to decode at 100; in the step from 200 on A holds two
    served = scored(constant_world([(0, 3, 9), (0, 1, 9), (250, 4, 1)]), kv_use=1.0)
    assert served.out.replica.tolist() == [0, 1, 1]


def test_requests_go_where_their_adapter_is() -> None:
    # one slot each: adapters 0 and 1 go to the empty slots of the first and the second engine, then each to its own
    world = constant_world([(500.0 * i, 4, 1) for i in range(6)], max_loras=1, adapter_places=1)
    world = world._replace(load=world.load._replace(adapter=np.array([0, 1, 1, 0, -1, 1])))
    assert scored(world, adapter=1.0).out.replica.tolist() == [0, 1, 1, 0, 0, 1]
    assert scored(world).out.replica.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_block_in_a_tier_counts_less_than_one_on_the_gpu() -> None:
    # the first engine's cache loses "ab" to "pqr", and its tier keeps it; the second has "a" of another prompt
    requests = [(0, 9, 1, "ab"), (0, 9, 1, "ac"), (500, 16, 1, "pqr"), (500, 4, 1, "z"), (1000, 9, 1, "ab")]
    world = shared_world(requests, capacity_units=4)
    tiers = inputs.Tiers((inputs.Tier(records.NO_LIMIT),))
    for weight, engine in ((1.0, 0), (0.8, 0), (0.4, 1), (0.0, 1)):
        served = scored(world, tiers, prefix=1.0, tier=weight, queue=0.01)
        assert served.out.replica.tolist()[-1] == engine, weight
