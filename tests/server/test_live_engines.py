"""Engines beside a clock: requests that arrive one at a time get the schedule of a simulation that knew them all."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelsight as ks
from kernelsight.server.live_engines import LiveEngines, Tokens
from kernelsight.serving.engine import inputs, packed_costs, records, replica
from kernelsight.serving.engine.request_blocks import outcome_of
from kernelsight.serving.engine.served import REAL, WHOLE
from kernelsight.serving.runs.step_times import deploy
from tests.conftest import random_worlds
from tests.serving.engine.worlds import World, caching_worlds, policy_worlds, run_loop

SPARE = 3  # slots that no request takes


def feed(engines: LiveEngines, load: inputs.Load, moments_us: np.ndarray) -> list[Tokens]:
    """Send a load's requests as they arrive, with other moments reached in between; returns all tokens."""
    offsets = load.hash_offsets if load.hash_offsets.size else np.zeros(load.arrival_us.size + 1, np.int64)
    priority = load.priority if load.priority.size else np.zeros(load.arrival_us.size, np.int64)
    tokens: list[Tokens] = []
    for i, arrival_us in enumerate(load.arrival_us.tolist()):
        before = load.arrival_us[i - 1] if i else 0.0
        for moment_us in moments_us[(moments_us > before) & (moments_us < arrival_us)].tolist():
            tokens += engines.advance(moment_us)
        keys = [number.tobytes() for number in load.hashes[offsets[i] : offsets[i + 1]]]
        sizes = int(load.prompt_tokens[i]), int(load.output_tokens[i])
        _, found = engines.add(arrival_us, *sizes, keys, int(priority[i]))
        tokens += found
    return tokens + engines.advance(1e15)


def assert_same(live: LiveEngines, out: object, tokens: list[Tokens], load: inputs.Load) -> None:
    """Compare with a simulation's outcome to the nanosecond; tokens add up, and end when their request does."""
    n = load.arrival_us.size
    own = outcome_of(live.requests[:n])
    for name in WHOLE:
        np.testing.assert_array_equal(getattr(own, name), getattr(out, name), err_msg=name)
    for name in REAL:
        np.testing.assert_allclose(getattr(own, name), getattr(out, name), rtol=0.0, atol=1e-3, err_msg=name)
    by_slot = tokens_by_slot(tokens)
    for slot in range(n):
        of_it = by_slot[slot]
        if own.status[slot] != records.OK:
            assert not of_it
            continue
        times_us = [each.time_us for each in of_it]
        assert sum(each.count for each in of_it) == load.output_tokens[slot]
        assert times_us == sorted(times_us)
        assert (times_us[0], times_us[-1]) == (own.first_token_us[slot], own.finish_us[slot])
    assert not live.active and live.free == live.requests.size


def tokens_by_slot(tokens: list[Tokens]) -> dict[int, list[Tokens]]:
    """Return the tokens of each slot, in their order."""
    found: dict[int, list[Tokens]] = defaultdict(list)
    for each in tokens:
        found[each.slot].append(each)
    return found


def live_world(world: World) -> LiveEngines:
    pool = replica.Pool(world.limits, world.host, packed_costs.pack(world.surface))
    return LiveEngines(pool, world.load.arrival_us.size + SPARE, world.load.hash_tokens)


@random_worlds(300)
@given(world=policy_worlds() | caching_worlds(), seed=st.integers(0, 2**32 - 1))
@pytest.mark.whole
def test_the_schedule_of_a_simulation(world: World, seed: int) -> None:
    """Policies, preemptions and prefixes included; cuts at random moments change nothing.

    A server does not know how many requests come at once: only a simulation has their templates wait for each other.
    Requests of a server name no adapters.
    """
    world = world._replace(host=world.host._replace(serial_us=0.0))
    load = world.load._replace(max_concurrency=records.NO_LIMIT, user_us=0.0, adapter=world.load.adapter[:0])
    out = run_loop(world._replace(load=load)).out
    moments_us = np.sort(np.random.default_rng(seed).uniform(0.0, load.arrival_us[-1] + 1.0, 20))
    live = live_world(world)
    assert_same(live, out, feed(live, load, moments_us), load)


@pytest.mark.whole
def test_hundreds_of_arrivals() -> None:
    """On a deployment: prompts with shared beginnings, more than its memory holds."""
    with ks.connect() as session:
        flags = {"model": "qwen3-0.6b", "gpu": "l4", "kv_cache_tokens": 30_000, "max_num_seqs": 64}
        pool = deploy(session, flags).pool
    dice, count = np.random.default_rng(5), 400
    prompts, groups = dice.integers(20, 1500, count), dice.integers(0, 12, count)
    size = pool.limits.block_size
    texts = [[min(block, 40) * 1000 + group if block < 40 else 10**6 * (i + 1) + block for block in range(p // size)]
             for i, (p, group) in enumerate(zip(prompts.tolist(), groups.tolist(), strict=True))]  # fmt: skip
    _, numbers = np.unique(np.concatenate([np.array(text, np.int64) for text in texts]), return_inverse=True)
    load = inputs.Load(
        np.cumsum(dice.exponential(30_000.0, count)), prompts, dice.integers(1, 300, count), numbers.astype(np.int64),
        np.cumsum([0, *map(len, texts)]), size,
    )  # fmt: skip
    out = replica.serve(load, *pool[:3]).out
    assert out.preemptions.sum() > 0 and out.cached_tokens.sum() > 0
    live = LiveEngines(pool, count + SPARE, size)
    assert_same(live, out, feed(live, load, np.zeros(0)), load)


@pytest.mark.whole
def test_slots_are_used_again() -> None:
    """Few slots serve many requests, and numbers of hash blocks are reused, with the same schedule."""
    with ks.connect() as session:
        pool = deploy(session, {"model": "qwen3-0.6b", "gpu": "l4", "kv_cache_tokens": 4000, "max_num_seqs": 4}).pool
    dice, size = np.random.default_rng(1), pool.limits.block_size
    live = LiveEngines(pool, 8, size)
    live.blocks = type(live.blocks)(live.arrays.entries, live.arrays.limits, 900)
    clock_us, given = 0.0, {}
    for number in range(200):
        tokens = []
        while not live.free:
            clock_us = max(np.nextafter(live.next_us, np.inf), clock_us)
            tokens += live.advance(clock_us)
        clock_us += float(dice.exponential(5e4))
        prompt, output = int(dice.integers(1, 900)), int(dice.integers(1, 60))
        keys = [b"%d %d" % (number % 7 if block < 20 else number, block) for block in range(prompt // size)]
        slot, found = live.add(clock_us, prompt, output, keys)
        for each in tokens + found:
            given[each.slot] -= each.count
        given[slot] = given.get(slot, 0) + output
    for each in live.advance(1e15):
        given[each.slot] -= each.count
    assert not any(given.values()) and not live.active
    assert live.engines["free_units"][0] == pool.limits.capacity_units
    assert live.requests["cached_tokens"].max() > 0


@random_worlds(300)
@given(world=policy_worlds() | caching_worlds(), seed=st.integers(0, 2**32 - 1))
@pytest.mark.whole
def test_cancelled_requests_leave_nothing_behind(world: World, seed: int) -> None:
    """Units are given back, lists stay whole, and the others get all their tokens."""
    dice, live = np.random.default_rng(seed), live_world(world)
    load, cancelled, tokens = world.load, set(), []
    offsets = load.hash_offsets if load.hash_offsets.size else np.zeros(load.arrival_us.size + 1, np.int64)
    for i, arrival_us in enumerate(load.arrival_us.tolist()):
        keys = [number.tobytes() for number in load.hashes[offsets[i] : offsets[i + 1]]]
        slot, found = live.add(arrival_us, int(load.prompt_tokens[i]), int(load.output_tokens[i]), keys)
        tokens += found
        later_us = load.arrival_us[i + 1] if i + 1 < load.arrival_us.size else arrival_us + 500.0
        for share in np.sort(dice.random(2)):
            if live.active and dice.random() < 0.4:
                victim = int(dice.choice(sorted(live.active)))
                live.cancel(victim)
                cancelled.add(victim)
            tokens += live.advance(arrival_us + share * (later_us - arrival_us))
    tokens += live.advance(1e15)
    assert not live.active
    engine = live.engines[0]
    for name in ("running", "decoding", "partial_count", "in_flight"):
        assert engine[name] == 0, name
    assert (engine["partial"], engine["oldest"], engine["newest"], engine["fresh"]) == (records.NOBODY,) * 4
    assert engine["first_waiting"] == records.NOBODY
    assert engine["free_units"] == world.limits.capacity_units and live.client["in_flight"] == 0
    assert not live.arrays.entries["users"].any() and not live.blocks._uses.any()
    by_slot = tokens_by_slot(tokens)
    for slot in set(range(load.arrival_us.size)) - cancelled:
        if live.requests["status"][slot] == records.OK:
            assert sum(each.count for each in by_slot[slot]) == load.output_tokens[slot]
