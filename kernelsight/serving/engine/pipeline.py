"""Engines with per-request progress: pipeline stages with several batches in flight, and speculative decoding.

As in vLLM V1 (``EngineCore.step_with_batch_queue``): whenever the oldest batch returns, new batches are formed until as
many are in flight as there are stages, or no request can be scheduled. Computed tokens advance when they are scheduled:
chunks of one prompt may be in several batches, but a request whose token has not returned has nothing to schedule.
TensorRT-LLM's micro-batches also skip requests in flight. A request preempted in flight still gets its token, and may
finish with it. With asynchronous scheduling a batch sees the requests that were visible when the previous batch was
formed, and the host prepares it while the first stage runs.

A batch passes the stages in order and waits for the previous batch to leave each one, so all its times are known when
it is formed. The requests that decode in it are a group (see ``groups``): a step costs the same for any number of them.
With speculative decoding (see ``drafts``) requests get different numbers of tokens from a batch, so that each one is
looked at once when it returns; it keeps the KV blocks of rejected drafts for its next tokens. An engine without
pipeline stages has one batch in flight.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.batch import push_partial
from kernelsight.serving.engine.compiled import compiled, inlined
from kernelsight.serving.engine.costs import host_times
from kernelsight.serving.engine.drafts import cost_drafts
from kernelsight.serving.engine.groups import change_group, note_request, set_aside
from kernelsight.serving.engine.policy import received_until, reset_ratio_when_idle
from kernelsight.serving.engine.queue import horizon_us, next_visible_us, queue_head
from kernelsight.serving.engine.records import DECODE, MIXED, NOBODY, PREFILL
from kernelsight.serving.engine.scheduler import schedule
from kernelsight.serving.engine.steps import (
    DECODES,
    END,
    ENERGY,
    FOUND,
    HOST_TIME,
    LOOKED_UP,
    PREEMPTED,
    PROMPTS,
    RUNNING,
    STAGE_WAIT,
    START,
    UNITS,
    WAITING,
    cost_experts,
    cost_step,
)
from kernelsight.serving.engine.tiers import end_writes
from kernelsight.serving.engine.waits import note_admitted


@compiled
def begin_batches(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    host: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    draft_layout: np.void,
    uses: np.ndarray,
    stages: np.ndarray,
    groups: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Form batches now, or when an idle engine sees its next request, and send them through the stages.

    ``stages``: STAGE records, shape [stages or more]; ``groups``: GROUP records, one more than stages; ``heaps``: of
    each group, shape [groups, 3, entries, 2]. ``sums``: see ``loop``.
    """
    while engine.batches < limits.stages:
        horizon = horizon_us(engine, limits)
        idle = engine.running == 0 and queue_head(engine, requests, limits, horizon) < 0
        if idle and engine.batches > 0:
            break
        if idle:
            next_us = next_visible_us(engine, requests, limits, horizon)
            horizon = engine.now = max(next_us, engine.now) + limits.batch_wait_us
        prompt_tokens, decode_tokens, _, _ = form_batch(
            engine, requests, heaps, limits, hashes, entries, groups, sums, idle, horizon
        )
        if prompt_tokens + decode_tokens == 0:
            break
        place = (engine.oldest_batch + engine.batches) % limits.stages
        send_batch(
            engine, requests, heaps, limits, host, costs, layout, draft_layout, uses, stages, groups, place,
            prompt_tokens, decode_tokens, 0, rows,
        )  # fmt: skip
        engine.batches += 1
    engine.underway = engine.batches > 0
    if engine.underway:
        engine.due_us = stages[engine.oldest_batch].due_us


@compiled
def form_batch(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    groups: np.ndarray,
    sums: np.ndarray,
    idle: bool,
    horizon: float,
) -> tuple:
    """Schedule a batch now, from requests visible by ``horizon``; returns what ``schedule`` does."""
    if not limits.plain and (idle or engine.steps == 0):
        reset_ratio_when_idle(engine, limits)
    engine.step_found = engine.step_looked_up = 0
    seen, ticket = horizon if limits.plain else received_until(engine, limits, horizon), engine.admitted
    scheduled = schedule(engine, requests, heaps, limits, hashes, entries, groups, seen)
    if sums.shape[0] > 0:
        note_admitted(engine, requests, sums, ticket)
    engine.previous_start = engine.now
    engine.peak_units = max(engine.peak_units, limits.capacity_units - engine.free_units)
    return scheduled


@compiled
def send_batch(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    host: np.void,
    costs: np.ndarray,
    layout: np.void,
    draft_layout: np.void,
    uses: np.ndarray,
    stages: np.ndarray,
    groups: np.ndarray,
    place: int,
    prompt_tokens: int,
    decode_tokens: int,
    expert_tokens: int,
    rows: np.ndarray,
) -> None:
    """Send a scheduled batch through the stages: its cost, the times at which it passes them, and its row.

    ``expert_tokens``: tokens that each rank sends to the experts, in the mean, where ranks step together; else 0.
    """
    if engine.left_out > 0 and decode_tokens > 0:
        set_aside(engine, requests, heaps, limits, groups[stages[place].group])
    phase = DECODE if prompt_tokens == 0 else (MIXED if decode_tokens > 0 else PREFILL)
    gpu_us, drafts_us, chunks, decodes, sampled = cost_batch(
        engine, requests, limits, costs, layout, draft_layout, uses[phase], prompt_tokens, decode_tokens, expert_tokens
    )
    start_us, end_us, host_us = pass_stages(
        engine, limits, host, costs, layout, stages, chunks + decodes, prompt_tokens + decode_tokens, chunks, sampled,
        gpu_us, drafts_us,
    )  # fmt: skip
    if limits.tiers > 0:
        end_writes(engine, limits)
        wait_us = max(engine.loads_us - end_us, 0.0)
        end_us += wait_us
        stages[limits.stages - 1].free_us += wait_us
        stages[limits.stages - 1].idle_us += wait_us
    gpu_us += drafts_us
    stages[place].due_us = end_us
    kind = 1 if prompt_tokens > 0 else 0
    engine.steps += 1
    engine.prompt_steps += kind
    engine.prompt_tokens += prompt_tokens
    engine.gpu_us += gpu_us
    engine.host_us += host_us
    engine.step_kind_us[kind] += gpu_us
    if rows.shape[0] > 0:
        row = rows[engine.rows]
        row[START], row[END], row[HOST_TIME] = start_us, end_us, host_us
        row[STAGE_WAIT] = max(end_us - start_us - gpu_us - host_us, 0.0)
        row[PROMPTS], row[DECODES], row[RUNNING] = prompt_tokens, decode_tokens, engine.running
        row[WAITING] = engine.in_flight - engine.running
        row[UNITS] = limits.capacity_units - engine.free_units
        row[FOUND], row[LOOKED_UP], row[PREEMPTED] = engine.step_found, engine.step_looked_up, engine.step_preempted
        row[ENERGY] = engine.energy_j - engine.row_energy_j
        engine.row_energy_j = engine.energy_j
        engine.step_preempted = 0
        engine.rows += 1
    put_in_flight(engine, requests, heaps, limits, groups, stages[place], decode_tokens)


@compiled
def cost_batch(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    costs: np.ndarray,
    layout: np.void,
    draft_layout: np.void,
    weights: np.ndarray,
    prompt_tokens: int,
    decode_tokens: int,
    expert_tokens: int,
) -> tuple:
    """(GPU time, that of the drafts, chunks, decoding requests, sampled tokens) of a scheduled batch."""
    decodes = engine.decoding if decode_tokens > 0 else 0
    context = windowed = draft_windowed = 0.0
    if decodes > 0:
        context = float(engine.context_offset_sum + decodes * engine.clock)
        windowed, draft_windowed = float(engine.inside), float(engine.draft_inside)
    most = max(decodes, 1)
    gpu_us, chunks, sampled = cost_step(
        engine, requests, costs, layout, weights, prompt_tokens, decode_tokens, decodes, context / most,
        windowed / most,
    )  # fmt: skip
    gpu_us += cost_experts(engine, costs, layout, weights, expert_tokens, 1 if chunks > 0 else 0, 1)
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
            engine, requests, limits, costs, draft_layout, weights, prompt_tokens + decode_tokens, decodes,
            context / most, draft_windowed / most, sequences, all_context / share, all_windowed / share,
        )  # fmt: skip
    return gpu_us, drafts_us, chunks, decodes, sampled


@compiled
def pass_stages(
    engine: np.void,
    limits: np.void,
    host: np.void,
    costs: np.ndarray,
    layout: np.void,
    stages: np.ndarray,
    requests_in: int,
    tokens: int,
    prompts: int,
    sampled: int,
    gpu_us: float,
    drafts_us: float,
) -> tuple:
    """(start, end, exposed host time) of a batch that is formed now; each stage is busy until the batch leaves it.

    The host prepares batches in turn. The first stage computes the embedding, the last one logits and drafts, all but
    the first wait for a transfer; layers, launches and gaps between kernels are split by each stage's share of layers.
    """
    hidden_us, exposed_us, launch_us = host_times(requests_in, tokens, prompts, host)
    begin_us = max(engine.now, engine.prepared_us)
    engine.prepared_us = begin_us + (exposed_us - host.gap_us)
    last = limits.stages - 1
    embedding_us = costs[layout.embedding_at + tokens] if last > 0 else 0.0
    transfer_us = costs[layout.transfer_at + tokens] if last > 0 else 0.0
    logits_us = costs[layout.sampled_at + sampled]
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
        exposed_here_us += host.gap_us * stage.share + max(0.0, hidden_here_us - own_us)
        stage.idle_us += moment - stage.free_us
        stage.gpu_us += own_us
        host_us += exposed_here_us
        moment += exposed_here_us + own_us
        stage.free_us = moment
    return start_us, moment, host_us


@inlined
def put_in_flight(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    groups: np.ndarray,
    batch: np.void,
    decode_tokens: int,
) -> None:
    """Let a batch take its group along; count its chunks as computed, and note the prompts that end with it."""
    if decode_tokens > 0:
        engine.decode_steps += 1
        change_group(engine, groups, limits, batch)
    group = groups[batch.group]
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
            note_request(requests, heaps[group.group], group, r, 0)
        else:
            push_partial(engine, requests, r)  # it has tokens left to schedule
        request.chunk = 0
        r = following
