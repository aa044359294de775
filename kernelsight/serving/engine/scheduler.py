"""The scheduler of a step, as vLLM V1: one token budget, running requests first, then the waiting queue; preemption."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.admission import admit, delay_prefills, first_chunk, prefill_next
from kernelsight.serving.engine.batch import (
    chunk_must_return,
    is_in_flight,
    is_ready,
    push_fresh,
    start_decoding,
    stop_decoding,
    tokens_held,
    tokens_of,
    units_held,
    units_next,
)
from kernelsight.serving.engine.policy import admission_closed, candidate, form_static_batch, stays_refused
from kernelsight.serving.engine.preemption import preempt_until_free, retract
from kernelsight.serving.engine.prefix import cache_chunk, take_units
from kernelsight.serving.engine.queue import horizon_us, queue_head
from kernelsight.serving.engine.state import Core
from kernelsight.serving.engine.tiers import is_loading


@inlined
def chunk_partials(engine: np.void, requests: np.ndarray, limits: np.void, budget: int) -> tuple:
    """Set the chunks of partly computed prompts, in order of admission; return their (tokens, KV units)."""
    tokens = units = 0
    r = engine.partial
    while r >= 0:
        request = requests[r]
        missing = request.known - request.computed
        if engine.loading > 0 and is_loading(engine, request, horizon_us(engine, limits)):
            missing = 0
        if chunk_must_return(engine, request, limits):
            missing = 0
        request.chunk = first_chunk(missing, budget - tokens, limits)
        tokens += request.chunk
        units += units_held(request.computed + request.chunk, limits) - units_held(request.computed, limits)
        r = request.next_partial
    return tokens, units


@inlined
def partials_are_newest(engine: np.void, requests: np.ndarray) -> bool:
    """Whether every partly computed prompt was admitted after every request that decodes next."""
    r, partials = engine.newest, engine.partial_count
    while partials > 0:
        if is_ready(engine, requests[r]):
            return False
        partials -= 0 if is_in_flight(engine, requests[r]) else 1
        r = requests[r].before
    return True


@compiled
def schedule_running(core: Core, prompts_only: bool) -> tuple:
    """Schedule the running requests and allocate their units; return (prompt tokens, decode tokens, preempted).

    If the order of admission does not matter and budget and blocks suffice for all, the batch is scheduled as a whole,
    otherwise request by request.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    forced = limits.fewest_generated and not prompts_only
    if forced and retract(core):
        tokens, decodes, _ = schedule_in_order(core, False)
        return tokens, decodes, True
    decodes = 0 if prompts_only else engine.decoding * (1 + limits.drafts)
    all_decode = decodes <= limits.max_num_batched_tokens and engine.near_end == 0
    if prompts_only or (all_decode and partials_are_newest(engine, requests)):
        budget = 0 if engine.prefills_delayed else limits.max_num_batched_tokens - decodes
        tokens, units = chunk_partials(engine, requests, limits, budget)
        units += units_next(engine, requests, limits) if decodes > 0 else 0
        if units <= engine.free_units:
            engine.left_out = 0
            if limits.hash_tokens == 0:
                take_units(core, units)
            else:
                take_in_order(core, decodes > 0)
            return tokens, decodes, False
    return schedule_in_order(core, prompts_only)


@compiled
def schedule_in_order(core: Core, prompts_only: bool) -> tuple:
    """Schedule running requests one at a time in order of admission, preempting others while blocks are short.

    After a request that preempts itself, the next ones are still scheduled.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    budget = limits.max_num_batched_tokens
    prompt_tokens = decode_tokens = skipped = 0
    preempted = False
    if limits.by_priority:
        forget_chunks(engine, requests)
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        if is_in_flight(engine, request):
            r = request.after
            continue
        request.chunk = 0
        if request.decoding and (prompts_only or budget == 0):
            skipped += 1
            r = request.after
            continue
        if not request.decoding and (
            engine.prefills_delayed
            or chunk_must_return(engine, request, limits)
            or (engine.loading > 0 and is_loading(engine, request, horizon_us(engine, limits)))
        ):
            r = request.after
            continue
        tokens, held = tokens_of(engine, request), tokens_held(engine, request)
        if request.decoding:
            needed = min(1 + limits.drafts, budget, limits.max_model_len - 1 - tokens)
        else:
            needed = first_chunk(request.known - request.computed, budget, limits)
        extra = units_held(max(tokens + needed, held), limits) - units_held(held, limits)
        if extra > engine.free_units:
            preempted = True
            gone, prompts, decodes = preempt_until_free(core, r, extra)
            budget += prompts + decodes
            prompt_tokens -= prompts
            decode_tokens -= decodes
            if gone:
                r = request.after
                continue
        take_units(core, extra)
        request.chunk = needed
        if not request.decoding:
            cache_chunk(core, request)
        budget -= needed
        if request.decoding:
            decode_tokens += needed
        else:
            prompt_tokens += needed
        r = request.after
    if limits.per_request_progress:
        engine.left_out = skipped
    elif skipped > 0 and decode_tokens > 0:
        skip_decodes(core)
    return prompt_tokens, decode_tokens, preempted


@compiled
def forget_chunks(engine: np.void, requests: np.ndarray) -> None:
    """Clear the scheduled tokens of all running requests that are not in flight."""
    r = engine.oldest
    while r >= 0:
        if not is_in_flight(engine, requests[r]):
            requests[r].chunk = 0
        r = requests[r].after


@compiled
def skip_decodes(core: Core) -> None:
    """Keep the context of decoding requests without a token in this step while the decode clock advances."""
    engine, requests, limits = core.engine, core.requests, core.limits
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        if request.decoding and request.chunk == 0:
            if not request.fresh:
                request.last_token_us = engine.last_decode_end
                push_fresh(engine, requests, r)
            stop_decoding(engine, requests, limits, r)
            # the step that begins now advances the clock, but not this request
            engine.clock += 1
            start_decoding(engine, requests, core.heaps[engine.group], limits, r)
            engine.clock -= 1
            request.skipped = True
            engine.skipped += 1
            engine.skipped_tokens += request.computed
            engine.skipped_inside += min(request.computed, limits.window_tokens)
            engine.skipped_below += 1 if request.computed < limits.window_tokens else 0
        r = request.after


@compiled
def take_in_order(core: Core, decodes: bool) -> None:
    """Allocate the units of decodes, then of each chunk; a chunk is cached before the next, which can free blocks."""
    engine, requests, limits = core.engine, core.requests, core.limits
    if decodes:
        take_units(core, units_next(engine, requests, limits))
    r = engine.partial
    while r >= 0:
        request = requests[r]
        units = units_held(request.computed + request.chunk, limits) - units_held(request.computed, limits)
        take_units(core, units)
        cache_chunk(core, request)
        r = request.next_partial


@compiled
def schedule(core: Core, horizon: float) -> tuple:
    """Schedule one step; return (prompt tokens, decode tokens, whether to schedule the next step anew, blocked)."""
    engine, requests, limits = core.engine, core.requests, core.limits
    if not limits.plain:
        form_static_batch(engine, limits, horizon)
        if engine.prefills_held or delay_prefills(core, horizon):
            return schedule_decodes_only(core)
    prompts_only = limits.prefill_first and prefill_next(core, horizon)
    prompt_tokens, decode_tokens, preempted = schedule_running(core, prompts_only)
    if limits.prefill_first and not prompts_only:
        blocked = candidate(engine, requests, limits, horizon) >= 0 and stays_refused(engine, limits)
        blocked = blocked or admission_closed(engine, limits)
        return prompt_tokens, decode_tokens, preempted, blocked
    blocked = False
    if not preempted:
        admitted, joined, blocked = admit(core, horizon, prompt_tokens, decode_tokens)
        prompt_tokens += admitted
        decode_tokens += joined
        if limits.prefill_schedule_interval > 1:
            engine.prompts_left = queue_head(engine, requests, limits, horizon) >= 0
    if prompts_only and prompt_tokens == 0:
        # the partly computed prompt was preempted: decode instead, so that blocks become free
        prompt_tokens, decode_tokens, _ = schedule_running(core, False)
        return prompt_tokens, decode_tokens, True, True
    return prompt_tokens, decode_tokens, preempted, blocked


@compiled
def schedule_decodes_only(core: Core) -> tuple:
    """Schedule a step without prompts; if no decode is left after preemptions, the partly computed prompts run."""
    core.engine.prefills_delayed = True
    prompt_tokens, decode_tokens, _ = schedule_running(core, False)
    if decode_tokens == 0:
        core.engine.prefills_delayed = False
        prompt_tokens, decode_tokens, _ = schedule_running(core, False)
    return prompt_tokens, decode_tokens, True, True
