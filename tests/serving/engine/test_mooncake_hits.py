"""Prefix cache hits of a load of conversations, against an LRU replay that knows nothing of the loop.

Requests run one after another (max_num_seqs 1), so that a plain LRU list of KV blocks is the whole truth: no request
shares a step with another, none is preempted, and blocks become free in one order.
"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from kernelsight.serving.engine import records
from tests.made_traces import HASH_TOKENS, Asked, conversations
from tests.serving.engine.worlds import NO_LIMIT, World, constant_world, run_loop

PUBLISHED = Path(__file__).resolve().parents[4] / "shared/data/traces/mooncake-fast25/conversation_trace.jsonl.gz"
BLOCK = 16
PER_HASH = HASH_TOKENS // BLOCK
REQUESTS = 800


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    """Conversations that share prefixes, in their order."""
    return conversations(REQUESTS)


def world_of(asked: list[Asked], capacity_tokens: int, **limits: object) -> World:
    """Return a world that serves the requests one after another, whole prompts in one step."""
    world = constant_world(
        [(0.0, one.prompt, one.output) for one in asked],
        **{"block_size": BLOCK, "capacity_units": capacity_tokens // BLOCK, "max_model_len": NO_LIMIT},
        **({"max_num_seqs": 1, "max_num_batched_tokens": 131072, "prefix_caching": True} | limits),
    )
    hashes = np.array([name for one in asked for name in one.hashes], np.int64)
    _, numbers = np.unique(hashes, return_inverse=True)
    offsets = np.cumsum([0, *(len(one.hashes) for one in asked)])
    return world._replace(load=world.load._replace(hashes=numbers, hash_offsets=offsets, hash_tokens=HASH_TOKENS))


def prompt_blocks(one: Asked) -> list[tuple[int, int]]:
    """Full KV blocks of a prompt, as (hash, position)."""
    full = min(one.prompt // BLOCK, len(one.hashes) * PER_HASH)
    return [(one.hashes[i // PER_HASH], i % PER_HASH) for i in range(full)]


def replay(asked: list[Asked], capacity: int) -> list[int]:
    """Hits of each request, tokens: an LRU list of KV blocks, the first to be lost in front.

    A request takes its hits out of the list, then room for the rest of its blocks: unused room first, then the front of
    the list. When it ends, what is its own goes to the end, then its prompt from the tail.
    """
    cached: OrderedDict[tuple, None] = OrderedDict()
    found_tokens = []
    for number, one in enumerate(asked):
        blocks = prompt_blocks(one)
        hits = 0
        while hits < min(len(blocks), (one.prompt - 1) // BLOCK) and blocks[hits] in cached:
            del cached[blocks[hits]]
            hits += 1
        if hits < len(blocks):
            # a last full block that is cached is computed all the same, in its place
            cached.pop(blocks[hits], None)
        needed = -(-(one.prompt + one.output - 1) // BLOCK)
        while len(cached) + needed > capacity:
            cached.popitem(last=False)
        for own in range(needed - len(blocks)):
            cached["own", number, own] = None
        for block in reversed(blocks):
            assert block not in cached
            cached[block] = None
        found_tokens.append(hits * BLOCK)
    return found_tokens


@pytest.mark.parametrize("capacity_tokens", [24_000, 60_000, 150_000, 400_000])
@pytest.mark.whole
def test_hits_are_those_of_an_lru_replay(asked: list[Asked], capacity_tokens: int) -> None:
    served = run_loop(world_of(asked, capacity_tokens), keep_steps=False)
    assert np.all(served.out.status == records.FINISHED)
    assert served.totals.preemptions == 0
    expected = replay(asked, capacity_tokens // BLOCK)
    assert served.out.cached_tokens.tolist() == expected
    # the capacities are such that something is found, and something is lost
    assert 0 < sum(expected) < sum(reuse(asked))


def test_hits_of_an_unlimited_cache_are_the_reuse_of_the_trace(asked: list[Asked]) -> None:
    served = run_loop(world_of(asked, 10**9), keep_steps=False)
    assert served.out.cached_tokens.tolist() == reuse(asked)
    # what is found is not computed
    assert served.totals.prompt_tokens == sum(one.prompt for one in asked) - sum(reuse(asked))


def reuse(asked: list[Asked]) -> list[int]:
    """Tokens of each prompt's leading full blocks that an earlier prompt has too; at least one is left."""
    seen: set[tuple[int, int]] = set()
    found = []
    for one in asked:
        blocks = prompt_blocks(one)
        known = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
        found.append(min(known, (one.prompt - 1) // BLOCK) * BLOCK)
        seen.update(blocks)
    return found


def test_requests_side_by_side_find_what_those_before_them_have_scheduled(asked: list[Asked]) -> None:
    # no shortage and whole prompts: what an earlier request has scheduled is found, running, ended, or of the same step
    served = run_loop(world_of(asked, 10**9, max_num_seqs=32), keep_steps=False)
    assert served.out.cached_tokens.sum() <= sum(reuse(asked))
    assert served.out.cached_tokens.sum() > 0.9 * sum(reuse(asked))


def test_more_memory_finds_more(asked: list[Asked]) -> None:
    capacities = (24_000, 60_000, 150_000, 10**9)
    found = [run_loop(world_of(asked, one), keep_steps=False).out.cached_tokens.sum() for one in capacities]
    assert found == sorted(found) and found[0] < found[-1]


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published trace is not beside the checkout")
def test_the_published_trace_where_it_is_beside_the_checkout() -> None:
    with gzip.open(PUBLISHED, "rt") as lines:
        rows = [json.loads(line) for _, line in zip(range(REQUESTS), lines, strict=False)]
    asked = [Asked(row["timestamp"], row["input_length"], row["output_length"], row["hash_ids"]) for row in rows]
    served = run_loop(world_of(asked, 140_000), keep_steps=False)
    assert served.out.cached_tokens.tolist() == replay(asked, 140_000 // BLOCK)
