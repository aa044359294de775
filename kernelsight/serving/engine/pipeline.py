"""Engines with per-request progress: pipeline stages with several batches in flight, and speculative decoding.

As in vLLM V1 (``EngineCore.step_with_batch_queue``): whenever the oldest batch returns, new batches are formed until
each stage has one in flight, or no request can be scheduled. Computed tokens advance when they are scheduled:
chunks of one prompt may be in several batches, but a request whose token has not returned has nothing to schedule.
TensorRT-LLM's micro-batches also skip requests in flight; before 1.2 prompts too, whose next chunk then waits for the
one before it (``Limits.chunks_overlap``). A request preempted in flight still gets its token, and may
finish with it. With asynchronous scheduling a batch sees the requests that were visible when the previous batch was
formed, and the host prepares it while the first stage runs.

A batch passes the stages in order and waits for the previous batch to leave each one, so all its times are known when
it is formed. The requests that decode in it are a group (see ``groups``): a step costs the same for any number of them.
With speculative decoding (see ``drafts``) requests get different numbers of tokens from a batch, so that its return
visits each of them once; a request keeps the KV blocks of rejected drafts for its next tokens. An engine without
pipeline stages has one batch in flight.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.adapters import set_level, wait_for_loads
from kernelsight.serving.engine.batch import push_partial
from kernelsight.serving.engine.costs import host_times
from kernelsight.serving.engine.drafts import cost_drafts
from kernelsight.serving.engine.groups import change_group, note_request, set_aside
from kernelsight.serving.engine.policy import received_until, reset_ratio_when_idle
from kernelsight.serving.engine.queue import horizon_us, next_visible_us, queue_head
from kernelsight.serving.engine.records import NOBODY
from kernelsight.serving.engine.scheduler import schedule
from kernelsight.serving.engine.state import (
    Core,
    Metrics,
    Scenario,
    Step,
    StepCosts,
    core_of,
    costs_of,
    draft_costs_of,
    metrics_of,
)
from kernelsight.serving.engine.steps import cost_experts, cost_step, count_step, phase_of
from kernelsight.serving.engine.waits import note_admitted


@compiled
def begin_batches(scenario: Scenario, i: int) -> None:
    """Form batches of engine ``i`` now, or when it is idle and sees its next request, and send them on."""
    engine, requests, limits = scenario.engines[i], scenario.requests, scenario.limits[i]
    metrics = metrics_of(scenario, i)
    while engine.batches < limits.stages:
        horizon = horizon_us(engine, limits)
        idle = engine.running == 0 and queue_head(engine, requests, limits, horizon) < 0
        if idle and engine.batches > 0:
            break
        if idle:
            next_us = next_visible_us(engine, requests, limits, horizon)
            horizon = engine.now = max(next_us, engine.now) + limits.batch_wait_us
        prompt_tokens, decode_tokens, _, _ = form_batch(core_of(scenario, i), metrics.sums, idle, horizon)
        if prompt_tokens + decode_tokens == 0:
            break
        stage = (engine.oldest_batch + engine.batches) % limits.stages
        send_batch(
            core_of(scenario, i), costs_of(scenario, i), draft_costs_of(scenario, i), metrics, stage, prompt_tokens,
            decode_tokens, 0,
        )  # fmt: skip
        engine.batches += 1
    engine.underway = engine.batches > 0
    if engine.underway:
        engine.due_us = scenario.stages[i, engine.oldest_batch].due_us


@compiled
def form_batch(core: Core, sums: np.ndarray, idle: bool, horizon: float) -> tuple:
    """Schedule a batch now, from requests visible by ``horizon``; return the result of ``schedule``."""
    engine, limits = core.engine, core.limits
    if not limits.plain and (idle or engine.steps == 0):
        reset_ratio_when_idle(engine, limits)
    engine.step_found = engine.step_looked_up = 0
    seen, ticket = horizon if limits.plain else received_until(engine, limits, horizon), engine.admitted
    scheduled = schedule(core, seen)
    set_level(engine, limits, scheduled[0], scheduled[1])
    if sums.shape[0] > 0:
        note_admitted(engine, core.requests, sums, ticket)
    engine.previous_start = engine.now
    engine.peak_units = max(engine.peak_units, limits.capacity_units - engine.free_units)
    return scheduled


@compiled
def send_batch(
    core: Core,
    costs: StepCosts,
    draft_costs: StepCosts,
    metrics: Metrics,
    place: int,
    prompt_tokens: int,
    decode_tokens: int,
    expert_tokens: int,
) -> None:
    """Send a scheduled batch through the stages: its cost, the times at which it passes them, and its row.

    ``place``: the batch's slot in ``stages``. ``expert_tokens``: mean tokens that a rank sends to the experts, where
    ranks step together; otherwise 0.
    """
    engine, limits, stages = core.engine, core.limits, core.stages
    if engine.left_out > 0 and decode_tokens > 0:
        set_aside(core, core.groups[stages[place].group])
    gpu_us, drafts_us, chunks, decodes, sampled = cost_batch(
        core, costs, draft_costs, prompt_tokens, decode_tokens, expert_tokens
    )
    start_us, end_us, host_us = pass_stages(
        core, costs, chunks + decodes, prompt_tokens + decode_tokens, chunks, sampled, gpu_us, drafts_us
    )
    wait_us = wait_for_loads(engine, limits, end_us)
    if wait_us > 0.0:
        end_us += wait_us
        stages[limits.stages - 1].free_us += wait_us
        stages[limits.stages - 1].idle_us += wait_us
    gpu_us += drafts_us
    stages[place].due_us = end_us
    engine.step_kind_us[1 if prompt_tokens > 0 else 0] += gpu_us
    wait_us = max(end_us - start_us - gpu_us - host_us, 0.0)
    count_step(core, metrics, Step(prompt_tokens, decode_tokens, start_us, end_us, gpu_us, host_us, wait_us))
    put_in_flight(core, stages[place], decode_tokens)


@compiled
def cost_batch(
    core: Core,
    costs: StepCosts,
    draft_costs: StepCosts,
    prompt_tokens: int,
    decode_tokens: int,
    expert_tokens: int,
) -> tuple:
    """Return (GPU time, that of the drafts, chunks, decoding requests, sampled tokens) of a scheduled batch."""
    engine, requests, limits = core.engine, core.requests, core.limits
    phase = phase_of(prompt_tokens, decode_tokens)
    decodes = engine.decoding if decode_tokens > 0 else 0
    context = windowed = draft_windowed = 0.0
    if decodes > 0:
        context = float(engine.context_offset_sum + decodes * engine.clock)
        windowed, draft_windowed = float(engine.inside), float(engine.draft_inside)
    most = max(decodes, 1)
    gpu_us, chunks, sampled = cost_step(
        engine, requests, costs, phase, prompt_tokens, decode_tokens, decodes, context / most, windowed / most
    )
    gpu_us += cost_experts(engine, costs, phase, expert_tokens, 1 if chunks > 0 else 0, 1)
    drafts_us = 0.0
    if limits.draft_model:
        sequences, all_context, all_windowed = decodes, context, draft_windowed
        r = engine.partial
        while r >= 0:
            request = requests[r]
            if request.chunk > 0 and request.computed + request.chunk == request.known:
                sequences += 1
                all_context += request.known
                all_windowed += min(request.known, limits.draft_window_tokens)
            r = request.next_partial
        share = max(sequences, 1)
        drafts_us = cost_drafts(
            core, draft_costs, phase, prompt_tokens + decode_tokens, decodes, context / most, draft_windowed / most,
            sequences, all_context / share, all_windowed / share,
        )  # fmt: skip
    return gpu_us, drafts_us, chunks, decodes, sampled


@compiled
def pass_stages(
    core: Core,
    costs: StepCosts,
    requests_in: int,
    tokens: int,
    prompts: int,
    sampled: int,
    gpu_us: float,
    drafts_us: float,
) -> tuple:
    """Return (start, end, exposed host time) of a batch that is formed now; a stage is busy until the batch leaves it.

    The host prepares batches in turn, and launches drafts pass by pass, which the GPU waits for where they take longer.
    The first stage computes the embedding, the last one logits and drafts, all but the first wait for a transfer;
    layers, launches and gaps between kernels are split by each stage's share of layers. Where every stage has a
    scheduler of its own (TensorRT-LLM), it looks at all running requests before its part.
    """
    engine, limits, host, stages = core.engine, core.limits, core.host, core.stages
    values, layout = costs.values, costs.layout
    hidden_us, exposed_us, launch_us = host_times(requests_in, tokens, prompts, host)
    begin_us = max(engine.now, engine.prepared_us)
    engine.prepared_us = begin_us + (exposed_us - host.gap_us)
    last = limits.stages - 1
    row = tokens + (layout.prompts_at if prompts > 0 else 0)
    embedding_us = values[layout.embedding_at + row] if last > 0 else 0.0
    transfer_us = values[layout.transfer_at + row] if last > 0 else 0.0
    logits_us = values[layout.sampled_at + sampled]
    layers_us = gpu_us - embedding_us - transfer_us - logits_us
    start_us = moment = host_us = 0.0
    for s in range(limits.stages):
        stage = stages[s]
        own_us, hidden_here_us, exposed_here_us = layers_us * stage.share, launch_us * stage.share, 0.0
        if s == 0:
            own_us += embedding_us
            hidden_here_us += hidden_us - launch_us
            ready_us = max(engine.prepared_us, stage.free_us)
            start_us = moment = min(ready_us, max(begin_us, stage.free_us))
            exposed_here_us = ready_us - start_us
        else:
            own_us += transfer_us / last
            moment = max(moment, stage.free_us)
        if s == last:
            own_us += logits_us + drafts_us
            exposed_here_us += max(0.0, host.drafts_us - drafts_us) if drafts_us > 0.0 else 0.0
        exposed_here_us += host.gap_us * stage.share + max(0.0, hidden_here_us - own_us)
        if last > 0:
            exposed_here_us += host.per_active_us * engine.running
        stage.idle_us += moment - stage.free_us
        stage.gpu_us += own_us
        host_us += exposed_here_us
        moment += exposed_here_us + own_us
        stage.free_us = moment
    return start_us, moment, host_us


@inlined
def put_in_flight(core: Core, batch: np.void, decode_tokens: int) -> None:
    """Move the engine's group to a batch; count its chunks as computed, and list the prompts that it completes."""
    engine, requests = core.engine, core.requests
    if decode_tokens > 0:
        engine.decode_steps += 1
        change_group(core, batch)
    group = core.groups[batch.group]
    group.noted, group.admitted = 0, engine.admitted
    r = engine.partial
    engine.partial = engine.last_partial = NOBODY
    engine.partial_count = 0
    while r >= 0:
        request = requests[r]
        following = request.next_partial
        request.computed += request.chunk
        if request.chunk > 0 and request.computed == request.known:
            request.all_in_flight = True
            note_request(requests, core.heaps[group.group], group, r, 0)
        else:
            push_partial(engine, requests, r)  # it has tokens left to schedule
            if request.chunk > 0:
                request.chunk_returns_us = batch.due_us
        request.chunk = 0
        r = following
