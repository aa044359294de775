"""Scheduling policies of TensorRT-LLM and SGLang, priority scheduling and static batching.

Sources: TensorRT-LLM ``PyExecutor._waiting_requests`` (batch wait) and its GUARANTEED_NO_EVICT and MAX_UTILIZATION
capacity schedulers; SGLang ``SchedulerRecvSkipper`` (receive polling), ``PrefillAdder`` and ``NewTokenRatioTracker``
(admission by a ratio of new tokens).
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.batch import is_ready, tokens_in_step, tokens_of, units_held
from kernelsight.serving.engine.queue import comes_first, queue_head
from kernelsight.serving.engine.records import (
    FOREVER,
    GUARANTEED_NO_EVICT,
    MAX_UTILIZATION,
    NEW_TOKEN_RATIO,
    NO_LIMIT,
    NOBODY,
)

# SGLang: the ratio begins at 0.7 x schedule_conservativeness and decays to 0.14 of that in 600 decode steps; after a
# preemption it is set so that every request can generate 20 more tokens; an output counts as 4096 tokens at most
FIRST_RATIO, LEAST_SHARE, DECAY_STEPS, TOKENS_AFTER_PREEMPTION, LONGEST_ESTIMATE = 0.7, 0.14, 600, 20, 4096
# SGLang: weight of a step with prompts in the polling interval; a decode step has weight 1
PROMPT_STEP_WEIGHT = 1000


# ---------------------------------------------------------------- when requests are admitted


@inlined
def candidate(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> int:
    """Return the head of the queue; -1: none, or admission is closed."""
    if limits.plain:
        return queue_head(engine, requests, limits, horizon)
    if admission_closed(engine, limits):
        return NOBODY
    return queue_head(engine, requests, limits, seen_until(engine, limits, horizon))


@inlined
def stays_refused(engine: np.void, limits: np.void) -> bool:
    """Whether admission, after the head of the queue was refused, stays closed until a running request finishes.

    With priority scheduling a new request may become the head of the queue, and fit.
    """
    return not limits.by_priority or admission_closed(engine, limits) or is_at_cap(engine, limits)


@compiled
def lowest_priority(engine: np.void, requests: np.ndarray) -> int:
    """Return the running request with the lowest priority."""
    last = r = engine.oldest
    while r >= 0:
        if comes_first(requests, last, r):
            last = r
        r = requests[r].after
    return last


@inlined
def seen_until(engine: np.void, limits: np.void, horizon: float) -> float:
    """Return the latest visibility of admissible requests; with static batching, when the batch was formed."""
    return min(horizon, engine.formed_us) if limits.static else horizon


@compiled
def admission_closed(engine: np.void, limits: np.void) -> bool:
    """Whether admission is closed until a running request finishes.

    A static batch admits no request once it is formed. SGLang does not retry after an admission failed.
    """
    return (limits.static and not engine.forming) or engine.running >= engine.full_running


@compiled
def form_static_batch(engine: np.void, limits: np.void, horizon: float) -> None:
    """Start a new static batch when the last one has finished; reopen admission after a running request finished."""
    engine.prefills_delayed = False
    if limits.static and engine.running == 0:
        engine.forming, engine.formed_us, engine.joined = True, horizon, 0
    if engine.running < engine.full_running:
        engine.full_running = NO_LIMIT


@compiled
def note_admission_failed(engine: np.void, limits: np.void) -> None:
    """Record that the queue head did not fit: a static batch is complete, and SGLang marks its batch as full."""
    engine.forming = False
    if limits.capacity_policy == NEW_TOKEN_RATIO:
        engine.full_running = engine.running


@inlined
def is_at_cap(engine: np.void, limits: np.void) -> bool:
    """Whether max_num_seqs, or the size of a static batch, is reached."""
    return engine.running == limits.max_num_seqs or (limits.static and engine.joined == limits.max_num_seqs)


@compiled
def received_until(engine: np.void, limits: np.void, horizon: float) -> float:
    """Return the latest visibility of received requests: the engine polls every ``scheduler_recv_interval`` steps."""
    if limits.scheduler_recv_interval <= 1:
        return horizon
    if engine.running == 0 or steps_weight(engine) >= limits.scheduler_recv_interval:
        engine.received_us = horizon
        engine.polled_steps, engine.polled_prompt_steps = engine.steps, engine.prompt_steps
    return engine.received_us


@compiled
def steps_weight(engine: np.void) -> int:
    """Return the weighted number of steps since the last poll for new requests."""
    prompt_steps = engine.prompt_steps - engine.polled_prompt_steps
    return engine.steps - engine.polled_steps + (PROMPT_STEP_WEIGHT - 1) * prompt_steps


@compiled
def reset_ratio_when_idle(engine: np.void, limits: np.void) -> None:
    """Reset the new-token ratio to its initial value: no request runs or waits."""
    engine.ratio_from = first_ratio(limits)
    engine.ratio_step = engine.decode_steps


# ---------------------------------------------------------------- delayed prefills


@compiled
def partial_tokens(engine: np.void, requests: np.ndarray) -> int:
    """Return the tokens of partly computed prompts that are left to compute."""
    tokens = 0
    r = engine.partial
    while r >= 0:
        tokens += requests[r].known - requests[r].computed
        r = requests[r].next_partial
    return tokens


@compiled
def waiting_tokens(engine: np.void, requests: np.ndarray, horizon: float, most: int, enough: float) -> int:
    """Return the tokens to compute of the first ``most`` visible queued requests; counting stops at ``enough``."""
    tokens = seen = 0
    r = engine.first_waiting
    while r >= 0 and seen < most and tokens < enough:
        if requests[r].visible_us <= horizon:
            tokens += requests[r].known - requests[r].received
            seen += 1
        r = requests[r].next_waiting
    return tokens


@compiled
def unfinished_prompts(engine: np.void, requests: np.ndarray) -> int:
    """Return the number of partly computed prompts that this step does not complete."""
    count = 0
    r = engine.partial
    while r >= 0:
        count += requests[r].computed + requests[r].chunk < requests[r].known
        r = requests[r].next_partial
    return count


# ---------------------------------------------------------------- KV units for an admission


@compiled
def first_ratio(limits: np.void) -> float:
    """Return the initial new-token ratio."""
    return min(FIRST_RATIO * limits.schedule_conservativeness, 1.0)


@compiled
def new_token_ratio(engine: np.void, limits: np.void) -> float:
    """Return the expected share of remaining output tokens that will be generated; decays with every decode step."""
    steps = engine.decode_steps - engine.ratio_step
    if steps <= 0:
        return engine.ratio_from
    first = first_ratio(limits)
    least = first * LEAST_SHARE
    return max(engine.ratio_from - steps * ((first - least) / DECAY_STEPS), least)


@compiled
def reset_ratio(engine: np.void, requests: np.ndarray, limits: np.void) -> None:
    """Set the ratio after a preemption, from what the running requests have generated.

    The decode step that preempted does not decay it.
    """
    if limits.capacity_policy != NEW_TOKEN_RATIO:
        return
    generated = asked = 0
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        known = tokens_of(engine, request) + 1 if request.decoding else request.known
        generated += known - request.prompt
        asked += request.target - request.prompt
        r = request.after
    engine.ratio_from = min((generated + TOKENS_AFTER_PREEMPTION * engine.running) / (asked + 1.0), 1.0)
    engine.ratio_step = engine.decode_steps + 1


@compiled
def reserved_tokens(limits: np.void, known: int, target: int, ratio: float) -> int:
    """Return the tokens of a request that KV units are reserved for."""
    tokens = target - 1
    if limits.capacity_policy != GUARANTEED_NO_EVICT:
        tokens = min(known + int(ratio * min(target - known, LONGEST_ESTIMATE)), tokens)
    return min(tokens + limits.drafts, limits.max_model_len - 1)


@compiled
def admission_headroom(engine: np.void, requests: np.ndarray, limits: np.void, decodes: bool) -> int:
    """Return the free KV units less those reserved for running requests beyond this step (SGLang, TensorRT-LLM).

    ``decodes``: the decoding requests get a token in this step.
    """
    if limits.capacity_policy == MAX_UTILIZATION:
        return engine.free_units
    ratio = new_token_ratio(engine, limits)
    units = engine.free_units
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        known = request.known
        tokens = request.computed + request.chunk
        if request.decoding:
            tokens = tokens_of(engine, request)
            known = tokens + 1
            tokens += tokens_taken(engine, request, limits, decodes)
            if is_ready(engine, request):
                tokens = max(tokens, request.reserved)
        end = max(reserved_tokens(limits, known, request.target, ratio), tokens)
        units -= units_held(end, limits) - units_held(tokens, limits)
        r = request.after
    return units


@inlined
def tokens_taken(engine: np.void, request: np.void, limits: np.void, decodes: bool) -> int:
    """Return the tokens of a decoding request in its batch in flight, or in the step that is formed."""
    if is_ready(engine, request) and (not decodes or (engine.left_out > 0 and request.chunk == 0)):
        return 0
    return tokens_in_step(request, limits)


@compiled
def units_to_reserve(limits: np.void, request: np.void, cached: int, units: int) -> int:
    """Return the KV units that an admission with ``cached`` tokens reserves; ``units``: those of its first chunk."""
    if limits.capacity_policy == MAX_UTILIZATION:
        return units
    end = reserved_tokens(limits, request.known, request.target, 1.0)
    there = 0 if request.received > 0 else cached // limits.block_size * limits.full_units
    return max(units_held(end, limits) - there, units)


@compiled
def is_refused(engine: np.void, limits: np.void, needed: int, headroom: int) -> bool:
    """Whether the reservation exceeds the headroom; with a new-token ratio an empty batch admits a request anyway."""
    return needed > headroom and not (limits.capacity_policy == NEW_TOKEN_RATIO and engine.running == 0)


@compiled
def until_poll(engine: np.void, limits: np.void, most: int, stop_us: float) -> tuple:
    """Return (decode steps, time of the event that ends the run), cut at the next poll for requests."""
    if limits.scheduler_recv_interval <= 1:
        return most, stop_us
    return min(most, limits.scheduler_recv_interval - steps_weight(engine)), FOREVER
