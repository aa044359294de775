"""Prefix caching, one small world each, worked out by hand.

Every step takes 100 us. Blocks of 4 tokens; prompts say one hash a block unless a test says otherwise.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.serving.engine import packed_costs, replica
from kernelsight.serving.engine.served import Served
from tests.serving.engine.worlds import World, constant_world, run_loop, run_reference

PROMPT, DECODE, RUNNING, WAITING, UNITS = range(2, 7)


def shared_world(requests: list[tuple[float, int, int, str]], hash_tokens: int = 4, **limits: object) -> World:
    """Return a world of requests (arrival us, prompt, output, one letter a hash: it names itself and all before)."""
    world = constant_world([request[:3] for request in requests], **({"prefix_caching": True} | limits))
    names: dict[str, int] = {}
    hashes = [names.setdefault(t[: i + 1], len(names)) for *_, t in requests for i in range(len(t))]
    offsets = np.cumsum([0, *(len(text) for *_, text in requests)])
    shared = {"hashes": np.array(hashes, np.int64), "hash_offsets": offsets, "hash_tokens": hash_tokens}
    return world._replace(load=world.load._replace(**shared))


def serve(world: World) -> Served:
    """Run the loop; the reference must find the same hits and the same preemptions."""
    served, run = run_loop(world), run_reference(world)
    assert served.out.cached_tokens.tolist() == [request.hit_tokens for request in run.requests]
    assert served.out.preemptions.tolist() == [request.preemptions for request in run.requests]
    assert served.steps[:, UNITS].tolist() == [step.units for step in run.steps]
    return served


def run(world: World) -> Served:
    """Run the loop in this thread, where its errors can be caught."""
    return replica.serve(world.load, world.limits, world.host, packed_costs.pack(world.surface))


def hits(served: Served) -> list[int]:
    return served.out.cached_tokens.tolist()


def prompts(served: Served) -> list[int]:
    return served.steps[:, PROMPT].astype(int).tolist()


def test_a_hit() -> None:
    # the second prompt finds two blocks of the first, which has ended, and computes the other 4 of its 12 tokens
    served = serve(shared_world([(0, 12, 1, "abc"), (500, 12, 1, "abx")]))
    assert hits(served) == [0, 8]
    assert prompts(served) == [12, 4]
    # its own block and the two that it keeps
    assert served.steps[:, UNITS].tolist() == [3, 3]


def test_without_prefix_caching_nothing_is_found() -> None:
    served = serve(shared_world([(0, 12, 1, "abc"), (500, 12, 1, "abx")], prefix_caching=False))
    assert hits(served) == [0, 0]
    assert prompts(served) == [12, 12]


def test_a_partial_hit_counts_full_blocks_without_a_gap() -> None:
    # hashes of 8 tokens: the first prompt of 14 fills one hash, and of the second hash one block (tokens 8 to 12).
    # The second prompt goes on behind it: 12 cached. The third differs in its first hash: nothing.
    requests = [(0, 14, 1, "ab"), (500, 20, 1, "abc"), (900, 14, 1, "xb")]
    assert hits(serve(shared_world(requests, hash_tokens=8))) == [0, 12, 0]


def test_one_token_is_always_computed() -> None:
    # an identical prompt of three full blocks finds two; one token more, and it finds three
    served = serve(shared_world([(0, 12, 1, "abc"), (500, 12, 1, "abc"), (900, 13, 1, "abcd")]))
    assert hits(served) == [0, 8, 12]
    assert prompts(served) == [12, 4, 1]


def test_requests_of_one_step_share_blocks() -> None:
    # three identical prompts arrive together: 9 tokens, then one token each; 3 blocks, then one private block each more
    served = serve(shared_world([(0, 9, 1, "abc")] * 3))
    assert hits(served) == [0, 8, 8]
    assert prompts(served) == [11]
    assert served.steps[0, UNITS] == 3 + 1 + 1


def test_shared_blocks_make_room() -> None:
    # 4 blocks: alone each needs 3, together 4
    together = serve(shared_world([(0, 9, 1, "abc")] * 2, capacity_units=4))
    assert together.out.finish_us.tolist() == [100, 100]
    apart = serve(shared_world([(0, 9, 1, "abc")] * 2, capacity_units=4, prefix_caching=False))
    assert apart.out.finish_us.tolist() == [100, 200]


def test_a_second_copy_is_private() -> None:
    # 4 tokens a prompt and step: the second request hits block a, which the first computes in step 1, and computes b
    # in that step. In step 2 the first computes b as well, a copy of its own, and the second its last token.
    served = serve(shared_world([(0, 9, 1, "abc"), (0, 9, 1, "abc")], long_prefill_token_threshold=4))
    assert hits(served) == [0, 4]
    assert prompts(served) == [8, 5, 1]
    # a and b; a, two copies of b and the second's last block; a and b, which the first keeps, its copy, its last block
    assert served.steps[:, UNITS].tolist() == [2, 4, 4]


@pytest.mark.parametrize(("again", "found"), [("ab", 0), ("xy", 8)])
def test_the_least_recently_used_goes_first(again: str, found: int) -> None:
    # 7 blocks. "ab" and "xy" leave 3 each (one is private, for the last token), so 1 is blank; the 16 tokens of "p"
    # take it, and of the queue (private, b, a, private, y, x) the first three: "ab" is lost, "xy" stays.
    requests = [(0, 9, 1, "ab"), (500, 9, 1, "xy"), (900, 16, 1, "p"), (1500, 9, 1, again)]
    assert hits(serve(shared_world(requests, capacity_units=7)))[-1] == found


def test_a_hit_makes_blocks_recent() -> None:
    # As before, but "ab" is used again before "p" comes; its new private block takes the blank one. The queue is then
    # private, y, x, private (2 of "ab"), b, a: "p" takes the first four, "xy" is lost, "ab" stays.
    requests = [(0, 9, 1, "ab"), (500, 9, 1, "xy"), (700, 9, 1, "ab"), (900, 16, 1, "p"), (1500, 9, 1, "")]
    for again, found in (("ab", 8), ("xy", 0)):
        requests[-1] = (1500, 9, 1, again)
        assert hits(serve(shared_world(requests, capacity_units=7)))[-1] == found


def test_the_tail_of_a_prefix_goes_first() -> None:
    # 5 blocks: "abcd" leaves 4 and a private one; three blocks for "p" take the private one, d and c
    requests = [(0, 17, 1, "abcd"), (500, 12, 1, "p"), (900, 17, 1, "abcd")]
    assert hits(serve(shared_world(requests, capacity_units=5))) == [0, 0, 8]


def test_the_tail_of_one_hash_goes_first() -> None:
    # the same where one hash stands for all four blocks
    requests = [(0, 17, 1, "a"), (500, 12, 1, "p"), (900, 17, 1, "a")]
    assert hits(serve(shared_world(requests, hash_tokens=16, capacity_units=5))) == [0, 0, 8]


def test_a_block_in_use_is_not_lost() -> None:
    # "ab" runs (3 blocks of 6) while the crowd of one after another takes and frees the other three
    crowd = [(200.0 + 300 * i, 9, 1, f"{i}z") for i in range(5)]
    served = serve(shared_world([(0, 9, 3, "ab"), (100, 9, 12, "ab"), *crowd, (1150, 9, 1, "ab")], capacity_units=10))
    assert hits(served) == [0, 8, 0, 0, 0, 0, 0, 8]


def test_a_preempted_request_comes_back_to_its_own_prefix() -> None:
    # 5 blocks. The prompts take two each (8 and 7 tokens), A's 9th token in step 2 the fifth. In step 3 B's 9th token
    # needs one: B, the newest, goes with 7 + 2 known tokens. Its private block waits before x, and A's 13th token takes
    # that one in step 6. A ends with step 9; in step 10 B finds x and computes 5 tokens, not 9.
    served = serve(shared_world([(0, 8, 9, "ab"), (0, 7, 9, "xy")], capacity_units=5))
    assert served.out.preemptions.tolist() == [0, 1]
    assert hits(served) == [0, 0]
    assert prompts(served)[:10] == [15, 0, 0, 0, 0, 0, 0, 0, 0, 9 - 4]


def test_what_it_cannot_use_is_not_kept() -> None:
    # Hashes of two blocks, 2 blocks in all. The same prompt of 8 tokens again: it uses the first block and computes the
    # second itself. If it kept the cached second block too, it would need 3 blocks and wait for ever.
    served = serve(shared_world([(0, 8, 1, "a"), (500, 8, 1, "a")], hash_tokens=8, capacity_units=2))
    assert hits(served) == [0, 4]
    assert served.out.finish_us.tolist() == [100, 600]


def test_the_last_request_gives_up_what_others_left() -> None:
    # Hashes of two blocks, 5 blocks in all, which A needs for its 17 + 1 tokens. B goes on behind A's "a", whose second
    # block it fills: A keeps it. When B has ended and A runs short, that block goes: A is not preempted.
    served = serve(shared_world([(0, 4, 15, "a"), (100, 8, 1, "a")], hash_tokens=8, capacity_units=5))
    assert hits(served) == [0, 4]
    assert served.out.preemptions.tolist() == [0, 0]
    assert served.steps[:, UNITS].tolist() == [1, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5]


def test_requests_that_end_together_leave_in_order_of_admission() -> None:
    # A (decoding) and B (its only token comes with its prompt) end in step 2. The queue is then A's private block and
    # a, B's private block and x: "p" takes 2 blocks, A's. Where B left first, x would be lost.
    requests = [(0, 5, 2, "a"), (50, 5, 1, "x"), (500, 8, 1, "p"), (900, 5, 1, "x"), (1500, 5, 1, "a")]
    assert hits(serve(shared_world(requests, capacity_units=4))) == [0, 0, 0, 4, 0]


def test_windows_are_a_requests_own_and_the_rest_is_shared() -> None:
    # One unit a block of layers without a window, 2 a block of those with one, which hold 2 blocks at most. The second
    # prompt finds two blocks of the first: it takes one more, and 4 units for its own windows.
    windows = {"window_units": 2, "window_blocks": 2}
    served = serve(shared_world([(0, 12, 1, "abc"), (500, 12, 1, "abx")], **windows))
    assert hits(served) == [0, 8]
    assert served.steps[:, UNITS].tolist() == [3 + 4, 3 + 4]
    # both at once: 3 + 1 blocks, and windows of each
    served = serve(shared_world([(0, 12, 1, "abc"), (0, 12, 1, "abx")], **windows))
    assert served.steps[:, UNITS].tolist() == [4 + 2 * 4]


def test_layers_that_cannot_share_are_refused() -> None:
    for limits in ({"sequence_units": 1}, {"full_units": 0, "window_units": 1, "window_blocks": 2}):
        with pytest.raises(ValueError, match="share nothing by prefix"):
            run(shared_world([(0, 8, 1, "ab")], **limits))
    with pytest.raises(ValueError, match="no whole number of blocks"):
        run(shared_world([(0, 8, 1, "ab")], hash_tokens=6))


def test_by_priority_too_a_refused_prompt_is_tried_again_when_its_cached_blocks_are_lost() -> None:
    # prefill first, attention windows of 4 blocks beside the full ones, chunks of 3. The last request was preempted; at
    # 600 it is refused, for the first chunk behind its 4 cached tokens needs more than is free. The decode step from
    # there takes blocks that it had cached, and at 700 its prompt from the beginning, a chunk of 3, fits.
    lengths = [(1, 1, "a"), (1, 5, "a"), (5, 1, "bcd"), (1, 1, "a"), (1, 1, "a"), (1, 3, "a"), (7, 7, "bcef")]
    layers = {"block_size": 1, "full_units": 1, "window_units": 2, "window_blocks": 4, "capacity_units": 21}
    steps = {"max_num_seqs": 3, "max_num_batched_tokens": 7, "long_prefill_token_threshold": 3, "chunked": False}
    order = {"prefill_first": True, "by_priority": True, "max_model_len": 80}
    requests = [(100.0 * (number > 0), *one) for number, one in enumerate(lengths)]
    served = serve(shared_world(requests, 2, **layers, **steps, **order))
    assert served.out.preemptions[-1] == 2
    assert served.steps[7, [PROMPT, DECODE]].tolist() == [3, 0]
