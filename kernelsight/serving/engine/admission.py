"""Admission: moves waiting requests into the running batch, sizes their first chunk, and delays prefills."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.adapters import take_slot
from kernelsight.serving.engine.batch import join, push_fresh, push_partial, start_decoding, units_held
from kernelsight.serving.engine.policy import (
    admission_closed,
    admission_headroom,
    candidate,
    is_at_cap,
    is_refused,
    note_admission_failed,
    partial_tokens,
    seen_until,
    stays_refused,
    unfinished_prompts,
    units_to_reserve,
    waiting_tokens,
)
from kernelsight.serving.engine.prefix import cache_chunk, cached_prefix, keep_prefix, take_units
from kernelsight.serving.engine.queue import take
from kernelsight.serving.engine.records import MAX_UTILIZATION, NO_LIMIT, NOBODY
from kernelsight.serving.engine.state import Core
from kernelsight.serving.engine.tiers import forget_moved, load_blocks, tier_blocks, touch_prompt

UNKNOWN = NO_LIMIT  # headroom that is not computed yet


@compiled
def first_chunk(needed: int, budget: int, limits: np.void) -> int:
    """Return the prompt tokens that this step may compute for a request."""
    if limits.long_prefill_token_threshold > 0:
        needed = min(needed, limits.long_prefill_token_threshold)
    return min(needed, budget)


@compiled
def admission(core: Core, request: np.void, budget: int) -> tuple:
    """Return what the admission of a request takes: tokens and KV units.

    (cached tokens, tokens to load from KV tiers, first chunk, first chunk without a budget, units to allocate,
    unreferenced cached units). A prompt whose KV was transferred is cached except for its first generated token, and
    allocates all its units. A request that loads during the steps of others computes nothing until the load ends.
    """
    limits = core.limits
    if request.received > 0:
        return request.received, 0, min(1, budget), 1, units_held(request.known, limits), 0
    cached, unkept = cached_prefix(request, core.hashes, core.entries, limits)
    loaded = 0
    if limits.tiers > 0 and limits.hash_tokens > 0:
        loaded = (
            tier_blocks(request, core.hashes, core.entries, limits, cached // limits.block_size) * limits.block_size
        )
    missing = request.known - cached - loaded
    chunk, whole = first_chunk(missing, budget, limits), first_chunk(missing, missing, limits)
    if loaded > 0 and limits.load_ahead:
        chunk = whole = 0
    units = units_held(cached + loaded + chunk, limits) - cached // limits.block_size * limits.full_units
    return cached, loaded, chunk, whole, units, unkept


@compiled
def units_to_admit(limits: np.void, request: np.void, cached: int, units: int) -> int:
    """Return the KV units that must be free for an admission; ``units``: those that its first chunk allocates."""
    if not limits.whole_prompts or request.received > 0:
        return units
    return max(units, units_held(request.known, limits) - cached // limits.block_size * limits.full_units)


@compiled
def admit(core: Core, horizon: float, prompt_tokens: int, decode_tokens: int) -> tuple:
    """Admit waiting requests in queue order while token budget, max_num_seqs and KV blocks allow.

    ``prompt_tokens``, ``decode_tokens``: already scheduled in this step. Returns (prompt tokens, decode tokens) of the
    admitted requests and ``blocked``: the head of the queue cannot be admitted before a running request finishes. A
    request whose KV was transferred decodes in this step.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    budget = limits.max_num_batched_tokens - prompt_tokens - decode_tokens
    empty = prompt_tokens + decode_tokens == 0
    admitted = joined = unfinished = 0
    headroom = UNKNOWN
    while budget > 0:
        if is_at_cap(engine, limits):
            engine.forming = False
            return admitted, joined, True
        r = candidate(engine, requests, limits, horizon)
        if r < 0:
            engine.forming = False
            return admitted, joined, admission_closed(engine, limits)
        request = requests[r]
        cached, loaded, chunk, whole, units, unkept = admission(core, request, budget)
        engine.found = cached
        # without chunked prefill a prompt that exceeds the budget waits, unless the step would be empty otherwise
        if not limits.chunked and chunk < whole and not (empty and admitted + joined == 0):
            return admitted, joined, stays_refused(engine, limits)
        if not limits.plain:
            if headroom == UNKNOWN:
                headroom = admission_headroom(engine, requests, limits, decode_tokens > 0)
                unfinished = unfinished_prompts(engine, requests) if limits.max_num_partial_prefills > 0 else 0
            refused, headroom, unfinished = policies_refuse(
                engine, limits, request, cached, loaded + chunk, units, unkept, headroom, unfinished
            )
            if refused:
                return admitted, joined, stays_refused(engine, limits)
        if units_to_admit(limits, request, cached, units) + unkept > engine.free_units:
            note_admission_failed(engine, limits)
            return admitted, joined, stays_refused(engine, limits)
        budget -= chunk
        if request.received > 0:
            joined += chunk
        else:
            admitted += chunk
        join_batch(core, r, cached, loaded, chunk, units)
    return admitted, joined, engine.running == limits.max_num_seqs


@inlined
def join_batch(core: Core, r: int, cached: int, loaded: int, chunk: int, units: int) -> None:
    """Add an admitted request to the batch, with its prefix and first chunk (see ``admission``), or decoding."""
    engine, requests, limits, request = core.engine, core.requests, core.limits, core.requests[r]
    take(engine, requests, r)
    if limits.max_loras > 0 and request.adapter >= 0:
        take_slot(engine, limits, request)
    keep_prefix(core, request, cached)
    if limits.tiers > 0 and request.hash_count > 0:
        order_load(core, request, cached, loaded)
    request.computed = cached
    if loaded > 0:
        load_units = units_held(cached + loaded, limits) - cached // limits.block_size * limits.full_units
        take_units(core, load_units)
        units -= load_units
        request.chunk = loaded
        cache_chunk(core, request)
        request.computed = cached + loaded
    take_units(core, units)
    engine.joined += 1
    join(engine, requests, r)
    if request.received > 0:
        decode_received(core, r, chunk)
        return
    request.chunk = chunk
    cache_chunk(core, request)
    push_partial(engine, requests, r)
    note_admission(engine, limits, request, cached, loaded)


@compiled
def policies_refuse(
    engine: np.void,
    limits: np.void,
    request: np.void,
    cached: int,
    chunk: int,
    units: int,
    unkept: int,
    headroom: int,
    unfinished: int,
) -> tuple:
    """Return (refused by a policy, headroom, unfinished prompts) after the admission; ``chunk``: with loaded tokens."""
    if cached + chunk < request.known:
        if 0 < limits.max_num_partial_prefills <= unfinished:
            return True, headroom, unfinished
        unfinished += 1
    needed = units_to_reserve(limits, request, cached, units) + unkept
    if is_refused(engine, limits, needed, headroom):
        note_admission_failed(engine, limits)
        return True, headroom, unfinished
    # without reservations headroom is recomputed: a prefix-cache hit frees or takes more than ``needed``
    return False, UNKNOWN if limits.capacity_policy == MAX_UTILIZATION else headroom - needed, unfinished


@inlined
def decode_received(core: Core, r: int, chunk: int) -> None:
    """Start decoding, in this step, a request whose KV was transferred."""
    engine, requests, limits = core.engine, core.requests, core.limits
    request = requests[r]
    request.received = 0
    if limits.per_request_progress:
        request.chunk = chunk
    start_decoding(engine, requests, core.heaps[engine.group], limits, r)
    push_fresh(engine, requests, r)


@compiled
def order_load(core: Core, request: np.void, cached: int, loaded: int) -> None:
    """Queue the load of a prompt's tokens from KV tiers, before blocks are evicted for it."""
    engine, limits = core.engine, core.limits
    blocks = loaded // limits.block_size
    if blocks == 0:
        touch_prompt(core, request, cached // limits.block_size)
        return
    end_us = load_blocks(core, request, cached // limits.block_size, blocks)
    forget_moved(core, request, cached // limits.block_size, blocks)
    if request.scheduled_us < 0.0:
        request.load_us = max(end_us - engine.now, 0.0)
    if not limits.load_ahead:
        engine.loads_us = max(engine.loads_us, end_us)
        return
    request.loaded_us = max(end_us, engine.now)
    engine.loading += 1


@inlined
def note_admission(engine: np.void, limits: np.void, request: np.void, cached: int, loaded: int) -> None:
    """Record the first admission and its prefix-cache hit; after a preemption, the time spent waiting again."""
    if request.scheduled_us < 0.0:
        request.scheduled_us = engine.now
        request.cached_tokens = cached + loaded
        request.tier_tokens = loaded
        for t in range(limits.tiers if loaded > 0 else 0):
            engine.tier_hit[t] += engine.load_blocks[t]
        engine.step_found += cached + loaded
        engine.step_looked_up += request.prompt
    else:
        request.requeued_us += engine.now - request.preempted_us
        request.resumed_us = engine.now


@compiled
def shrinks_uncached(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> bool:
    """Whether the refused head of the queue may fit before a request finishes, as its cached blocks are evicted.

    A prompt longer than the budget is cut where the budget ends, which is earlier without its cached tokens.
    """
    if limits.hash_tokens == 0 or engine.found == 0:
        return False
    r = candidate(engine, requests, limits, horizon)
    return r >= 0 and requests[r].known > first_chunk(requests[r].known, limits.max_num_batched_tokens, limits)


@compiled
def prefill_next(core: Core, horizon: float) -> bool:
    """Whether a prefill-first engine (SGLang) computes prompts next: one is partly computed, or the queue head fits."""
    engine, requests, limits = core.engine, core.requests, core.limits
    if engine.partial >= 0:
        return True
    r = candidate(engine, requests, limits, horizon)
    if r < 0 or is_at_cap(engine, limits):
        engine.forming = False
        return False
    if fits(core, r, 0):
        return True
    note_admission_failed(engine, limits)
    return False


@compiled
def fits(core: Core, r: int, decode_tokens: int) -> bool:
    """Whether a waiting request could be admitted beside ``decode_tokens``, before the step allocates its units."""
    engine, requests, limits = core.engine, core.requests, core.limits
    budget = limits.max_num_batched_tokens - decode_tokens
    cached, _, chunk, whole, units, unkept = admission(core, requests[r], budget)
    engine.found = cached
    if chunk == 0 or (not limits.chunked and chunk < whole and decode_tokens > 0):
        return False
    needed = units_to_reserve(limits, requests[r], cached, units) + unkept
    headroom = admission_headroom(engine, requests, limits, False)
    enough = units_to_admit(limits, requests[r], cached, units) + unkept <= engine.free_units
    return enough and not is_refused(engine, limits, needed, headroom)


@compiled
def next_prompt(core: Core, horizon: float) -> int:
    """Return the queued request that a step with all decodes could admit; -1: none."""
    engine, requests, limits = core.engine, core.requests, core.limits
    r = NOBODY if is_at_cap(engine, limits) else candidate(engine, requests, limits, horizon)
    if r >= 0 and not fits(core, r, engine.decoding * (1 + limits.drafts)):
        return NOBODY
    return r


@compiled
def delay_prefills(core: Core, horizon: float) -> bool:
    """Whether this step decodes only, so that prompts batch up (TensorRT-LLM batch wait); counts the steps of delay.

    Prompts run when the step would have ``batch_wait_tokens`` tokens, or after ``batch_wait_timeout_iters`` steps.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    if limits.batch_wait_timeout_iters == 0 or engine.decoding == 0:
        return False
    decode_tokens = engine.decoding * (1 + limits.drafts)
    r = next_prompt(core, horizon)
    if engine.partial < 0 and r < 0:
        return False
    tokens = decode_tokens + partial_tokens(engine, requests)
    if r >= 0:
        most = limits.max_num_seqs - engine.running
        until = seen_until(engine, limits, horizon)
        tokens += waiting_tokens(engine, requests, until, most, limits.batch_wait_tokens - tokens)
    if tokens >= limits.batch_wait_tokens or engine.waited_iters >= limits.batch_wait_timeout_iters:
        engine.waited_iters = 0
        return False
    engine.waited_iters += 1
    return True
