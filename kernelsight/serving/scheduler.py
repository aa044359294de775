"""The scheduler's rules: one token budget, running requests first, then the queue; preemption by recompute."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.admission import admit, first_chunk, holds_prompts, wants_prompts
from kernelsight.serving.batch import (
    forget_fresh,
    forget_partial,
    push_fresh,
    set_out,
    start_decoding,
    stop_decoding,
    tokens_held,
    tokens_of,
    units_ahead,
    units_ahead_by_request,
    units_held,
    unlink,
)
from kernelsight.serving.compiled import compiled, inlined
from kernelsight.serving.policy import begin_step, candidate, is_shut, lowest_priority, reset_ratio, stays_refused
from kernelsight.serving.prefix import cache_chunk, keep_own_only, release, take_units
from kernelsight.serving.queue import requeue
from kernelsight.serving.records import NOBODY


@compiled
def preempt(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    victim: int,
    scheduled: int,
) -> None:
    """Take a running request out: its blocks are free again, it goes back to the queue.

    ``scheduled``: tokens that it has in this step already, whose blocks go as well.
    """
    request = requests[victim]
    tokens = max(tokens_of(engine, request) + scheduled, request.reserved)
    release(engine, hashes, entries, limits, victim, request, tokens)
    if request.away:
        request.away = False
    elif request.decoding and limits.one_by_one:
        set_out(engine, request)
    elif request.decoding:
        if request.fresh:
            forget_fresh(engine, requests, victim)
        else:
            request.last_token_us = engine.last_decode_end
        stop_decoding(engine, requests, limits, victim)
    else:
        forget_partial(engine, requests, victim)
    unlink(engine, requests, victim)
    request.computed = request.reserved = 0
    request.chunk = 0
    if request.resumed_us >= 0.0:
        request.recomputed_us += engine.now - request.resumed_us
        request.resumed_us = -1.0
    request.preempted_us = engine.now
    engine.step_preempted += 1
    requeue(engine, requests, limits, victim)
    request.preemptions += 1
    engine.preempted += 1
    reset_ratio(engine, requests, limits)


@compiled
def retract(engine: np.void, requests: np.ndarray, limits: np.void, hashes: np.ndarray, entries: np.ndarray) -> bool:
    """Preempt decoding requests until the next tokens of all others have units, or one is left; True: some went.

    SGLang (``ScheduleBatch.retract_decode``): the one with the fewest generated tokens, of those the one with the
    longest prompt, of those the last that was admitted.
    """
    preempted = False
    steps = 1 + limits.drafts
    if limits.by_priority:
        return False
    while engine.decoding > 1 and units_ahead_by_request(engine, requests, limits, steps) > engine.free_units:
        victim, r = NOBODY, engine.oldest
        fewest = 0
        while r >= 0:
            request = requests[r]
            if request.decoding:
                generated = tokens_of(engine, request) + 1 - request.prompt
                if (
                    victim < 0
                    or generated < fewest
                    or (generated == fewest and request.prompt >= requests[victim].prompt)
                ):
                    victim, fewest = r, generated
            r = request.after
        preempt(engine, requests, limits, hashes, entries, victim, 0)
        preempted = True
    return preempted


@compiled
def make_room(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    r: int,
    units: int,
) -> tuple:
    """Preempt the newest, or by priority the last, until ``units`` are free for a request, which may go itself.

    Returns (whether it went, prompt tokens and decode tokens of this step that others give back).
    """
    prompts = decodes = 0
    while units > engine.free_units:
        if engine.running == 1 and limits.hash_tokens > 0:
            # as after a preemption: others are looked at in the next step
            keep_own_only(engine, hashes, entries, limits, requests[r], tokens_held(engine, requests[r]))
            break
        victim, scheduled = engine.newest, 0
        if limits.by_priority:
            victim = lowest_priority(engine, requests)
            scheduled = requests[victim].chunk
            decodes += scheduled if requests[victim].decoding else 0
            prompts += 0 if requests[victim].decoding else scheduled
        preempt(engine, requests, limits, hashes, entries, victim, scheduled)
        if victim == r:
            return True, prompts, decodes
    return False, prompts, decodes


@inlined
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


@inlined
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

    Where the order of admission does not matter and blocks suffice for all, nothing is looked at one by one; with
    pipeline stages requests are in flight beside those that decode, with drafts each is as far as its own were
    accepted, and all are.
    """
    if limits.fewest_generated and not prompts_only and retract(engine, requests, limits, hashes, entries):
        tokens, decodes, _ = schedule_one_by_one(engine, requests, heaps, limits, hashes, entries, False)
        return tokens, decodes, True
    decodes = 0 if prompts_only else engine.decoding
    if not limits.one_by_one and (prompts_only or partials_are_newest(engine, requests)):
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
    """The same in order of admission, request by request, preempting others while blocks are short.

    A request that gives way itself leaves those behind it their turn.
    """
    budget = limits.max_num_batched_tokens
    prompt_tokens = decode_tokens = skipped = 0
    preempted = False
    if limits.by_priority:
        forget_chunks(engine, requests)
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        request.chunk = 0
        if request.away:
            r = request.after
            continue
        if request.decoding and (prompts_only or budget == 0):
            skipped += 1
            r = request.after
            continue
        if engine.prompts_held and not request.decoding:
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
            gone, prompts, decodes = make_room(engine, requests, limits, hashes, entries, r, extra)
            budget += prompts + decodes
            prompt_tokens -= prompts
            decode_tokens -= decodes
            if gone:
                r = request.after
                continue
        take_units(engine, entries, limits, extra)
        request.chunk = needed
        if not request.decoding:
            cache_chunk(engine, hashes, entries, limits, request)
        budget -= needed
        if request.decoding:
            decode_tokens += needed
        else:
            prompt_tokens += needed
        r = request.after
    if skipped > 0 and decode_tokens > 0 and not limits.one_by_one:
        hold_back(engine, requests, heaps, limits)
    return prompt_tokens, decode_tokens, preempted


@compiled
def forget_chunks(engine: np.void, requests: np.ndarray) -> None:
    """Nobody has tokens in this step yet."""
    r = engine.oldest
    while r >= 0:
        requests[r].chunk = 0
        r = requests[r].after


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


@inlined
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
    if not limits.plain:
        begin_step(engine, limits, horizon)
        if holds_prompts(engine, requests, limits, hashes, entries, horizon):
            return schedule_held(engine, requests, heaps, limits, hashes, entries)
    prompts_only = limits.prefill_first and wants_prompts(engine, requests, limits, hashes, entries, horizon)
    prompt_tokens, decode_tokens, preempted = schedule_running(
        engine, requests, heaps, limits, hashes, entries, prompts_only
    )
    if limits.prefill_first and not prompts_only:
        blocked = candidate(engine, requests, limits, horizon) >= 0 and stays_refused(engine, limits)
        blocked = blocked or is_shut(engine, limits)
        return prompt_tokens, decode_tokens, preempted, blocked
    blocked = False
    if not preempted:
        admitted, joined, blocked = admit(
            engine, requests, heaps, limits, hashes, entries, horizon, prompt_tokens, decode_tokens
        )
        prompt_tokens += admitted
        decode_tokens += joined
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
