"""Sessions and shared prefixes: what a prompt holds, what follows what, and which blocks are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.load.conversations import in_order_of_arrival, prefix_numbers, sessions_of, shared_blocks
from kernelsight.serving.load.requests import draw_loads
from tests.serving.load.test_requests import SYNTHETIC, scenarios

LENGTHS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 80)), min_size=1, max_size=25)


def drawn(lengths: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    new, output = zip(*lengths, strict=True)
    return np.array(new), np.array(output)


def prompts(lengths: list[tuple[int, int]], turns: int, prefix_len: int, prefixes: np.ndarray) -> list[list[object]]:
    """Write every prompt out, token by token: (prefix, position), or (request, kind, position) of who said it."""
    written: list[list[object]] = []
    for request, (new, _) in enumerate(lengths):
        if request % turns == 0:
            start: list[object] = [("prefix", prefixes[request // turns], i) for i in range(prefix_len)]
        else:
            said = lengths[request - 1][1]
            start = written[-1] + [(request - 1, "output", i) for i in range(said)]
        written.append(start + [(request, "new", i) for i in range(new)])
    return written


@given(LENGTHS, st.integers(1, 5), st.integers(0, 70), st.integers(1, 3))
def test_blocks_are_the_same_exactly_where_the_tokens_are(lengths, turns, prefix_len, num_prefixes):
    sessions = sessions_of(*drawn(lengths), turns, prefix_len)
    count = sessions.session[-1] + 1
    prefixes = prefix_numbers(np.random.default_rng(1), count, num_prefixes)
    written = prompts(lengths, turns, prefix_len, prefixes)
    assert sessions.prompt_tokens.tolist() == [len(prompt) for prompt in written]
    blocks = shared_blocks(sessions, prefixes, prefix_len)
    if blocks.block_tokens == 0:
        assert (turns == 1 or len(lengths) == 1) and prefix_len < 16 and blocks.ids.size == 0
        return
    size = blocks.block_tokens
    assert size % 16 == 0
    ends = np.cumsum(blocks.counts)
    ids = [blocks.ids[end - n : end].tolist() for end, n in zip(ends, blocks.counts, strict=True)]
    assert [len(own) for own in ids] == [-(-len(prompt) // size) for prompt in written]
    assert all(len(set(own)) == len(own) for own in ids)
    for a, mine in enumerate(written):
        for b, other in enumerate(written[:a]):
            for block in range(min(len(ids[a]), len(ids[b]))):
                end = min((block + 1) * size, len(mine), len(other))
                alike = mine[:end] == other[:end]
                if ids[a][block] == ids[b][block]:
                    assert alike
                elif (block + 1) * size <= min(len(mine), len(other)):
                    assert not alike


@given(st.integers(1, 40), st.integers(1, 6), st.floats(0, 100), st.integers(0, 5))
def test_turns_follow_one_another_and_stand_in_order_of_arrival(n, turns, think_time_s, seed):
    dice = np.random.default_rng(seed)
    sessions = sessions_of(np.ones(n, np.int64), np.ones(n, np.int64), turns, 0)
    starts = np.cumsum(dice.exponential(1.0, -(-n // turns)))
    order, arrival_s, before = in_order_of_arrival(sessions, starts, np.full(n, think_time_s))
    assert sorted(order) == list(range(n)) and (np.diff(arrival_s) >= 0).all()
    session, turn = sessions.session[order], sessions.turn[order]
    for i in range(n):
        if turn[i] == 0:
            assert before[i] == -1 and arrival_s[i] == starts[session[i]]
        else:
            assert before[i] < i
            assert (session[before[i]], turn[before[i]]) == (session[i], turn[i] - 1)


@given(st.integers(1, 60), st.integers(1, 9))
def test_prefixes_have_equal_parts(n, num_prefixes):
    counts = np.bincount(prefix_numbers(np.random.default_rng(0), n, num_prefixes), minlength=num_prefixes)
    assert counts.sum() == n and counts.max() - counts.min() <= 1


SESSIONS = SYNTHETIC | {
    "num_prompts": 20,
    "range_ratio": 0.2,
    "request_rate": 1.0,
    "num_turns": 4,
    "think_time_s": 30.0,
    "think_time_cv": 0.0,
}


def test_drawn_turns_hold_the_conversation_before_them():
    drawn = draw_loads(scenarios(SESSIONS | {"num_warmups": 0}))
    rows, waits = drawn.load_requests.to_pylist(), drawn.load_dependencies.to_pylist()
    alone = draw_loads(scenarios({**SESSIONS, "num_turns": None, "think_time_s": None, "think_time_cv": None}))
    assert alone.load_dependencies.num_rows == 0
    assert sorted(row["output_tokens"] for row in rows) == sorted(alone.load_requests["output_tokens"].to_pylist())
    assert len(rows) - len({wait["request_id"] for wait in waits}) == 5
    for wait in waits:
        row, before = rows[wait["request_id"]], rows[wait["after"]]
        assert wait["think_s"] == 30.0
        assert row["prompt_tokens"] > before["prompt_tokens"] + before["output_tokens"]
        assert row["arrival_s"] == pytest.approx(before["arrival_s"] + 30.0)
        whole = before["prompt_tokens"] // before["hash_block_tokens"]
        assert row["hash_ids"][:whole] == before["hash_ids"][:whole]
    limited = draw_loads(scenarios(SESSIONS | {"think_time_limit_s": 5.0})).load_dependencies
    assert set(limited["think_s"].to_pylist()) == {5.0}


def test_warmups_move_the_requests_that_turns_follow():
    closed = SESSIONS | {"request_rate": None, "max_concurrency": 2, "think_time_s": None, "think_time_cv": None}
    plain, warm = (
        draw_loads(scenarios(closed | more)).load_dependencies.to_pylist() for more in ({}, {"num_warmups": 3})
    )
    for one, other in zip(plain, warm, strict=True):
        assert (other["request_id"], other["after"]) == (one["request_id"] + 3, one["after"] + 3)
