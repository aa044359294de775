"""Policies of single engines, one small world each, worked out by hand.

Every step takes 100 us; requests are (arrival us, prompt, output[, priority]); blocks of 4 tokens, a budget of 64
tokens, and at most 8 requests unless a test says otherwise.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given

from kernelsight.serving.engine import records
from kernelsight.serving.engine.served import Served
from tests.conftest import random_worlds
from tests.serving.engine.test_pipeline import run_pipeline, with_parts
from tests.serving.engine.test_pipeline import run_reference as run_reference_pipeline
from tests.serving.engine.worlds import World, constant_world, run_loop, run_reference, worlds

PROMPT, DECODE, RUNNING, WAITING, UNITS = range(2, 7)
STATIC = {"static": True, "prefill_first": True, "capacity_policy": records.GUARANTEED_NO_EVICT}


def serve(requests: list[tuple], **limits: object) -> Served:
    """Run the loop; the reference must admit and preempt the same."""
    world = constant_world([request[:3] for request in requests], **limits)
    priority = np.array([rank for *_, rank in requests if len(requests[0]) == 4], np.int64)
    world = world._replace(load=world.load._replace(priority=priority))
    served, run = run_loop(world), run_reference(world)
    assert served.out.scheduled_us.tolist() == [request.scheduled_us for request in run.requests]
    assert served.out.preemptions.tolist() == [request.preemptions for request in run.requests]
    return served


def batches(served: Served) -> list[tuple[int, int]]:
    """(prompt tokens, decode tokens) of each step."""
    return [(int(row[PROMPT]), int(row[DECODE])) for row in served.steps]


def finish(served: Served) -> list[float]:
    return served.out.finish_us.tolist()


def scheduled(served: Served) -> list[float]:
    return served.out.scheduled_us.tolist()


# ---------------------------------------------------------------- static batches


def test_a_static_batch_decodes_to_its_end_before_the_next() -> None:
    # A and B are the first batch; C, which comes in its first step, waits until B has its fourth token
    served = serve([(0, 4, 2), (0, 4, 4), (50, 4, 1)], **STATIC)
    assert batches(served) == [(8, 0), (0, 2), (0, 1), (0, 1), (4, 0)]
    assert finish(served) == [200, 400, 500]


def test_a_static_batch_is_prefilled_before_it_decodes() -> None:
    # budget 8: A's prompt and 2 tokens of B's, then the rest of B's; A's second token comes after that
    served = serve([(0, 6, 2), (0, 6, 1)], max_num_batched_tokens=8, **STATIC)
    assert batches(served) == [(8, 0), (4, 0), (0, 1)]
    assert finish(served) == [300, 200]


def test_a_static_batch_is_those_that_waited_when_the_last_one_ended() -> None:
    # C comes while the first batch is still being prefilled: it fits the second step, but is in the next batch
    served = serve([(0, 6, 1), (0, 6, 1), (50, 1, 1)], max_num_batched_tokens=8, **STATIC)
    assert batches(served) == [(8, 0), (4, 0), (1, 0)]


def test_a_static_batch_has_max_num_seqs_requests_and_blocks_for_whole_answers() -> None:
    # two at a time: C does not take the place of A, which ends with its prompt
    assert scheduled(serve([(0, 4, 1), (0, 4, 3), (0, 4, 1)], max_num_seqs=2, **STATIC)) == [0, 0, 300]
    # 5 blocks: A needs 3 for its 11 tokens, B 3 for its 9: one after the other
    assert scheduled(serve([(0, 8, 4), (0, 7, 3)], capacity_units=5, **STATIC)) == [0, 400]


# ---------------------------------------------------------------- room for an admission


def test_a_prompt_that_fits_in_part_waits_where_all_of_it_has_to_fit() -> None:
    # 7 blocks of 4 tokens, 9 tokens a step. A takes 2 blocks and grows to 5 (8 + 12 - 1 tokens); B's 24 tokens take 6.
    requests = [(0, 8, 12), (50, 24, 1)]
    limits = {"capacity_units": 7, "max_num_batched_tokens": 9}
    # the first chunk fits: B is admitted in step 2, outgrows the cache, and is preempted and computed again
    over = serve(requests, **limits)
    assert scheduled(over) == [0, 100] and over.totals.preemptions >= 1
    # all of B (6 blocks) fits when A is done
    whole = serve(requests, **limits, whole_prompts=True)
    assert whole.totals.preemptions == 0 and scheduled(whole) == [0, 1200]


def test_guaranteed_no_evict_reserves_blocks_for_the_whole_answer() -> None:
    # 4 blocks. A will have 8 + 4 - 1 tokens in the cache (3 blocks), B 7 + 3 - 1 (3 blocks): B waits for A's end,
    # although two blocks are free in step 1. Nothing is ever preempted.
    served = serve([(0, 8, 4), (0, 7, 3)], capacity_units=4, capacity_policy=records.GUARANTEED_NO_EVICT)
    assert batches(served) == [(8, 0), (0, 1), (0, 1), (0, 1), (7, 0), (0, 1), (0, 1)]
    assert served.steps[:, UNITS].tolist() == [2, 3, 3, 3, 2, 2, 3]
    assert served.totals.preemptions == 0


def test_new_token_ratio_reserves_a_share_of_running_answers() -> None:
    # 9 blocks. A needs 6 to its end (4 + 20 - 1 tokens), B 4 (4 + 13 - 1). When B is seen at 200, A has 6 known tokens
    # and 18 to go; after one decode step the ratio is 0.7 - 0.7 x 0.86 / 600 = 0.699: A is expected to reach 6 + 12
    # tokens, 5 blocks, so that 4 are left for B.
    requests = [(0, 4, 20), (150, 4, 13)]
    capacity = {"capacity_units": 9}
    ratio = {"capacity_policy": records.NEW_TOKEN_RATIO}
    assert scheduled(serve(requests, **capacity, **ratio)) == [0, 200]
    # a conservative scheduler expects all of A's answer, as one that guarantees: B waits until A ends
    assert scheduled(serve(requests, **capacity, **ratio, schedule_conservativeness=1.5)) == [0, 2000]
    assert scheduled(serve(requests, **capacity, capacity_policy=records.GUARANTEED_NO_EVICT)) == [0, 2000]


def test_the_share_of_answers_falls_with_the_decode_steps() -> None:
    # 251 blocks, A needs 249 to its end (4 + 990 - 1 tokens), B 26 (4 + 100 - 1). At 70,100, A has 705 known tokens and
    # 289 to go. The ratio has fallen to 0.14 x 0.7 in 600 steps: A is expected to reach 705 + 28 tokens, 184 blocks; at
    # 0.7 it would be 705 + 202, 227 blocks, and B would wait until A ends at 99,000.
    served = serve([(0, 4, 990), (70_050, 4, 100)], capacity_units=251, capacity_policy=records.NEW_TOKEN_RATIO)
    assert scheduled(served) == [0, 70_100]


def test_a_batch_that_was_full_is_not_tried_again_before_it_is_smaller() -> None:
    # 300 blocks, B needs 143 for its 4 + 569 - 1 tokens. At 200 A has 3 known tokens and is to give 0.699 x 898
    # more, 158 blocks in all: 142 are left. At 500 it would be 6 + 0.696 x 895 tokens, 157 blocks, and B would fit; but
    # nobody looks before A has ended, after 900 steps.
    requests = [(0, 1, 900), (150, 4, 569)]
    assert scheduled(serve(requests, capacity_units=300, capacity_policy=records.NEW_TOKEN_RATIO)) == [0, 90_000]


# ---------------------------------------------------------------- prompts held back, requests not looked for


def test_batch_wait_holds_a_prompt_for_so_many_steps() -> None:
    # B is seen at 200: 1 decode and 8 prompt tokens are less than 20, so it waits 3 steps
    served = serve([(0, 4, 10), (150, 8, 1)], batch_wait_timeout_iters=3, batch_wait_tokens=20.0)
    assert batches(served)[:6] == [(4, 0), (0, 1), (0, 1), (0, 1), (0, 1), (8, 1)]
    assert scheduled(served) == [0, 500]


def test_batch_wait_ends_when_enough_tokens_wait() -> None:
    # C is seen at 300: 1 + 8 + 16 tokens are 20 and more
    served = serve([(0, 4, 10), (150, 8, 1), (250, 16, 1)], batch_wait_timeout_iters=9, batch_wait_tokens=20.0)
    assert batches(served)[:4] == [(4, 0), (0, 1), (0, 1), (24, 1)]
    assert scheduled(served) == [0, 300, 300]


def test_nothing_waits_beside_nothing() -> None:
    # no request decodes when B comes: it starts at once
    assert scheduled(serve([(0, 4, 1), (150, 8, 1)], batch_wait_timeout_iters=9, batch_wait_tokens=20.0)) == [0, 150]


def test_a_look_for_new_requests_lasts_so_long() -> None:
    # A comes at 0 and is waited with for 300: B, which comes at 250, starts with it. Then the host looks for 300 beside
    # each step: C, which comes at 550, is seen by the look that begins with the step at 300, and starts at 600
    wait = {"asynchronous": True, "batch_wait_us": 300.0, "host": {"base_us": 300.0}}
    served = serve([(0, 4, 3), (250, 4, 1), (550, 4, 1)], **wait)
    assert served.steps[:, :4].astype(int).tolist() == [[300, 600, 8, 0], [600, 900, 4, 1], [900, 1200, 0, 1]]
    # without, the step that begins at 100 was prepared at 0: B starts when the next one but one begins
    assert scheduled(serve([(0, 4, 3), (50, 4, 1)], asynchronous=True)) == [0, 200]


def test_a_look_beside_nothing_is_forgotten() -> None:
    # Stages of 50 us a token, the first one 700 at least. A (6 tokens, 4 a batch) is waited with until 700; its batches
    # come back at 1600 and 2200. The look that begins at 1600 would last until 2300, but from 2200 on nothing runs: B,
    # which comes at 2250, is waited with for 700 again.
    def scheduled_by(requests: list[tuple], request_us: float = 0.0) -> list[float]:
        host = {"base_us": 700.0, "request_us": request_us}
        limits = {"asynchronous": True, "batch_wait_us": 700.0, "max_num_batched_tokens": 4}
        world = constant_world(requests, host=host, **limits)
        token_us = 100.0 * np.arange(5)
        world = with_parts(world._replace(surface=world.surface._replace(token_us=token_us)), 0.0, 0.0)
        served, (asked, _) = run_pipeline(world, (1, 1)), run_reference_pipeline(world, (1, 1))
        assert scheduled(served) == [request.scheduled_us for request in asked]
        return scheduled(served)

    assert scheduled_by([(0, 6, 1), (2250, 4, 1)]) == [700, 2950]
    # the same where it was sent before that, and is in the front end until 2250
    assert scheduled_by([(-150, 6, 1), (2100, 4, 1)], 150.0) == [700, 2950]
    # who has come by 2200 is seen
    assert scheduled_by([(0, 6, 1), (2190, 4, 1)]) == [700, 2200]


# ---------------------------------------------------------------- who is preempted


def test_who_has_generated_the_fewest_tokens_is_preempted_and_goes_last() -> None:
    # 6 blocks, prefill first. A (4 + 8) and B (4 + 8) have two each when C (8 + 4) is admitted at 200 with the others.
    # At 300 A and B have 6 known tokens, C 9, and C needs a third block: C has 1 generated token, A and B 2, and goes.
    # D has come, is before C in the queue, and needs 4 blocks: it starts when A and B have ended, and C after it.
    limits = {"capacity_units": 6, "prefill_first": True, "fewest_generated": True}
    served = serve([(0, 4, 8), (0, 4, 8), (150, 8, 4), (250, 16, 1)], **limits)
    assert served.out.preemptions.tolist() == [0, 0, 1, 0]
    assert scheduled(served) == [0, 0, 200, 900]
    assert finish(served) == [900, 900, 1300, 1000]
    # of equal ones the longest prompt: A, though B is newer
    served = serve([(0, 8, 4), (0, 7, 4)], capacity_units=4, fewest_generated=True)
    assert served.out.preemptions.tolist() == [1, 0]
    assert serve([(0, 8, 4), (0, 7, 4)], capacity_units=4).out.preemptions.tolist() == [0, 1]


# ---------------------------------------------------------------- requests that are looked for now and then


def test_new_requests_are_looked_for_every_so_many_decode_steps() -> None:
    # looked at 100, because the step before had prompts; then after three decode steps, at 400
    requests = [(0, 4, 10), (150, 4, 1)]
    assert scheduled(serve(requests, scheduler_recv_interval=3)) == [0, 400]
    assert scheduled(serve(requests)) == [0, 200]
    # an engine at rest looks all the time
    assert scheduled(serve([(0, 4, 1), (150, 4, 1)], scheduler_recv_interval=3)) == [0, 150]


def test_prompts_that_are_computed_in_part_at_once() -> None:
    # chunks of 4 at most: A 4 4 2. With one prompt in part, B starts when A's last chunk is computed: 4 2
    requests = [(0, 10, 1), (0, 6, 1)]
    served = serve(requests, long_prefill_token_threshold=4, max_num_partial_prefills=1)
    assert batches(served) == [(4, 0), (4, 0), (6, 0), (2, 0)]
    served = serve(requests, long_prefill_token_threshold=4, max_num_partial_prefills=2)
    assert batches(served) == [(8, 0), (6, 0), (2, 0)]


def test_a_short_prompt_passes_a_long_one_that_waits_for_another() -> None:
    # prompts of more than 4 tokens are long, and one of them may be under way with more than 4 tokens to go: C passes B
    # in step 1, and B starts with A's last 4 tokens
    requests = [(0, 12, 1), (0, 12, 1), (0, 4, 1)]
    served = serve(requests, long_prefill_token_threshold=4, max_long_partial_prefills=1)
    assert batches(served) == [(8, 0), (4, 0), (8, 0), (4, 0), (4, 0)]
    assert scheduled(served) == [0, 200, 0]
    assert scheduled(serve(requests, long_prefill_token_threshold=4)) == [0, 0, 0]


# ---------------------------------------------------------------- priority


def test_the_queue_goes_by_priority_then_by_arrival() -> None:
    # one at a time: when A ends at 300, C and D (priority 0) go before B (priority 1)
    requests = [(0, 4, 3, 0), (10, 4, 1, 1), (20, 4, 1, 0), (30, 4, 1, 0)]
    assert scheduled(serve(requests, max_num_seqs=1, by_priority=True)) == [0, 500, 300, 400]
    assert scheduled(serve(requests, max_num_seqs=1)) == [0, 300, 400, 500]


def test_the_last_in_priority_is_preempted_even_if_it_needs_the_block_itself() -> None:
    # 4 blocks, two each in step 1. In step 2 A needs a third; A is the last in priority, so that A itself goes, and B
    # has its token. B ends at 300; A's 8 + 1 known tokens are recomputed then.
    served = serve([(0, 8, 4, 1), (0, 7, 3, 0)], capacity_units=4, by_priority=True)
    assert batches(served) == [(15, 0), (0, 1), (0, 1), (9, 0), (0, 1), (0, 1)]
    assert served.out.preemptions.tolist() == [1, 0]
    assert finish(served) == [600, 300]


def test_a_victim_gives_back_the_tokens_that_it_has_in_the_step() -> None:
    # 4 blocks, two each in step 1. In step 2 A has its token, which fits its second block, before B needs a third: A
    # goes, and the step has one decode
    served = serve([(0, 7, 2, 1), (0, 8, 3, 0)], capacity_units=4, by_priority=True)
    assert batches(served) == [(15, 0), (0, 1), (0, 1), (8, 0)]
    assert finish(served) == [400, 300]


def test_a_request_that_comes_later_may_be_the_next() -> None:
    # 5 blocks, A has 3 of them from step 2 on. B needs 3 and waits for A's end at 1000; C, which comes at 250, is
    # before B in priority and needs one
    requests = [(0, 8, 10, 0), (10, 12, 1, 1), (250, 4, 1, 0)]
    assert scheduled(serve(requests, capacity_units=5, by_priority=True)) == [0, 1000, 300]
    assert scheduled(serve(requests, capacity_units=5)) == [0, 1000, 1000]


# ---------------------------------------------------------------- on random worlds


@random_worlds(150)
@given(world=worlds())
def test_guaranteed_no_evict_never_preempts_and_static_batches_do_not_overlap(world: World) -> None:
    limits = world.limits._replace(capacity_policy=records.GUARANTEED_NO_EVICT)
    assert run_loop(world._replace(limits=limits)).totals.preemptions == 0
    served = run_loop(world._replace(limits=world.limits._replace(**STATIC)))
    done = served.out.status == records.FINISHED
    first, last = served.out.scheduled_us[done], served.out.finish_us[done]
    ends = [last[first <= moment].max() for moment in first]
    # whoever is admitted later belongs to the same batch, which had not ended and decoded nothing, or to one after it
    for moment, end in zip(first, ends, strict=True):
        decoded = served.steps[(served.steps[:, DECODE] > 0) & (served.steps[:, 0] < end), 0]
        later = first[(first > moment) & (first < end - 1e-6)]
        assert all(not ((decoded >= moment) & (decoded < other)).any() for other in later)
