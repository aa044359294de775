"""Data-parallel ranks that share the experts of a mixture: they begin and end each step together.

Every MoE layer exchanges tokens among all ranks, so a step lasts as long as its slowest rank, and routed experts work
on the tokens of all. In a CUDA graph ranks are padded to the largest batch among them (vLLM
``coordinate_batch_across_dp``, SGLang ``DpPaddingMode.MAX_LEN``, TensorRT-LLM ``CUDAGraphRunner``); otherwise the
experts get the tokens that there are. A rank without requests runs an empty batch beside the others: it waits for them,
and takes no time of its own.

A prompt on one rank delays the decodes of all. TensorRT-LLM's ``attention_dp_config.enable_balance`` holds prompts back
until every rank has one (``RequestScheduler._balance_adp_context_requests``).
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.admission import next_prompt
from kernelsight.serving.engine.batch import units_ahead
from kernelsight.serving.engine.compiled import compiled
from kernelsight.serving.engine.costs import cut_line, decode_line, host_times, line_time
from kernelsight.serving.engine.decode_runs import advance_line
from kernelsight.serving.engine.heaps import next_filling
from kernelsight.serving.engine.lookahead import decode_until
from kernelsight.serving.engine.pipeline import form_batch, send_batch
from kernelsight.serving.engine.queue import horizon_us, next_visible_us, queue_head
from kernelsight.serving.engine.records import DECODE, FOREVER, NO_LIMIT
from kernelsight.serving.engine.steps import (
    END,
    STAGE_WAIT,
    cost_experts,
    find_knots,
    pass_single_step,
    single_step,
)
from kernelsight.serving.engine.tiers import end_writes


@compiled
def begin_ranks(
    engines: np.ndarray,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    draft_layout: np.void,
    uses: np.ndarray,
    histogram: np.ndarray,
    stages: np.ndarray,
    groups: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
    first: int,
    now: float,
) -> None:
    """Begin a step of the ranks from ``first`` on; arrays have an item for each engine, as in ``loop``."""
    ranks = limits[first].ranks
    if limits[first].balance:
        held = holds_prompts(engines, requests, limits, hashes, entries, first, ranks, now)
        for i in range(first, first + ranks):
            engines[i].prefills_held = held
    prompts = False
    for i in range(first, first + ranks):
        form_rank(engines[i], requests, heaps[i], limits[i], host, hashes, entries, groups[i], sums, rows[i], now)
        prompts = prompts or engines[i].step_prompt_tokens > 0
    if limits[first].per_request_progress:
        send_ranks(
            engines, requests, heaps, limits, host, costs, layout, draft_layout, uses, stages, groups, rows, first, now
        )
    elif prompts:
        step_ranks(engines, requests, heaps, limits, host, costs, layout, uses, histogram, rows, first)
    else:
        plan_ranks(engines, requests, heaps, limits, host, costs, layout, first)


@compiled
def send_ranks(
    engines: np.ndarray,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.void,
    costs: np.ndarray,
    layout: np.void,
    draft_layout: np.void,
    uses: np.ndarray,
    stages: np.ndarray,
    groups: np.ndarray,
    rows: np.ndarray,
    first: int,
    now: float,
) -> None:
    """Execute a scheduled step of ranks whose requests differ in what they have yet to get (drafts)."""
    ranks = limits[first].ranks
    expert_tokens = shared_tokens(engines, host, first, ranks)
    end_us = now
    for i in range(first, first + ranks):
        engine = engines[i]
        if engine.step_prompt_tokens + engine.step_decode_tokens > 0:
            send_batch(
                engine, requests, heaps[i], limits[i], host, costs, layout, draft_layout, uses, stages[i], groups[i], 0,
                engine.step_prompt_tokens, engine.step_decode_tokens, expert_tokens, rows[i],
            )  # fmt: skip
            end_us = max(end_us, stages[i, 0].due_us)
    for i in range(first, first + ranks):
        wait_for_ranks(engines[i], stages[i, 0], layout, rows[i], end_us)


@compiled
def step_ranks(
    engines: np.ndarray,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.void,
    costs: np.ndarray,
    layout: np.void,
    uses: np.ndarray,
    histogram: np.ndarray,
    rows: np.ndarray,
    first: int,
) -> None:
    """Execute one scheduled step, in which some rank computes prompts."""
    ranks, begin_us = limits[first].ranks, engines[first].previous_start
    expert_tokens = shared_tokens(engines, host, first, ranks)
    end_us = begin_us
    for i in range(first, first + ranks):
        engine = engines[i]
        prompts, decodes = engine.step_prompt_tokens, engine.step_decode_tokens
        if prompts + decodes > 0:
            gpu_us, host_us = single_step(engine, requests, host, costs, layout, uses, prompts, decodes, expert_tokens)
            engine.own_us, engine.own_gpu_us = gpu_us + host_us, gpu_us
            end_us = max(end_us, begin_us + engine.own_us)
            if limits[i].tiers > 0:
                end_writes(engine, limits[i])
                end_us = max(end_us, engine.loads_us)
    for i in range(first, first + ranks):
        engine = engines[i]
        prompts, decodes = engine.step_prompt_tokens, engine.step_decode_tokens
        if prompts + decodes > 0:
            wait_us, host_us = end_us - (begin_us + engine.own_us), engine.own_us - engine.own_gpu_us
            pass_single_step(
                engine, requests, heaps[i, 0], limits[i], layout, histogram, rows[i], prompts, decodes,
                engine.own_gpu_us, host_us, wait_us, end_us,
            )  # fmt: skip
            engine.underway = True
        engine.now = engine.due_us = end_us


@compiled
def plan_ranks(
    engines: np.ndarray,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.void,
    costs: np.ndarray,
    layout: np.void,
    first: int,
) -> None:
    """Plan decode steps of all ranks with linear times, up to the first change of a batch: a request may end them."""
    ranks, begin_us = limits[first].ranks, engines[first].previous_start
    expert_tokens = shared_tokens(engines, host, first, ranks)
    experts_us = costs[layout.experts_at + expert_tokens]
    steps, pace_us, pace_slope = float(NO_LIMIT), 0.0, 0.0
    for i in range(first, first + ranks):
        engine, batch = engines[i], engines[i].step_decode_tokens
        steps = min(steps, float(engine.planned_steps))
        if batch == 0:
            continue
        y = (engine.context_offset_sum + batch * engine.clock) / batch
        windowed = engine.inside / batch
        find_knots(engine, costs, layout, y, windowed)
        hidden_us, exposed_us, _ = host_times(batch, batch, 0, host)
        linear_us = costs[layout.tokens_at + batch] + costs[layout.sampled_at + batch] + experts_us
        piece, engine.own_us, engine.own_slope, engine.own_gpu_us, engine.own_gpu_slope = decode_line(
            costs, layout, batch, y, engine.decode_y, windowed, engine.window_y, engine.below / batch, linear_us,
            hidden_us, exposed_us,
        )  # fmt: skip
        steps = min(steps, piece)
        if limits[i].window_tokens > 0:
            filling = next_filling(engine, requests, heaps[i, 0])
            if filling >= 0:
                steps = min(steps, float(filling - engine.clock))
        if engine.own_us > pace_us or (engine.own_us == pace_us and engine.own_slope > pace_slope):
            pace_us, pace_slope = engine.own_us, engine.own_slope
    for i in range(first, first + ranks):  # until another rank is the slowest
        if engines[i].step_decode_tokens > 0 and engines[i].own_slope > pace_slope:
            ahead_us = pace_us - engines[i].own_us
            steps = min(steps, np.floor(ahead_us / (engines[i].own_slope - pace_slope)) + 1.0)
    for i in range(first, first + ranks):
        engine = engines[i]
        engine.planned, engine.planned_steps = True, int(steps)
        engine.pace_us, engine.pace_slope = pace_us, pace_slope
        engine.due_us = begin_us + line_time(pace_us, pace_slope, int(steps))
        if engine.step_decode_tokens > 0:
            engine.underway = True
        else:
            engine.now = engine.due_us


@compiled
def shorten_ranks(engines: np.ndarray, limits: np.ndarray, first: int, stop_us: float) -> None:
    """End the planned decode steps of all ranks with the one that passes ``stop_us``.

    They are not executed yet: a prompt that goes to another rank later may be seen earlier.
    """
    begin_us, pace_us, pace_slope = engines[first].previous_start, engines[first].pace_us, engines[first].pace_slope
    steps, _, _ = cut_line(pace_us, pace_slope, engines[first].planned_steps, stop_us - begin_us, False)
    for i in range(first, first + limits[first].ranks):
        engine = engines[i]
        engine.planned_steps = steps
        engine.due_us = begin_us + line_time(pace_us, pace_slope, steps)
        if engine.step_decode_tokens == 0:
            engine.now = engine.due_us


@compiled
def take_ranks(
    engines: np.ndarray,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.void,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    uses: np.ndarray,
    histogram: np.ndarray,
    rows: np.ndarray,
    first: int,
    stop_us: float,
) -> None:
    """Execute the planned decode steps of all ranks, up to the one that passes ``stop_us``.

    With asynchronous scheduling the next step is prepared already: it is planned as a step of its own.
    """
    ranks, begin_us, planned = limits[first].ranks, engines[first].previous_start, engines[first]
    pace_us, pace_slope = planned.pace_us, planned.pace_slope
    steps, _, _ = cut_line(pace_us, pace_slope, planned.planned_steps, stop_us - begin_us, False)
    expert_tokens = shared_tokens(engines, host, first, ranks)
    end_us = begin_us + line_time(pace_us, pace_slope, steps)
    if limits[first].balance:
        count_unbalanced(engines, limits, first, steps - 1)
    for i in range(first, first + ranks):
        engine, batch = engines[i], engines[i].step_decode_tokens
        if batch > 0:
            y = (engine.context_offset_sum + batch * engine.clock) / batch
            experts_us = cost_experts(engine, costs, layout, uses[DECODE], expert_tokens, 0, steps)
            linear_us = costs[layout.tokens_at + batch] + costs[layout.sampled_at + batch] + experts_us
            taken = units_ahead(engine, requests, limits[i], 1)
            advance_line(
                engine, requests, heaps[i, 0], limits[i], entries, costs, layout, uses, histogram, rows[i], y,
                engine.inside / batch, linear_us, engine.own_us, engine.own_slope, engine.own_gpu_us,
                engine.own_gpu_slope, pace_us, pace_slope, steps, taken,
            )  # fmt: skip
            engine.peak_units = max(engine.peak_units, limits[i].capacity_units - engine.free_units)
        engine.planned = False
        engine.previous_start = begin_us + line_time(pace_us, pace_slope, steps - 1)
        engine.now = engine.due_us = end_us


@compiled
def holds_prompts(
    engines: np.ndarray,
    requests: np.ndarray,
    limits: np.ndarray,
    hashes: np.ndarray,
    entries: np.ndarray,
    first: int,
    ranks: int,
    now: float,
) -> bool:
    """Whether this step decodes only, so that all ranks compute prompts in the same steps; counts the steps."""
    counts, prompts, decodes = engines[first], True, True
    for i in range(first, first + ranks):
        engine, own = engines[i], limits[i]
        horizon = horizon_us(engine, own)
        # a rank that decodes sees what came before its last step began, an idle one what came until now
        if engine.running == 0:
            horizon = now
        waits = engine.partial >= 0 or next_prompt(engine, requests, own, hashes, entries, horizon) >= 0
        prompts = prompts and waits
        decodes = decodes and engine.decoding > 0
    if prompts:
        counts.unbalanced_iters = 0
        if not decodes:
            return False
        counts.balanced_iters += 1
        if counts.balanced_iters <= limits[first].attention_dp_batching_wait_iters:
            return True
        counts.balanced_iters = 0
        return False
    counts.unbalanced_iters += 1
    if decodes and counts.unbalanced_iters < limits[first].attention_dp_timeout_iters:
        return True
    counts.unbalanced_iters = 0
    return False


@compiled
def count_unbalanced(engines: np.ndarray, limits: np.ndarray, first: int, steps: int) -> None:
    """Count further steps in which every rank decodes and none has a prompt, as ``holds_prompts`` would count them."""
    timeout = limits[first].attention_dp_timeout_iters
    for i in range(first, first + limits[first].ranks):
        if engines[i].decoding == 0:
            return
    if timeout > 0:
        engines[first].unbalanced_iters = (engines[first].unbalanced_iters + steps) % timeout


@compiled
def form_rank(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    host: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    groups: np.ndarray,
    sums: np.ndarray,
    rows: np.ndarray,
    now: float,
) -> None:
    """Schedule a rank's part of a step; it stays empty where the rank sees no request yet.

    ``planned_steps``: how many decode steps its batch may stay as it is; one where a request is about to be seen.
    """
    engine.step_prompt_tokens = engine.step_decode_tokens = 0
    engine.skipped = engine.skipped_tokens = engine.skipped_inside = engine.skipped_below = 0
    engine.blocked = False
    horizon = horizon_us(engine, limits)
    idle = engine.running == 0 and queue_head(engine, requests, limits, horizon) < 0
    if idle:
        seen_us = next_visible_us(engine, requests, limits, horizon)
        if seen_us + limits.batch_wait_us > now:
            engine.planned_steps = NO_LIMIT if seen_us == FOREVER else 1
            engine.previous_start = now
            return
        horizon = now
    engine.now = now
    prompt_tokens, decode_tokens, again, engine.blocked = form_batch(
        engine, requests, heaps, limits, hashes, entries, groups, sums, idle, horizon
    )
    engine.step_prompt_tokens, engine.step_decode_tokens = prompt_tokens, decode_tokens
    if limits.per_request_progress:
        return
    engine.stalled = decode_tokens == 0 and engine.decoding > 0
    engine.idle_us += now - engine.last_us
    engine.planned_steps = 1
    if prompt_tokens == 0 and decode_tokens > 0:
        most, stop_us = decode_until(engine, requests, heaps[0], limits, host, again, horizon, rows, FOREVER, False)
        engine.planned_steps = most if stop_us == FOREVER else 1


@compiled
def shared_tokens(engines: np.ndarray, host: np.void, first: int, ranks: int) -> int:
    """Tokens that each rank sends to the experts, in the mean; the largest batch, where a CUDA graph holds all."""
    largest = total = prompt_tokens = 0
    for i in range(first, first + ranks):
        tokens = engines[i].step_prompt_tokens + engines[i].step_decode_tokens
        largest, total = max(largest, tokens), total + tokens
        prompt_tokens += engines[i].step_prompt_tokens
    most = host.prompt_graph_max_tokens if prompt_tokens > 0 else host.graph_max_tokens
    return largest if largest <= most else -(-total // ranks)


@compiled
def wait_for_ranks(engine: np.void, stage: np.void, layout: np.void, rows: np.ndarray, end_us: float) -> None:
    """Let a rank wait until the step of all has ended; in a profile, that is time in collectives."""
    if engine.step_prompt_tokens + engine.step_decode_tokens == 0:
        engine.now = end_us
        return
    wait_us = end_us - stage.due_us
    stage.due_us = stage.free_us = engine.due_us = end_us
    stage.idle_us += wait_us
    engine.batches, engine.underway = 1, True
    if layout.split:
        kind = 1 if engine.step_prompt_tokens > 0 else 0
        engine.step_kind_us[kind] += wait_us
        engine.communication_us[kind] += wait_us
    if rows.shape[0] > 0:
        row = rows[engine.rows - 1]
        row[END] = end_us
        row[STAGE_WAIT] += wait_us
