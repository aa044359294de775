"""Engines with per-request progress: pipeline stages with several batches in flight, and speculative decoding.

As in vLLM V1 (``EngineCore.step_with_batch_queue``): whenever the oldest batch returns, new batches are formed until as
many are in flight as there are stages, or no request can be scheduled. Computed tokens advance when they are scheduled:
chunks of one prompt may be in several batches, but a request whose token has not returned has nothing to schedule.
TensorRT-LLM's micro-batches also skip requests in flight. A request preempted in flight still gets its token, and may
finish with it. With asynchronous scheduling a batch sees the requests that were visible when the previous batch was
formed, and the host prepares it while the first stage runs.

A batch passes the stages in order and waits for the previous batch to leave each one, so all its times are known when
it is formed. With speculative decoding (see ``drafts``) a request may get several tokens from a batch; it keeps the KV
blocks of rejected drafts for its next tokens. An engine without pipeline stages has one batch in flight.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.batch import forget_partial, make_ready, make_unready, push_partial, tokens_held, unlink
from kernelsight.serving.engine.compiled import compiled, inlined
from kernelsight.serving.engine.costs import host_times
from kernelsight.serving.engine.drafts import accepted_drafts, cost_drafts
from kernelsight.serving.engine.policy import received_until, reset_ratio_when_idle
from kernelsight.serving.engine.prefix import release
from kernelsight.serving.engine.queue import horizon_us, next_visible_us, queue_head, take
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
    note_finish,
    note_token,
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
    flights: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Form batches now, or when an idle engine sees its next request, and send them through the stages.

    ``stages``: STAGE records, shape [stages or more]; ``flights``: (request, known tokens, drafts) of the requests that
    get tokens from the batch in each slot of a ring, shape [stages or more, requests, 3]. ``sums``: see ``loop``.
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
            engine, requests, heaps, limits, hashes, entries, sums, idle, horizon
        )
        if prompt_tokens + decode_tokens == 0:
            break
        place = (engine.oldest_batch + engine.batches) % limits.stages
        send_batch(
            engine, requests, limits, host, costs, layout, draft_layout, uses, stages, place, prompt_tokens,
            decode_tokens, 0, rows,
        )  # fmt: skip
        put_in_flight(engine, requests, stages[place], flights[place], decode_tokens)
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
    sums: np.ndarray,
    idle: bool,
    horizon: float,
) -> tuple:
    """Schedule a batch now, from requests visible by ``horizon``; returns what ``schedule`` does."""
    if not limits.plain and (idle or engine.steps == 0):
        reset_ratio_when_idle(engine, limits)
    engine.step_found = engine.step_looked_up = 0
    seen, ticket = horizon if limits.plain else received_until(engine, limits, horizon), engine.admitted
    scheduled = schedule(engine, requests, heaps, limits, hashes, entries, seen)
    if sums.shape[0] > 0:
        note_admitted(engine, requests, sums, ticket)
    engine.previous_start = engine.now
    engine.peak_units = max(engine.peak_units, limits.capacity_units - engine.free_units)
    return scheduled


@compiled
def send_batch(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    host: np.void,
    costs: np.ndarray,
    layout: np.void,
    draft_layout: np.void,
    uses: np.ndarray,
    stages: np.ndarray,
    place: int,
    prompt_tokens: int,
    decode_tokens: int,
    expert_tokens: int,
    rows: np.ndarray,
) -> None:
    """Compute the cost of a batch and the times at which it passes the stages, and write its row.

    ``expert_tokens``: tokens that each rank sends to the experts, in the mean, where ranks step together; else 0.
    """
    decodes, context, windowed, draft_windowed = 0, 0.0, 0.0, 0.0
    ended, ended_context, ended_windowed = 0, 0.0, 0.0
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        if request.decoding and request.chunk > 0:
            decodes += 1
            context += request.computed
            windowed += min(request.computed, limits.window_tokens)
            draft_windowed += min(request.computed, limits.draft_window_tokens)
        elif request.chunk > 0 and request.computed + request.chunk == request.known:
            ended += 1
            ended_context += request.known
            ended_windowed += min(request.known, limits.draft_window_tokens)
        r = request.after
    tokens, sequences, most = prompt_tokens + decode_tokens, decodes + ended, max(decodes, 1)
    phase = DECODE if prompt_tokens == 0 else (MIXED if decode_tokens > 0 else PREFILL)
    gpu_us, chunks, sampled = cost_step(
        engine, requests, costs, layout, uses[phase], prompt_tokens, decode_tokens, decodes, context / most,
        windowed / most,
    )  # fmt: skip
    gpu_us += cost_experts(engine, costs, layout, uses[phase], expert_tokens, 1 if chunks > 0 else 0, 1)
    drafts_us = 0.0
    if limits.draft_model:
        share = max(sequences, 1)
        drafts_us = cost_drafts(
            engine, requests, limits, costs, draft_layout, uses[phase], tokens, decodes, context / most,
            draft_windowed / most, sequences, (context + ended_context) / share,
            (draft_windowed + ended_windowed) / share,
        )  # fmt: skip
    start_us, end_us, host_us = pass_stages(
        engine, limits, host, costs, layout, stages, chunks + decodes, tokens, chunks, sampled, gpu_us, drafts_us
    )
    if limits.tiers > 0:
        end_writes(engine, limits)
        wait_us = max(engine.loads_us - end_us, 0.0)
        end_us += wait_us
        stages[limits.stages - 1].free_us += wait_us
        stages[limits.stages - 1].idle_us += wait_us
    gpu_us += drafts_us
    stages[place].due_us = end_us
    engine.steps += 1
    engine.prompt_steps += 1 if prompt_tokens > 0 else 0
    engine.prompt_tokens += prompt_tokens
    engine.gpu_us += gpu_us
    engine.host_us += host_us
    engine.step_kind_us[1 if prompt_tokens > 0 else 0] += gpu_us
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
    engine: np.void, requests: np.ndarray, batch: np.void, flight: np.ndarray, decode_tokens: int
) -> None:
    """Count the batch's tokens as computed; list the receivers of its tokens, in order of admission."""
    if decode_tokens > 0:
        engine.clock += 1
    noted = 0
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        if request.chunk > 0:
            drafts = 0
            if request.decoding:
                make_unready(engine, request)
                drafts = request.chunk - 1
            request.computed += request.chunk
            request.chunk = 0
            if request.computed == request.known + drafts:
                request.all_in_flight = True
                flight[noted, 0], flight[noted, 1], flight[noted, 2] = r, request.known, drafts
                noted += 1
        elif request.decoding:
            # it is not in this batch: its context stays while the decode clock advances
            request.context_offset = request.computed - engine.clock
        r = request.after
    batch.tokens = noted
    keep_partial(engine, requests)


@inlined
def keep_partial(engine: np.void, requests: np.ndarray) -> None:
    """Keep the partly computed prompts that have tokens left to schedule, in their order."""
    r = engine.partial
    engine.partial = engine.last_partial = NOBODY
    engine.partial_count = 0
    while r >= 0:
        request = requests[r]
        following = request.next_partial
        if not request.all_in_flight:
            push_partial(engine, requests, r)
        r = following


@compiled
def end_batch(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    stages: np.ndarray,
    flights: np.ndarray,
    histogram: np.ndarray,
) -> None:
    """Process the return of the oldest batch: its requests get their tokens, and continue or finish."""
    engine.now = engine.due_us
    place = engine.oldest_batch
    for k in range(stages[place].tokens):
        r = flights[place, k, 0]
        # a request preempted in flight and recomputed takes its token from one of its two batches only
        if requests[r].known == flights[place, k, 1]:
            give_tokens(engine, requests, limits, hashes, entries, histogram, r, flights[place, k, 2])
    engine.oldest_batch = (place + 1) % limits.stages
    engine.batches -= 1
    engine.last_us = engine.now
    engine.underway = False


@compiled
def give_tokens(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    histogram: np.ndarray,
    r: int,
    drafts: int,
) -> None:
    """Give a request a token and its accepted drafts; a request preempted in flight gets them in the queue.

    They arrive together: one inter-token gap is counted, as a streaming client sees one chunk.
    """
    request = requests[r]
    if drafts > 0:
        accepted = 0
        # recomputed since and in flight again: it continues after the one token of that batch
        if not (request.all_in_flight and request.computed == request.known):
            accepted = accepted_drafts(r, request.known, drafts, limits.acceptance)
            if request.all_in_flight:
                request.reserved = max(request.reserved, request.computed)
                request.computed -= drafts - accepted
        engine.draft_tokens += drafts
        engine.accepted_tokens += accepted
        request.known = min(request.known + accepted, request.target - 1)
    note_token(engine, request, histogram)
    if request.known < request.target:
        if request.all_in_flight:
            make_ready(engine, request)
        return
    if request.computed == 0:
        # it is in the queue: a request in the batch has at least one computed token
        take(engine, requests, r)
        request.requeued_us += engine.now - request.preempted_us
    else:
        if not request.all_in_flight:
            forget_partial(engine, requests, r)
        request.all_in_flight = False
        release(engine, hashes, entries, limits, r, request, tokens_held(engine, request))
        unlink(engine, requests, r)
    note_finish(engine, request, r)
