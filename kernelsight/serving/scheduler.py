"""The scheduler's rules: one token budget, running requests first, then the queue; preemption by recompute."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.batch import (
    forget_fresh,
    forget_partial,
    join,
    push_fresh,
    start_decoding,
    stop_decoding,
    tokens_of,
    units_ahead,
    units_held,
    unlink,
)
from kernelsight.serving.compiled import compiled
from kernelsight.serving.policy import (
    admission_room,
    begin_step,
    candidate,
    is_at_cap,
    is_refused,
    is_shut,
    note_no_room,
    partial_tokens,
    reset_ratio,
    seen_until,
    unfinished_prompts,
    units_to_reserve,
    waiting_tokens,
)
from kernelsight.serving.prefix import cache_chunk, cached_prefix, keep_own_only, keep_prefix, release, take_units
from kernelsight.serving.queue import return_to_front, take_head
from kernelsight.serving.records import MAX_UTILIZATION, NOBODY


@compiled
def first_chunk(needed: int, budget: int, limits: np.void) -> int:
    """Tokens of a prompt that this step may take."""
    if limits.long_prefill_token_threshold > 0:
        needed = min(needed, limits.long_prefill_token_threshold)
    return min(needed, budget)


@compiled
def preempt_newest(
    engine: np.void, requests: np.ndarray, limits: np.void, hashes: np.ndarray, entries: np.ndarray
) -> int:
    """Take the newest running request out: its blocks are free again, it goes to the front of the queue."""
    victim = engine.newest
    request = requests[victim]
    release(engine, hashes, entries, limits, victim, request, tokens_of(engine, request))
    if request.decoding:
        if request.fresh:
            forget_fresh(engine, requests, victim)
        else:
            request.last_token_us = engine.last_decode_end
        stop_decoding(engine, requests, limits, victim)
    else:
        forget_partial(engine, requests, victim)
    unlink(engine, requests, victim)
    request.computed = 0
    request.chunk = 0
    if request.resumed_us >= 0.0:
        request.recomputed_us += engine.now - request.resumed_us
        request.resumed_us = -1.0
    request.preempted_us = engine.now
    engine.step_preempted += 1
    return_to_front(engine, requests, victim)
    request.preemptions += 1
    engine.preempted += 1
    reset_ratio(engine, requests, limits)
    return victim


@compiled
def chunk_partials(engine: np.void, requests: np.ndarray, limits: np.void, budget: int) -> tuple:
    """Set the chunks of the partial requests, in their order; returns their (tokens, units)."""
    tokens = units = 0
    r = engine.partial
    while r >= 0:
        request = requests[r]
        request.chunk = first_chunk(request.known - request.computed, budget - tokens, limits)
        tokens += request.chunk
        units += units_held(request.computed + request.chunk, limits) - units_held(request.computed, limits)
        r = request.next_partial
    return tokens, units


@compiled
def partials_are_newest(engine: np.void, requests: np.ndarray) -> bool:
    """True when every partial request was admitted after every decoding one."""
    r = engine.newest
    for _ in range(engine.partial_count):
        if requests[r].decoding:
            return False
        r = requests[r].before
    return True


@compiled
def schedule_running(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    prompts_only: bool,
) -> tuple:
    """Give running requests their tokens and units; returns (prompt tokens, decode tokens, preempted).

    Where the order of admission does not matter and blocks suffice for all, nothing is looked at one by one.
    """
    decodes = 0 if prompts_only else engine.decoding
    if prompts_only or partials_are_newest(engine, requests):
        budget = 0 if engine.prompts_held else limits.max_num_batched_tokens - decodes
        tokens, units = chunk_partials(engine, requests, limits, budget)
        units += units_ahead(engine, requests, limits, 1) if decodes > 0 else 0
        if units <= engine.free_units:
            if limits.hash_tokens == 0:
                take_units(engine, entries, limits, units)
            else:
                take_in_order(engine, requests, limits, hashes, entries, decodes > 0)
            return tokens, decodes, False
    return schedule_one_by_one(engine, requests, heaps, limits, hashes, entries, prompts_only)


@compiled
def schedule_one_by_one(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    prompts_only: bool,
) -> tuple:
    """The same in order of admission, request by request, preempting the newest while blocks are short."""
    budget = limits.max_num_batched_tokens
    prompt_tokens = decode_tokens = skipped = 0
    preempted = False
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        request.chunk = 0
        if request.decoding and (prompts_only or budget == 0):
            skipped += 1
            r = request.after
            continue
        if engine.prompts_held and not request.decoding:
            r = request.after
            continue
        needed = 1 if request.decoding else first_chunk(request.known - request.computed, budget, limits)
        tokens = tokens_of(engine, request)
        extra = units_held(tokens + needed, limits) - units_held(tokens, limits)
        victim = NOBODY
        while extra > engine.free_units and victim != r:
            if engine.running == 1 and limits.hash_tokens > 0:
                # as after a preemption: others are looked at in the next step
                keep_own_only(engine, hashes, entries, limits, request, tokens)
                preempted = True
                break
            victim = preempt_newest(engine, requests, limits, hashes, entries)
            preempted = True
        if victim == r:
            break
        take_units(engine, entries, limits, extra)
        request.chunk = needed
        if not request.decoding:
            cache_chunk(engine, hashes, entries, limits, request)
        budget -= needed
        if request.decoding:
            decode_tokens += 1
        else:
            prompt_tokens += needed
        r = request.after
    if skipped > 0 and decode_tokens > 0:
        hold_back(engine, requests, heaps, limits)
    return prompt_tokens, decode_tokens, preempted


@compiled
def hold_back(engine: np.void, requests: np.ndarray, heaps: np.ndarray, limits: np.void) -> None:
    """Move decoding requests that got no token in this decode step one tick behind the clock."""
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        if request.decoding and request.chunk == 0:
            if not request.fresh:
                request.last_token_us = engine.last_decode_end
                push_fresh(engine, requests, r)
            stop_decoding(engine, requests, limits, r)
            # the step that begins now moves the clock on: this request stays where it is
            engine.clock += 1
            start_decoding(engine, requests, heaps, limits, r)
            engine.clock -= 1
            request.held = True
            engine.held += 1
            engine.held_tokens += request.computed
            engine.held_inside += min(request.computed, limits.window_tokens)
            engine.held_below += 1 if request.computed < limits.window_tokens else 0
        r = request.after


@compiled
def take_in_order(
    engine: np.void, requests: np.ndarray, limits: np.void, hashes: np.ndarray, entries: np.ndarray, decodes: bool
) -> None:
    """Take the units of decodes, then of each chunk; cached before the next one: that can turn blocks blank."""
    if decodes:
        take_units(engine, entries, limits, units_ahead(engine, requests, limits, 1))
    r = engine.partial
    while r >= 0:
        request = requests[r]
        units = units_held(request.computed + request.chunk, limits) - units_held(request.computed, limits)
        take_units(engine, entries, limits, units)
        cache_chunk(engine, hashes, entries, limits, request)
        r = request.next_partial


@compiled
def admission(request: np.void, hashes: np.ndarray, entries: np.ndarray, limits: np.void, budget: int) -> tuple:
    """(cached tokens, first chunk, tokens without a cut, units to take, cached units that nobody keeps yet)."""
    cached, unkept = cached_prefix(request, hashes, entries, limits)
    missing = request.known - cached
    chunk = first_chunk(missing, budget, limits)
    units = units_held(cached + chunk, limits) - units_held(cached, limits)
    return cached, chunk, first_chunk(missing, missing, limits), units, unkept


@compiled
def admit(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    horizon: float,
    prompt_tokens: int,
    decode_tokens: int,
) -> tuple:
    """Admit from the queue in order while budget, cap and blocks allow; returns (prompt tokens admitted, blocked).

    ``prompt_tokens``, ``decode_tokens``: what the step has already. ``blocked``: the head of the queue is there but
    cannot be admitted before a running request ends.
    """
    budget = limits.max_num_batched_tokens - prompt_tokens - decode_tokens
    empty = prompt_tokens + decode_tokens == 0
    admitted = unfinished = room = 0
    looked = False
    while budget > 0:
        if is_at_cap(engine, limits):
            engine.forming = False
            return admitted, True
        r = candidate(engine, requests, limits, horizon)
        if r < 0:
            engine.forming = False
            return admitted, is_shut(engine, limits)
        if not looked:
            looked = True
            room = admission_room(engine, requests, limits, decode_tokens > 0)
            unfinished = unfinished_prompts(engine, requests) if limits.max_num_partial_prefills > 0 else 0
        request = requests[r]
        cached, chunk, whole, units, unkept = admission(request, hashes, entries, limits, budget)
        # whole prompts only: one that does not fit waits, unless it would have the step for itself
        if not limits.chunked and chunk < whole and not (empty and admitted == 0):
            return admitted, True
        cut = cached + chunk < request.known
        if cut and limits.max_num_partial_prefills > 0 and unfinished >= limits.max_num_partial_prefills:
            return admitted, True
        needed = units_to_reserve(limits, request, cached, units) + unkept
        if is_refused(engine, limits, needed, room) or units + unkept > engine.free_units:
            note_no_room(engine, limits)
            return admitted, True
        take_head(engine, requests)
        keep_prefix(engine, hashes, entries, limits, request, cached)
        take_units(engine, entries, limits, units)
        request.computed = cached
        request.chunk = chunk
        cache_chunk(engine, hashes, entries, limits, request)
        # with nothing reserved, what is free has changed by more than what was needed where prefixes are cached
        room = engine.free_units if limits.capacity_policy == MAX_UTILIZATION else room - needed
        budget -= chunk
        admitted += chunk
        unfinished += 1 if cut else 0
        engine.joined += 1
        join(engine, requests, r)
        if request.scheduled_us < 0.0:
            request.scheduled_us = engine.now
            request.cached_tokens = cached
            engine.step_found += cached
            engine.step_looked_up += request.prompt
        else:
            request.requeued_us += engine.now - request.preempted_us
            request.resumed_us = engine.now
    return admitted, engine.running == limits.max_num_seqs


@compiled
def wants_prompts(
    engine: np.void, requests: np.ndarray, limits: np.void, hashes: np.ndarray, entries: np.ndarray, horizon: float
) -> bool:
    """Prefill-first engines take prompts when one is under way, or when the head of the queue can be admitted."""
    if engine.partial >= 0:
        return True
    r = candidate(engine, requests, limits, horizon)
    if r < 0 or is_at_cap(engine, limits):
        engine.forming = False
        return False
    if fits(engine, requests, limits, hashes, entries, r, 0):
        return True
    note_no_room(engine, limits)
    return False


@compiled
def fits(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    r: int,
    decode_tokens: int,
) -> bool:
    """Whether a request of the queue could be admitted beside ``decode_tokens``, before the step takes its units."""
    budget = limits.max_num_batched_tokens - decode_tokens
    cached, chunk, whole, units, unkept = admission(requests[r], hashes, entries, limits, budget)
    if chunk == 0 or (not limits.chunked and chunk < whole and decode_tokens > 0):
        return False
    needed = units_to_reserve(limits, requests[r], cached, units) + unkept
    room = admission_room(engine, requests, limits, False)
    return units + unkept <= engine.free_units and not is_refused(engine, limits, needed, room)


@compiled
def holds_prompts(
    engine: np.void, requests: np.ndarray, limits: np.void, hashes: np.ndarray, entries: np.ndarray, horizon: float
) -> bool:
    """Whether prompts wait in this step, beside requests that decode, for more of them; counts the steps they waited.

    They go when the step would have ``batch_wait_tokens`` tokens, or after ``batch_wait_timeout_iters`` steps.
    """
    if limits.batch_wait_timeout_iters == 0 or engine.decoding == 0:
        return False
    r = NOBODY if is_at_cap(engine, limits) else candidate(engine, requests, limits, horizon)
    if r >= 0 and not fits(engine, requests, limits, hashes, entries, r, engine.decoding):
        r = NOBODY
    if engine.partial < 0 and r < 0:
        return False
    tokens = engine.decoding + partial_tokens(engine, requests)
    if r >= 0:
        most = limits.max_num_seqs - engine.running
        until = seen_until(engine, limits, horizon)
        tokens += waiting_tokens(engine, requests, until, most, limits.batch_wait_tokens - tokens)
    if tokens >= limits.batch_wait_tokens or engine.waited_iters >= limits.batch_wait_timeout_iters:
        engine.waited_iters = 0
        return False
    engine.waited_iters += 1
    return True


@compiled
def schedule(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    horizon: float,
) -> tuple:
    """Fill one step; returns (prompt tokens, decode tokens, look again after this step, blocked)."""
    begin_step(engine, limits, horizon)
    if holds_prompts(engine, requests, limits, hashes, entries, horizon):
        return schedule_held(engine, requests, heaps, limits, hashes, entries)
    prompts_only = limits.prefill_first and wants_prompts(engine, requests, limits, hashes, entries, horizon)
    prompt_tokens, decode_tokens, preempted = schedule_running(
        engine, requests, heaps, limits, hashes, entries, prompts_only
    )
    if limits.prefill_first and not prompts_only:
        blocked = is_shut(engine, limits) or candidate(engine, requests, limits, horizon) >= 0
        return prompt_tokens, decode_tokens, preempted, blocked
    blocked = False
    if not preempted:
        admitted, blocked = admit(engine, requests, limits, hashes, entries, horizon, prompt_tokens, decode_tokens)
        prompt_tokens += admitted
    if prompts_only and prompt_tokens == 0:
        # the prompt under way gave its blocks back: decode instead, so that blocks become free
        prompt_tokens, decode_tokens, _ = schedule_running(engine, requests, heaps, limits, hashes, entries, False)
        return prompt_tokens, decode_tokens, True, True
    return prompt_tokens, decode_tokens, preempted, blocked


@compiled
def schedule_held(
    engine: np.void, requests: np.ndarray, heaps: np.ndarray, limits: np.void, hashes: np.ndarray, entries: np.ndarray
) -> tuple:
    """Fill a step that holds prompts back: decodes only; where the last of them gave way, the prompts under way."""
    engine.prompts_held = True
    prompt_tokens, decode_tokens, _ = schedule_running(engine, requests, heaps, limits, hashes, entries, False)
    if decode_tokens == 0:
        engine.prompts_held = False
        prompt_tokens, decode_tokens, _ = schedule_running(engine, requests, heaps, limits, hashes, entries, False)
    return prompt_tokens, decode_tokens, True, True
