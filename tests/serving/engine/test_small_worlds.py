"""The scheduler's rules, one small world each, worked out by hand.

Every step takes 100 us on the GPU unless a test says otherwise; requests are (arrival us, prompt, output). A prompt
that is computed whole in one step gives its first token at the end of that step; every further token takes one step.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.serving.costs.cuda_graphs import padded_tokens
from kernelsight.serving.engine import records
from kernelsight.serving.engine.served import Served
from tests.serving.engine.worlds import World, constant_world, run_loop, run_reference

START, END, PROMPT, DECODE, RUNNING, WAITING, UNITS, HOST, FOUND, LOOKED_UP, PREEMPTED = range(11)


def batches(served: Served) -> list[tuple[int, int]]:
    """(prompt tokens, decode tokens) of each step."""
    return [(int(row[PROMPT]), int(row[DECODE])) for row in served.steps]


def column(served: Served, position: int) -> list[float]:
    return served.steps[:, position].tolist()


def finish(served: Served) -> list[float]:
    return served.out.finish_us.tolist()


def first_token(served: Served) -> list[float]:
    return served.out.first_token_us.tolist()


def test_a_request_alone() -> None:
    # one step for the prompt (first token at 100), two more for the tokens 2 and 3
    served = run_loop(constant_world([(0, 10, 3)]))
    assert batches(served) == [(10, 0), (0, 1), (0, 1)]
    assert first_token(served) == [100]
    assert finish(served) == [300]
    # two gaps of 100 us
    assert served.totals.gap_sum_us == 200
    assert served.histogram.sum() == 2


def test_one_output_token_ends_with_the_prompt() -> None:
    served = run_loop(constant_world([(40, 1, 1)]))
    assert finish(served) == first_token(served) == [140]
    assert served.histogram.sum() == 0
    # the clock starts at the first arrival: no idle time before it
    assert served.totals.idle_us == 0
    assert served.totals.first_us == 40


def test_a_long_prompt_is_cut_by_the_budget_and_decodes_go_first() -> None:
    # budget 8. Step 1: A's prompt of 4, and 4 of B's 15. Then A's decode takes one token, B the other 7, twice:
    # 4 + 7 + 4 = 15. Step 3 ends B's prompt; A is done with its third token.
    served = run_loop(constant_world([(0, 4, 3), (0, 15, 1)], max_num_batched_tokens=8))
    assert batches(served) == [(8, 0), (7, 1), (4, 1)]
    assert finish(served) == [300, 300]
    assert first_token(served) == [100, 300]


def test_the_threshold_caps_each_chunk() -> None:
    # at most 4 tokens of one prompt a step: A 4 4 2, B 4 2
    served = run_loop(constant_world([(0, 10, 1), (0, 6, 1)], long_prefill_token_threshold=4))
    assert batches(served) == [(8, 0), (6, 0), (2, 0)]
    assert finish(served) == [300, 200]


def test_without_chunking_what_exceeds_the_budget_after_a_preemption_is_cut_in_an_empty_step() -> None:
    # 6 blocks of 4, budget 8: in step 7 A needs its fourth block, so that B goes, with 7 + 5 known tokens. These exceed
    # the budget: B waits while A decodes, and is computed as 8 + 4 when nothing else is left.
    requests = [(0, 7, 8), (0, 7, 6)]
    served = run_loop(constant_world(requests, max_num_batched_tokens=8, chunked=False, capacity_units=6))
    assert batches(served) == [(7, 0), (7, 1), *[(0, 2)] * 4, *[(0, 1)] * 2, (8, 0), (4, 0)]
    assert finish(served) == [800, 1000]


def test_without_chunking_a_prompt_waits_for_a_whole_budget() -> None:
    # budget 10: B's 8 tokens do not fit beside A's 6, but fit beside A's one decode token
    requests = [(0, 6, 3), (0, 8, 1)]
    served = run_loop(constant_world(requests, max_num_batched_tokens=10, chunked=False))
    assert batches(served) == [(6, 0), (8, 1), (0, 1)]
    assert served.out.scheduled_us.tolist() == [0, 100]
    assert finish(served) == [300, 200]


def test_prefill_first_holds_decodes_back() -> None:
    # B is visible at 100: its prompt has step 2 for itself, A's second token comes in step 3, a gap of 200 us
    served = run_loop(constant_world([(0, 4, 3), (50, 4, 2)], prefill_first=True))
    assert batches(served) == [(4, 0), (4, 0), (0, 2), (0, 1)]
    assert first_token(served) == [100, 200]
    assert finish(served) == [400, 300]


def test_the_cap_of_running_requests() -> None:
    # two may run: C, which came with them, is admitted when A ends at 200
    served = run_loop(constant_world([(0, 4, 2), (0, 4, 4), (0, 4, 1)], max_num_seqs=2))
    assert batches(served) == [(8, 0), (0, 2), (4, 1), (0, 1)]
    assert column(served, WAITING) == [1, 1, 0, 0]
    assert served.out.scheduled_us.tolist() == [0, 0, 200]
    assert finish(served) == [200, 400, 300]


def test_the_newest_request_is_preempted_and_recomputed_whole() -> None:
    # Blocks of 4 tokens, 4 of them. A (8 tokens) and B (7) take two each in step 1; in step 2 both compute their first
    # generated token: A needs a third block for token 9, none is free, so B goes and frees two.
    # A ends at 400 with 8 + 3 tokens in the cache (3 blocks). B's 7 + 1 known tokens need 2 blocks, 1 is free: B waits
    # until then, is recomputed in step 5 (8 tokens), and with that step's token has its second, at 500. Third: 600.
    served = run_loop(constant_world([(0, 8, 4), (0, 7, 3)], capacity_units=4))
    assert batches(served) == [(15, 0), (0, 1), (0, 1), (0, 1), (8, 0), (0, 1)]
    assert served.out.preemptions.tolist() == [0, 1]
    assert column(served, UNITS) == [4, 3, 3, 3, 2, 3]
    assert first_token(served) == [100, 100]
    assert finish(served) == [400, 600]
    # B waits again from 100 to 400, and is recomputed until its next token at 500
    assert served.out.requeued_us.tolist() == [0, 300]
    assert served.out.recomputed_us.tolist() == [0, 100]
    # step 2 preempted one
    assert column(served, PREEMPTED) == [0, 1, 0, 0, 0, 0]
    # both prompts were looked up in step 1; what is recomputed is not looked up again
    assert column(served, LOOKED_UP) == [15, 0, 0, 0, 0, 0]
    # prompt tokens computed: 8 + 7, and 8 again
    assert served.totals.prompt_tokens == 23


def test_nothing_is_admitted_in_a_step_that_preempted() -> None:
    # As above with C (1 token, one block) behind: when B is preempted in step 2, one block of B's is free, but C is not
    # admitted, and afterwards B is at the front of the queue and C behind it. Step 5 takes B (8) and C (1).
    served = run_loop(constant_world([(0, 8, 4), (0, 7, 3), (50, 1, 1)], capacity_units=4))
    assert batches(served)[:5] == [(15, 0), (0, 1), (0, 1), (0, 1), (9, 0)]
    assert column(served, WAITING)[:5] == [0, 2, 2, 2, 0]
    assert finish(served) == [400, 600, 500]


def test_what_can_never_be_served_is_turned_away() -> None:
    # blocks of 4, 3 of them: 12 tokens in the cache at most; the last token of an answer is never put there
    requests = [(0, 12, 1), (0, 12, 2), (0, 15, 6), (0, 2, 1)]
    served = run_loop(constant_world(requests, capacity_units=3, max_model_len=20))
    assert served.out.status.tolist() == [records.FINISHED, records.NO_MEMORY, records.TOO_LONG, records.FINISHED]
    # the first fills the memory: the last is admitted when it has ended
    assert finish(served) == [100, -1, -1, 200]
    # without chunking a prompt that is larger than the budget can never be taken
    served = run_loop(constant_world([(0, 65, 1), (0, 64, 1)], chunked=False))
    assert served.out.status.tolist() == [records.TOO_LONG, records.FINISHED]


def test_asynchronous_scheduling_sees_an_arrival_one_step_late() -> None:
    # B arrives during step 2 (100 to 200). Step 3 was prepared when step 2 began, step 4 when step 3 began: B is in
    # step 4. Without asynchronous scheduling it is in step 3.
    requests = [(0, 4, 5), (150, 4, 1)]
    assert batches(run_loop(constant_world(requests))) == [(4, 0), (0, 1), (4, 1), (0, 1), (0, 1)]
    served = run_loop(constant_world(requests, asynchronous=True))
    assert batches(served) == [(4, 0), (0, 1), (0, 1), (4, 1), (0, 1)]
    assert first_token(served) == [100, 400]


def test_a_closed_loop_sends_the_next_request_when_one_ends() -> None:
    # one in flight: all three arrive at 0, each is sent when the one before has ended. Each waits 30 us at the front
    # end before the engine sees it (30 idle), then takes one step for the prompt and one for the second token.
    served = run_loop(constant_world([(0, 4, 2)] * 3, host={"request_us": 30.0}, max_concurrency=1))
    assert served.out.sent_us.tolist() == [0, 230, 460]
    assert served.out.scheduled_us.tolist() == [30, 260, 490]
    assert finish(served) == [230, 460, 690]
    assert served.totals.idle_us == 90


def test_users_join_a_closed_loop_one_after_another() -> None:
    # three users, 250 us apart: the first one alone sends its second and third request, then the second one joins
    # while the third request runs; the third user joins at 500, when the first two wait for nothing
    world = constant_world([(0, 4, 1)] * 3 + [(0, 4, 4), (0, 4, 1), (0, 4, 1)], max_concurrency=3)
    served = run_loop(world._replace(load=world.load._replace(user_us=250.0)))
    assert served.out.sent_us.tolist() == [0, 100, 200, 250, 300, 400]
    assert run_reference(world._replace(load=world.load._replace(user_us=250.0))).requests[4].sent_us == 300


def test_the_front_end_hands_requests_on_in_their_order() -> None:
    world = constant_world([(0, 40, 1), (0, 4, 1), (500, 4, 1)], host={"request_us": 30.0, "per_prompt_token_us": 5.0})
    served = run_loop(world)
    # 40 tokens take 200 us, and hold up the next prompt; the last one comes alone
    assert served.out.scheduled_us.tolist() == [230.0, 230.0, 550.0]


def test_a_free_slot_of_a_closed_loop_sends_at_the_arrival() -> None:
    # two slots: B goes out at its arrival in the middle of A's step, C finds both taken and waits for A's end at 200
    served = run_loop(constant_world([(0, 4, 2), (50, 4, 2), (60, 4, 1)], max_concurrency=2))
    assert served.out.sent_us.tolist() == [0, 50, 200]
    assert finish(served) == [200, 300, 300]


def test_the_host_sets_the_pace_where_it_is_slower_than_the_gpu() -> None:
    # 5 exposed + 120 + 10 a request, beside 100 us on the GPU: hidden behind the GPU, the host of 130 us sets the pace
    # (135 us a step, 35 of them not hidden); not overlapped, they add up to 5 + 130 + 100 = 235 us
    host = {"exposed_us": 5.0, "base_us": 120.0, "per_request_us": 10.0}
    served = run_loop(constant_world([(0, 4, 2)], host=host | {"overlapped": True}))
    assert finish(served) == [270]
    assert column(served, HOST) == [35, 35]
    served = run_loop(constant_world([(0, 4, 2)], host=host | {"overlapped": False}))
    assert finish(served) == [470]
    assert column(served, HOST) == [135, 135]


def test_launches_run_beside_the_kernels_where_no_graph_serves() -> None:
    # graphs up to 4 tokens: the prompt of 5 is launched kernel by kernel, 150 us of the host beside 100 us of the GPU
    host = {"eager_launches_us": 150.0, "graph_max_tokens": 4, "overlapped": False}
    served = run_loop(constant_world([(0, 5, 2)], host=host))
    assert finish(served) == [250]


def test_the_replay_of_a_graph_launches_its_kernels_for_less() -> None:
    # the prompt of 5 is launched kernel by kernel (150 us), the decode step replays a graph (130 us)
    host = {"eager_launches_us": 150.0, "captured_launches_us": 130.0, "graph_max_tokens": 4}
    served = run_loop(constant_world([(0, 5, 2)], host=host))
    assert finish(served) == [280]
    assert column(served, HOST) == [50, 30]


def test_steps_with_prompts_replay_pieces_of_graphs_or_none() -> None:
    # 100 us of the GPU; a decode step's graph is launched in 0 us, pieces of one around attention in 120 us
    host = {"eager_launches_us": 150.0, "piecewise_launches_us": 120.0, "graph_max_tokens": 8}
    for largest, prompt_us in ((8, 120), (4, 150), (0, 150)):
        served = run_loop(constant_world([(0, 5, 2)], host=host | {"prompt_graph_max_tokens": largest}))
        assert finish(served) == [prompt_us + 100]


def test_prompts_that_no_graph_holds_are_not_padded() -> None:
    # a prompt of 3 tokens, then decodes of one: 30 us, and 40 with a graph of 4 tokens
    world = constant_world([(0, 3, 2)], step_us=0.0)
    surface = world.surface._replace(token_us=10.0 * np.arange(65), padded_tokens=padded_tokens(64, 4))
    whole = surface._replace(padded_prompt_tokens=np.arange(65))
    assert [first_token(run_loop(world._replace(surface=each))) for each in (surface, whole)] == [[40.0], [30.0]]


def test_a_batch_is_padded_to_the_captured_graph_that_serves_it() -> None:
    # 10 us a token, graphs of 1, 2 and 4 tokens: prompts of 5 (beyond the graphs) take 15 tokens, three decodes cost
    # as much as four, the two that are left two, the last one
    world = constant_world([(0, 5, 2), (0, 5, 3), (0, 5, 4)])
    surface = world.surface._replace(token_us=10.0 * np.arange(65), padded_tokens=padded_tokens(64, 4))
    served = run_loop(world._replace(surface=surface))
    assert batches(served) == [(15, 0), (0, 3), (0, 2), (0, 1)]
    assert [end - start for start, end in served.steps[:, [START, END]]] == [150, 40, 20, 10]
    # what is paid is the graph: one step at four tokens, none at three
    decode = served.uses.tokens[records.DECODE]
    assert np.flatnonzero(decode).tolist() == [1, 2, 4]


def test_a_window_keeps_its_blocks_only() -> None:
    # Blocks of 4; layers with a window hold two blocks at most. 16 tokens in the cache: 4 units of the layers without a
    # window, 2 of those with one, and one for the sequence's own state.
    served = run_loop(constant_world([(0, 16, 1)], window_units=1, window_blocks=2, sequence_units=1))
    assert column(served, UNITS) == [7]


def test_windows_in_a_pool_of_their_own_count_where_they_are_more() -> None:
    # Blocks of 4. Layers without a window take 4 parts of a block, those with one 5 of theirs, of two blocks at most.
    apart = {"full_units": 4, "window_units": 5, "window_blocks": 2, "windows_apart": True}
    for prompt, units in ((4, 5), (8, 10), (9, 12), (16, 16)):
        served = run_loop(constant_world([(0, prompt, 1)], capacity_units=units, **apart))
        assert column(served, UNITS) == [units]
        assert (
            run_loop(constant_world([(0, prompt, 1)], capacity_units=units - 1, **apart)).out.status[0]
            == records.NO_MEMORY
        )


def test_all_units_are_free_again_after_preemptions() -> None:
    # the crowd preempts; long after it, one small request finds the memory empty: one block is in use
    crowd = [(float(i), 7, 9) for i in range(6)]
    served = run_loop(constant_world([*crowd, (1e6, 3, 1)], capacity_units=6))
    assert served.totals.preemptions > 0
    assert column(served, UNITS)[-1] == 1
    assert finish(served)[-1] == 1e6 + 100


def context_world(asynchronous: bool) -> World:
    """Return a world whose decode steps take 100 us and 1 us more for each token in the cache."""
    world = constant_world([(0, 4, 50), (1120, 4, 1)], asynchronous=asynchronous)
    grid = world.surface.decode_us.repeat(2, axis=1) + [0.0, 1000.0]
    ends = world.surface.decode_y.repeat(2) + [0.0, 1000.0]
    return world._replace(surface=world.surface._replace(decode_y=ends, decode_us=grid))


def test_a_decode_run_stops_for_an_arrival() -> None:
    # The prompt takes 100 us. Decode step k (from 0) takes 104 + k: ten of them take 1085, so they end at 1185, and the
    # tenth holds the arrival at 1120. The next step takes A's decode at context 14 (114 us) and B's prompt.
    served = run_loop(context_world(asynchronous=False))
    assert served.out.scheduled_us[1] == 1185
    assert first_token(served)[1] == 1185 + 114
    # one step later where the next one was prepared already: the eleventh takes 114, and then context 15 costs 115
    served = run_loop(context_world(asynchronous=True))
    assert served.out.scheduled_us[1] == 1185 + 114
    assert first_token(served)[1] == 1185 + 114 + 115


@pytest.mark.parametrize("step_us", [100.1, 33.3, 7.7, 1234.567])
def test_a_request_sent_as_a_step_begins_is_in_the_step_after_it(step_us: float) -> None:
    # Two in flight: C is sent when A ends. The next step, B alone, was prepared before that; it begins at the very time
    # that C is sent, so the step after it takes C, whatever the rounding of the clock.
    for tokens in range(2, 12):
        requests = [(0.1, 4, tokens), (0.1, 4, tokens + 5), (0.1, 4, 1)]
        served = run_loop(constant_world(requests, step_us, asynchronous=True, max_concurrency=2))
        assert batches(served) == [(8, 0), *[(0, 2)] * (tokens - 1), (0, 1), (4, 1), *[(0, 1)] * 3]
