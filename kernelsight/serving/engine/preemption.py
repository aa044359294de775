"""Preemption by recomputation: a running request frees its KV blocks and returns to the queue; and cancellation.

A request is cancelled between two steps, as vLLM's ``Scheduler.finish_requests`` does: its KV blocks are free for the
next step, and a step that is underway keeps its requests.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, entry, inlined
from kernelsight.serving.engine.batch import (
    forget_fresh,
    forget_partial,
    is_in_flight,
    is_ready,
    stop_decoding,
    tokens_held,
    tokens_of,
    units_next,
    unlink,
)
from kernelsight.serving.engine.groups import leave_flight
from kernelsight.serving.engine.policy import lowest_priority, reset_ratio
from kernelsight.serving.engine.prefix import keep_own_only, release
from kernelsight.serving.engine.queue import requeue, take
from kernelsight.serving.engine.records import NOBODY
from kernelsight.serving.engine.state import Core, Scenario, core_of


@entry
def cancel(r: int, *arrays: np.ndarray) -> bool:
    """Cancel request ``r``, which was sent and has not ended; return False while it is in a step that is underway.

    ``arrays``: the fields of a ``Scenario``, in order.
    """
    scenario = Scenario(*arrays)
    request, client = scenario.requests[r], scenario.clients[0]
    i = request.replica
    engine = scenario.engines[i]
    # a request in the batch has computed tokens, or a chunk in the step that is underway; one in the queue has neither
    running = request.decoding or request.computed > 0 or request.chunk > 0
    if is_in_flight(engine, request) or (running and engine.underway and not scenario.limits[i].stages > 1):
        return False
    if running:
        leave_batch(core_of(scenario, i), r, 0)
    else:
        take(engine, scenario.requests, r)
    request.known = 0  # a batch in flight holds no token for it any more
    engine.in_flight -= 1
    client.in_flight -= 1
    client.ended += 1
    return True


@inlined
def leave_batch(core: Core, victim: int, scheduled: int) -> None:
    """Remove a running request from the batch before it has finished, and free its blocks.

    ``scheduled``: its tokens in this step, whose blocks are freed as well.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    request = requests[victim]
    tokens = max(tokens_of(engine, request) + scheduled, request.reserved)
    release(core, victim, tokens)
    if request.all_in_flight:
        request.all_in_flight = False
    elif request.decoding:
        if request.fresh:
            forget_fresh(engine, requests, victim)
        else:
            request.last_token_us = engine.last_decode_end
        stop_decoding(engine, requests, limits, victim)
    else:
        forget_partial(engine, requests, victim)
    if request.loaded_us > 0.0:
        request.loaded_us = 0.0
        engine.loading -= 1
    unlink(engine, requests, victim)
    request.computed = request.reserved = 0
    request.chunk = 0


@compiled
def preempt(core: Core, victim: int, scheduled: int) -> None:
    """Preempt a running request: free its blocks and put it back in the queue; ``scheduled``: see ``leave_batch``."""
    engine, requests, limits = core.engine, core.requests, core.limits
    request = requests[victim]
    if request.decoding and not is_ready(engine, request):
        leave_flight(core, victim)
    leave_batch(core, victim, scheduled)
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
def retract(core: Core) -> bool:
    """Preempt decoding requests until the next tokens of the others fit, or one is left; return whether any was.

    SGLang (``ScheduleBatch.retract_decode``): the one with the fewest generated tokens first, of those the one with the
    longest prompt, of those the last admitted.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    preempted = False
    if limits.by_priority:
        return False
    while engine.decoding > 1 and units_next(engine, requests, limits) > engine.free_units:
        victim, r = NOBODY, engine.oldest
        fewest = 0
        while r >= 0:
            request = requests[r]
            if is_ready(engine, request):
                generated = tokens_of(engine, request) + 1 - request.prompt
                if (
                    victim < 0
                    or generated < fewest
                    or (generated == fewest and request.prompt >= requests[victim].prompt)
                ):
                    victim, fewest = r, generated
            r = request.after
        preempt(core, victim, 0)
        preempted = True
    return preempted


@compiled
def preempt_until_free(core: Core, r: int, units: int) -> tuple:
    """Preempt the newest, or the lowest-priority, request until ``units`` are free for request ``r``.

    Returns (whether ``r`` itself was preempted, prompt tokens and decode tokens that leave this step with others).
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    prompts = decodes = 0
    while units > engine.free_units:
        if engine.running == 1 and limits.hash_tokens > 0:
            # as after a preemption, no request is admitted in this step
            keep_own_only(core, requests[r], tokens_held(engine, requests[r]))
            break
        victim, scheduled = engine.newest, 0
        if limits.by_priority:
            victim = lowest_priority(engine, requests)
            scheduled = 0 if is_in_flight(engine, requests[victim]) else requests[victim].chunk
            decodes += scheduled if requests[victim].decoding else 0
            prompts += 0 if requests[victim].decoding else scheduled
        preempt(core, victim, scheduled)
        if victim == r:
            return True, prompts, decodes
    return False, prompts, decodes
