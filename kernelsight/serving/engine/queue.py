"""The waiting queue of one engine: its order, which requests are visible to the scheduler, and its head."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.adapters import has_slot
from kernelsight.serving.engine.batch import units_held
from kernelsight.serving.engine.records import FOREVER, NO_MEMORY, NOBODY, OK, TOO_LONG
from kernelsight.serving.engine.state import Scenario


@inlined
def rejection_reason(request: np.void, target: int, limits: np.void) -> int:
    """Return why the engine rejects a request of up to ``target`` tokens; OK: it does not."""
    if target > limits.max_model_len or (not limits.chunked and request.prompt > limits.max_num_batched_tokens):
        return TOO_LONG
    most = min(target - 1 + limits.drafts, limits.max_model_len - 1)
    return NO_MEMORY if units_held(most, limits) > limits.capacity_units else OK


@inlined
def horizon_us(engine: np.void, limits: np.void) -> float:
    """Return the visibility horizon: requests visible by this time can be in the step that begins now.

    With asynchronous scheduling a step is prepared when the previous one begins, or ``batch_wait_us`` later. An engine
    in which nothing runs or is in flight has no previous step: its horizon is now.
    """
    if not limits.asynchronous:
        return engine.now
    seen_us = engine.previous_start + limits.batch_wait_us
    return seen_us if engine.running > 0 or engine.batches > 0 else min(seen_us, engine.now)


@compiled
def comes_first(requests: np.ndarray, r: int, other: int) -> bool:
    """Whether a request precedes another in priority order: lower number, then earlier time of sending."""
    request, than = requests[r], requests[other]
    if request.priority != than.priority:
        return request.priority < than.priority
    return request.sent_us < than.sent_us or (request.sent_us == than.sent_us and r < other)


@inlined
def enqueue(engine: np.void, requests: np.ndarray, limits: np.void, r: int) -> None:
    """Insert a request in order of visibility, or of priority."""
    requests[r].next_waiting = NOBODY
    if engine.first_waiting < 0:
        engine.first_waiting = engine.last_waiting = r
    elif not limits.by_priority or comes_first(requests, engine.last_waiting, r):
        requests[engine.last_waiting].next_waiting = r
        engine.last_waiting = r
    else:
        previous, following = NOBODY, engine.first_waiting
        while comes_first(requests, following, r):
            previous, following = following, requests[following].next_waiting
        requests[r].next_waiting = following
        if previous < 0:
            engine.first_waiting = r
        else:
            requests[previous].next_waiting = r


@compiled
def requeue(engine: np.void, requests: np.ndarray, limits: np.void, r: int) -> None:
    """Insert a preempted request at the head of the queue, or by priority; it is visible at once.

    SGLang (``fewest_generated``) inserts it behind all received requests.
    """
    requests[r].visible_us = -FOREVER
    if limits.by_priority:
        enqueue(engine, requests, limits, r)
        return
    if limits.fewest_generated:
        seen_us = engine.received_us if limits.scheduler_recv_interval > 1 else horizon_us(engine, limits)
        insert_behind(engine, requests, r, seen_us)
        return
    requests[r].next_waiting = engine.first_waiting
    if engine.first_waiting < 0:
        engine.last_waiting = r
    engine.first_waiting = r


@compiled
def insert_behind(engine: np.void, requests: np.ndarray, r: int, seen_us: float) -> None:
    """Insert a request behind those that were visible by ``seen_us``."""
    previous, following = NOBODY, engine.first_waiting
    while following >= 0 and requests[following].visible_us <= seen_us:
        previous, following = following, requests[following].next_waiting
    requests[r].next_waiting = following
    if previous < 0:
        engine.first_waiting = r
    else:
        requests[previous].next_waiting = r
    if following < 0:
        engine.last_waiting = r


@inlined
def queue_head(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> int:
    """Return the next request to admit, of those visible at ``horizon``; -1: none."""
    if not limits.plain and (limits.by_priority or limits.max_long_partial_prefills > 0 or limits.max_loras > 0):
        return first_allowed(engine, requests, limits, horizon)
    head = engine.first_waiting
    return head if head >= 0 and requests[head].visible_us <= horizon else NOBODY


@compiled
def first_allowed(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> int:
    """Return the first visible request that policies let run; -1: none.

    Passed over are long prompts while max_long_partial_prefills are in progress, and those without a slot for their
    adapter, unless these hold back the others.
    """
    no_long = limits.max_long_partial_prefills > 0 and long_prompts(engine, requests, limits) >= (
        limits.max_long_partial_prefills
    )
    r = engine.first_waiting
    while r >= 0:
        allowed = not no_long or requests[r].known - requests[r].received <= limits.long_prefill_token_threshold
        if allowed and requests[r].visible_us <= horizon:
            if has_slot(engine, limits, requests[r]):
                return r
            if limits.adapter_head_waits:
                return NOBODY
        r = requests[r].next_waiting
    return NOBODY


@compiled
def long_prompts(engine: np.void, requests: np.ndarray, limits: np.void) -> int:
    """Return the number of partly computed prompts with more tokens left than ``long_prefill_token_threshold``."""
    count = 0
    r = engine.partial
    while r >= 0:
        count += requests[r].known - requests[r].computed > limits.long_prefill_token_threshold
        r = requests[r].next_partial
    return count


@inlined
def take(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Remove a request from the queue."""
    if engine.first_waiting == r:
        engine.first_waiting = requests[r].next_waiting
        return
    previous = engine.first_waiting
    while requests[previous].next_waiting != r:
        previous = requests[previous].next_waiting
    requests[previous].next_waiting = requests[r].next_waiting
    if engine.last_waiting == r:
        engine.last_waiting = previous


@inlined
def next_visible_us(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> float:
    """Return when the next request becomes visible: with priorities or adapters the first not visible; inf: none."""
    r = engine.first_waiting
    if not limits.by_priority and limits.max_loras == 0:
        return requests[r].visible_us if r >= 0 else FOREVER
    moment = FOREVER
    while r >= 0:
        if requests[r].visible_us > horizon:
            moment = min(moment, requests[r].visible_us)
        r = requests[r].next_waiting
    return moment


@inlined
def deliver(scenario: Scenario, i: int, r: int) -> bool:
    """Send a request to engine ``i``, visible to its scheduler after the front end's time; return False if rejected.

    The front end processes requests in order, one at a time for its serial part: templates of chats and tokenising.
    Decode engines come last.
    """
    client, engine, request = scenario.clients[0], scenario.engines[i], scenario.requests[r]
    limits, host = scenario.limits[i], scenario.host[i, 0]
    decode_limits = scenario.limits[scenario.limits.size - 1]
    request.replica = i
    request.sent_us = client.now
    front_end_us = host.request_us + host.per_prompt_token_us * request.prompt
    busy_us = max(client.now, engine.busy_us) + host.serial_us + host.serial_token_us * request.prompt
    # its event loop turns to every request that was sent at once before it hands one on
    others = max(client.together_until - 1 - r, 0) // client.front if r >= client.warmups else 0
    together_us = max(busy_us + host.serial_us * others, engine.handed_on_us)
    request.visible_us = max(client.now + front_end_us, together_us)
    request.status = rejection_reason(request, request.target, limits)
    if request.status == OK and request.tokens_after_transfer > 0:
        request.status = rejection_reason(request, request.target + request.tokens_after_transfer, decode_limits)
    if request.status != OK:
        return False
    engine.in_flight += 1
    engine.handed_on_us, engine.busy_us = request.visible_us, busy_us
    enqueue(engine, scenario.requests, limits, r)
    return True


@compiled
def receive(scenario: Scenario, i: int, r: int) -> None:
    """Queue a request on a decode engine after its KV transfer."""
    client, engine, request = scenario.clients[0], scenario.engines[i], scenario.requests[r]
    request.moving = False
    request.received = request.prompt
    request.prefill_replica, request.replica = request.replica, i
    request.received_us = request.visible_us = client.now
    engine.in_flight += 1
    enqueue(engine, scenario.requests, scenario.limits[i], r)
