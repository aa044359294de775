"""Data-parallel ranks with expert parallelism (DP attention): they share experts, and step together.

Every MoE layer exchanges tokens among all ranks, so that a step lasts as long as its slowest rank, and routed experts
work on the tokens of all. In a CUDA graph ranks are padded to the captured size of the largest batch among them (vLLM
``coordinate_batch_across_dp``, SGLang ``DpPaddingMode.MAX_LEN``, TensorRT-LLM ``CUDAGraphRunner``), before vLLM 0.17 in
every step to the largest batch (``engine_ranks``); otherwise the experts get the actual tokens. A rank without requests
runs an empty batch with the others: it waits for them, and adds no time.

A prompt on one rank delays the decodes of all. TensorRT-LLM's ``attention_dp_config.enable_balance`` holds prompts back
until every rank has one (``RequestScheduler._balance_adp_context_requests``). vLLM's ``prefill_schedule_interval`` lets
prompts into every Nth step alone (``DPEngineCoreProc._should_throttle_prefills``), as long as such a step empties the
queue of its rank.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.adapters import wait_for_loads
from kernelsight.serving.engine.admission import next_prompt
from kernelsight.serving.engine.batch import units_ahead
from kernelsight.serving.engine.costs import contexts_now, cut_line, decode_line, decode_until, host_times, line_time
from kernelsight.serving.engine.decode_runs import advance_line
from kernelsight.serving.engine.heaps import next_filling
from kernelsight.serving.engine.pipeline import form_batch, send_batch
from kernelsight.serving.engine.queue import horizon_us, next_visible_us, queue_head
from kernelsight.serving.engine.records import DECODE, FOREVER, NO_LIMIT
from kernelsight.serving.engine.state import (
    Core,
    Line,
    Metrics,
    Scenario,
    Step,
    StepCosts,
    core_of,
    costs_of,
    draft_costs_of,
    metrics_of,
)
from kernelsight.serving.engine.steps import END, STAGE_WAIT, cost_experts, pass_single_step, single_step


@compiled
def begin_ranks(scenario: Scenario, first: int, now: float) -> None:
    """Begin a step of the ranks from ``first`` on."""
    engines, ranks = scenario.engines, scenario.limits[first].ranks
    if scenario.limits[first].balance or scenario.limits[first].prefill_schedule_interval > 1:
        held = scenario.limits[first].balance and holds_prompts(scenario, first, now)
        decodes_only = not is_prompt_step(engines, scenario.limits[first], first)
        for i in range(first, first + ranks):
            waits = decodes_only and not engines[i].prompts_left and engines[i].decoding > 0
            engines[i].prefills_held = held or waits
    alone = False  # a step that is not like the next ones: it has prompts, or waits for adapters
    for i in range(first, first + ranks):
        form_rank(core_of(scenario, i), metrics_of(scenario, i), now)
        alone = alone or engines[i].step_prompt_tokens > 0 or engines[i].adapters_us > 0.0
    if scenario.limits[first].per_request_progress:
        send_ranks(scenario, first, now)
    elif alone:
        step_ranks(scenario, first)
    else:
        plan_ranks(scenario, first)


@compiled
def send_ranks(scenario: Scenario, first: int, now: float) -> None:
    """Execute a scheduled step of ranks with drafts, whose requests get different numbers of tokens."""
    engines, stages, ranks = scenario.engines, scenario.stages, scenario.limits[first].ranks
    expert_tokens = shared_tokens(engines, scenario.host[first, 1], costs_of(scenario, first), first, ranks)
    end_us = now
    for i in range(first, first + ranks):
        prompts, decodes = engines[i].step_prompt_tokens, engines[i].step_decode_tokens
        if prompts + decodes > 0:
            send_batch(
                core_of(scenario, i), costs_of(scenario, i), draft_costs_of(scenario, i), metrics_of(scenario, i), 0,
                prompts, decodes, expert_tokens,
            )  # fmt: skip
            end_us = max(end_us, stages[i, 0].due_us)
    for i in range(first, first + ranks):
        wait_for_ranks(engines[i], stages[i, 0], scenario.layout[i, 0].split, scenario.rows[i], end_us)


@compiled
def step_ranks(scenario: Scenario, first: int) -> None:
    """Execute one scheduled step, in which some rank computes prompts or waits for adapters."""
    engines, limits, host = scenario.engines, scenario.limits, scenario.host[first, 1]
    ranks, begin_us = limits[first].ranks, engines[first].previous_start
    expert_tokens = shared_tokens(engines, host, costs_of(scenario, first), first, ranks)
    end_us = begin_us
    for i in range(first, first + ranks):
        engine = engines[i]
        prompts, decodes = engine.step_prompt_tokens, engine.step_decode_tokens
        if prompts + decodes > 0:
            gpu_us, host_us = single_step(
                engine,
                scenario.requests,
                core_of(scenario, i).host,
                costs_of(scenario, i),
                prompts,
                decodes,
                expert_tokens,
            )
            engine.own_us, engine.own_gpu_us = gpu_us + host_us, gpu_us
            own_end_us = begin_us + engine.own_us
            end_us = max(end_us, own_end_us + wait_for_loads(engine, limits[i], own_end_us))
    for i in range(first, first + ranks):
        engine = engines[i]
        prompts, decodes = engine.step_prompt_tokens, engine.step_decode_tokens
        if prompts + decodes > 0:
            wait_us, host_us = end_us - (begin_us + engine.own_us), engine.own_us - engine.own_gpu_us
            step = Step(prompts, decodes, engine.now, end_us, engine.own_gpu_us, host_us, wait_us)
            pass_single_step(core_of(scenario, i), scenario.layout[i, 0].split, metrics_of(scenario, i), step)
            engine.underway = True
        engine.now = engine.due_us = end_us


@inlined
def time_without_attention(costs: StepCosts, batch: int, experts_us: float) -> float:
    """Return the GPU time of a rank's decode step without attention; ``experts_us``: of the shared experts."""
    return costs.values[costs.layout.tokens_at + batch] + costs.values[costs.layout.sampled_at + batch] + experts_us


@compiled
def plan_ranks(scenario: Scenario, first: int) -> None:
    """Plan decode steps of all ranks with linear times, up to the first change of a batch; a request may end them."""
    engines, host, ranks = scenario.engines, scenario.host[first, 1], scenario.limits[first].ranks
    experts_at = scenario.layout[first, 0].experts_at + shared_tokens(
        engines, host, costs_of(scenario, first), first, ranks
    )
    steps, pace = float(NO_LIMIT), Line(0.0, 0.0)
    for i in range(first, first + ranks):
        engine, batch = engines[i], engines[i].step_decode_tokens
        steps = min(steps, float(engine.planned_steps))
        if batch == 0:
            continue
        costs = costs_of(scenario, i)
        contexts = contexts_now(engine, costs)
        hidden_us, exposed_us, _ = host_times(batch, batch, 0, core_of(scenario, i).host)
        linear_us = time_without_attention(costs, batch, costs.values[experts_at])
        piece, step, gpu = decode_line(costs, batch, contexts, linear_us, hidden_us, exposed_us)
        engine.own_us, engine.own_slope = step.first_us, step.slope_us
        engine.own_gpu_us, engine.own_gpu_slope = gpu.first_us, gpu.slope_us
        steps = min(steps, piece)
        if scenario.limits[i].window_tokens > 0:
            filling = next_filling(engine, scenario.requests, scenario.heaps[i, engine.group])
            if filling >= 0:
                steps = min(steps, float(filling - engine.clock))
        if step.first_us > pace.first_us or (step.first_us == pace.first_us and step.slope_us > pace.slope_us):
            pace = step
    for i in range(first, first + ranks):  # until another rank is the slowest
        if engines[i].step_decode_tokens > 0 and engines[i].own_slope > pace.slope_us:
            ahead_us = pace.first_us - engines[i].own_us
            steps = min(steps, np.floor(ahead_us / (engines[i].own_slope - pace.slope_us)) + 1.0)
    end_us = engines[first].previous_start + line_time(pace, int(steps))
    for i in range(first, first + ranks):
        engine = engines[i]
        engine.planned, engine.planned_steps = True, int(steps)
        engine.pace_us, engine.pace_slope = pace.first_us, pace.slope_us
        engine.due_us = end_us
        if engine.step_decode_tokens > 0:
            engine.underway = True
        else:
            engine.now = engine.due_us


@compiled
def shorten_ranks(engines: np.ndarray, limits: np.ndarray, first: int, stop_us: float) -> None:
    """End the planned decode steps of all ranks with the one that passes ``stop_us``.

    They are not executed yet: a prompt sent later to another rank may become visible earlier.
    """
    begin_us, pace = engines[first].previous_start, Line(engines[first].pace_us, engines[first].pace_slope)
    steps, _, _ = cut_line(pace, engines[first].planned_steps, stop_us - begin_us, False)
    for i in range(first, first + limits[first].ranks):
        engine = engines[i]
        engine.planned_steps = steps
        engine.due_us = begin_us + line_time(pace, steps)
        if engine.step_decode_tokens == 0:
            engine.now = engine.due_us


@compiled
def take_ranks(scenario: Scenario, first: int, stop_us: float) -> None:
    """Execute the planned decode steps of all ranks, up to the one that passes ``stop_us``.

    With asynchronous scheduling the next step is prepared already: it is planned as a step of its own.
    """
    engines, limits, ranks = scenario.engines, scenario.limits, scenario.limits[first].ranks
    begin_us, pace = engines[first].previous_start, Line(engines[first].pace_us, engines[first].pace_slope)
    steps, _, _ = cut_line(pace, engines[first].planned_steps, stop_us - begin_us, False)
    expert_tokens = shared_tokens(engines, scenario.host[first, 1], costs_of(scenario, first), first, ranks)
    end_us = begin_us + line_time(pace, steps)
    engines[first].joint_steps += steps - 1
    if limits[first].balance:
        count_unbalanced(engines, limits, first, steps - 1)
    for i in range(first, first + ranks):
        engine, batch = engines[i], engines[i].step_decode_tokens
        if batch > 0:
            core, costs = core_of(scenario, i), costs_of(scenario, i)
            experts_us = cost_experts(engine, costs, DECODE, expert_tokens, 0, steps)
            linear_us = time_without_attention(costs, batch, experts_us)
            step, gpu = Line(engine.own_us, engine.own_slope), Line(engine.own_gpu_us, engine.own_gpu_slope)
            taken = units_ahead(engine, core.requests, core.limits, 1)
            advance_line(core, costs, metrics_of(scenario, i), linear_us, step, gpu, pace, steps, taken)
            engine.peak_units = max(engine.peak_units, limits[i].capacity_units - engine.free_units)
        engine.planned = False
        engine.previous_start = begin_us + line_time(pace, steps - 1)
        engine.now = engine.due_us = end_us


@compiled
def holds_prompts(scenario: Scenario, first: int, now: float) -> bool:
    """Whether this step decodes only, so that all ranks compute prompts in the same steps; count such steps."""
    counts, own, prompts, decodes = scenario.engines[first], scenario.limits[first], True, True
    for i in range(first, first + own.ranks):
        core = core_of(scenario, i)
        engine = core.engine
        # a rank that decodes sees what came before its last step began, an idle one what came until now
        horizon = now if engine.running == 0 else horizon_us(engine, core.limits)
        waits = engine.partial >= 0 or next_prompt(core, horizon) >= 0
        prompts = prompts and waits
        decodes = decodes and engine.decoding > 0
    if prompts:
        counts.unbalanced_iters = 0
        if not decodes:
            return False
        counts.balanced_iters += 1
        if counts.balanced_iters <= own.attention_dp_batching_wait_iters:
            return True
        counts.balanced_iters = 0
        return False
    counts.unbalanced_iters += 1
    if decodes and counts.unbalanced_iters < own.attention_dp_timeout_iters:
        return True
    counts.unbalanced_iters = 0
    return False


@compiled
def is_prompt_step(engines: np.ndarray, own: np.void, first: int) -> bool:
    """Whether the step that begins now may have prompts; count it. The count restarts when no rank runs a request."""
    running = 0
    for i in range(first, first + own.ranks):
        running += engines[i].running
    step = engines[first].joint_steps if running > 0 else 0
    engines[first].joint_steps = step + 1
    return step % own.prefill_schedule_interval == 0


@compiled
def count_unbalanced(engines: np.ndarray, limits: np.ndarray, first: int, steps: int) -> None:
    """Count further steps in which every rank decodes and none has a prompt, as ``holds_prompts`` does."""
    timeout = limits[first].attention_dp_timeout_iters
    for i in range(first, first + limits[first].ranks):
        if engines[i].decoding == 0:
            return
    if timeout > 0:
        engines[first].unbalanced_iters = (engines[first].unbalanced_iters + steps) % timeout


@compiled
def form_rank(core: Core, metrics: Metrics, now: float) -> None:
    """Schedule a rank's part of a step; it stays empty where no request is visible to the rank.

    Sets ``planned_steps``: decode steps for which its batch stays the same; 1 where a request becomes visible next.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
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
    prompt_tokens, decode_tokens, again, engine.blocked = form_batch(core, metrics.sums, idle, horizon)
    engine.step_prompt_tokens, engine.step_decode_tokens = prompt_tokens, decode_tokens
    if limits.per_request_progress:
        return
    engine.stalled = decode_tokens == 0 and engine.decoding > 0
    engine.idle_us += now - engine.last_us
    engine.planned_steps = 1
    if prompt_tokens == 0 and decode_tokens > 0:
        most, stop_us = decode_until(core, metrics.rows, again, horizon, FOREVER, False)
        engine.planned_steps = most if stop_us == FOREVER else 1


@compiled
def shared_tokens(engines: np.ndarray, host: np.void, costs: StepCosts, first: int, ranks: int) -> int:
    """Return the mean tokens that a rank sends to the experts, or of the largest batch where all are padded to it.

    In a CUDA graph these are the tokens of the captured size that holds the largest batch.
    """
    largest = total = prompt_tokens = 0
    for i in range(first, first + ranks):
        tokens = engines[i].step_prompt_tokens + engines[i].step_decode_tokens
        largest, total = max(largest, tokens), total + tokens
        prompt_tokens += engines[i].step_prompt_tokens
    most = host.prompt_graph_max_tokens if prompt_tokens > 0 else host.graph_max_tokens
    if largest <= most:
        return int(costs.values[costs.layout.padded_at + largest])
    return largest if host.ranks_padded else -(-total // ranks)


@compiled
def wait_for_ranks(engine: np.void, stage: np.void, split: bool, rows: np.ndarray, end_us: float) -> None:
    """Make a rank wait until the step of all ranks ends; profiles show this as time in collectives."""
    if engine.step_prompt_tokens + engine.step_decode_tokens == 0:
        engine.now = end_us
        return
    wait_us = end_us - stage.due_us
    stage.due_us = stage.free_us = engine.due_us = end_us
    stage.idle_us += wait_us
    engine.batches, engine.underway = 1, True
    if split:
        kind = 1 if engine.step_prompt_tokens > 0 else 0
        engine.step_kind_us[kind] += wait_us
        engine.communication_us[kind] += wait_us
    if rows.shape[0] > 0:
        row = rows[engine.rows - 1]
        row[END] = end_us
        row[STAGE_WAIT] += wait_us
