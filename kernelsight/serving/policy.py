"""What engines do otherwise than vLLM: when they hold prompts back, how much room an admission needs, static batches.

Sources: TensorRT-LLM ``PyExecutor._waiting_requests`` (batch wait) and its
GUARANTEED_NO_EVICT and MAX_UTILIZATION capacity schedulers; SGLang ``SchedulerRecvSkipper`` (receive polling),
``PrefillAdder`` and ``NewTokenRatioTracker`` (admission by a ratio of new tokens).
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.batch import tokens_of, units_held
from kernelsight.serving.compiled import compiled, inlined
from kernelsight.serving.queue import comes_first, queue_head
from kernelsight.serving.records import FOREVER, GUARANTEED_NO_EVICT, MAX_UTILIZATION, NEW_TOKEN_RATIO, NO_LIMIT, NOBODY

# SGLang: the ratio begins at 0.7 x schedule_conservativeness, falls to 0.14 of that within 600 decode steps, and is set
# after a preemption so that every request could go on for 20 tokens; answers count for 4096 tokens at most
FIRST_RATIO, LEAST_SHARE, DECAY_STEPS, TOKENS_AFTER_PREEMPTION, LONGEST_ESTIMATE = 0.7, 0.14, 600, 20, 4096
# SGLang: what a step with prompts counts for towards the next poll; a decode step counts for one
PROMPT_STEP_WEIGHT = 1000


# ---------------------------------------------------------------- who may be admitted at all


@inlined
def candidate(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> int:
    """The head of the queue where the engine looks at the queue at all; -1 for none."""
    if limits.plain:
        return queue_head(engine, requests, limits, horizon)
    if is_shut(engine, limits):
        return NOBODY
    return queue_head(engine, requests, limits, seen_until(engine, limits, horizon))


@inlined
def stays_refused(engine: np.void, limits: np.void) -> bool:
    """Whether nobody can be admitted before a running request ends, after the head of the queue was refused.

    By priority a request that comes may be the next head, and smaller.
    """
    return not limits.by_priority or is_shut(engine, limits) or is_at_cap(engine, limits)


@compiled
def lowest_priority(engine: np.void, requests: np.ndarray) -> int:
    """The running request that is last in order of priority."""
    last = r = engine.oldest
    while r >= 0:
        if comes_first(requests, last, r):
            last = r
        r = requests[r].after
    return last


@inlined
def seen_until(engine: np.void, limits: np.void, horizon: float) -> float:
    """Requests that became visible by then may be admitted: with static batches, by the time the batch was formed."""
    return min(horizon, engine.formed_us) if limits.static else horizon


@compiled
def is_shut(engine: np.void, limits: np.void) -> bool:
    """True where nobody is admitted before a running request ends, whoever waits.

    Static batches take nobody once they are formed. SGLang does not try again after the batch was full.
    """
    return (limits.static and not engine.forming) or engine.running >= engine.full_running


@compiled
def begin_step(engine: np.void, limits: np.void, horizon: float) -> None:
    """Form a new static batch of what is visible, where the last one has ended; forget a full batch that shrank."""
    engine.prompts_held = False
    if limits.static and engine.running == 0:
        engine.forming, engine.formed_us, engine.joined = True, horizon, 0
    if engine.running < engine.full_running:
        engine.full_running = NO_LIMIT


@compiled
def note_no_room(engine: np.void, limits: np.void) -> None:
    """The head of the queue did not fit: the static batch is formed, and SGLang takes its batch for full."""
    engine.forming = False
    if limits.capacity_policy == NEW_TOKEN_RATIO:
        engine.full_running = engine.running


@inlined
def is_at_cap(engine: np.void, limits: np.void) -> bool:
    """True where the cap of running requests, or of a static batch, is reached."""
    return engine.running == limits.max_num_seqs or (limits.static and engine.joined == limits.max_num_seqs)


@compiled
def received_until(engine: np.void, limits: np.void, horizon: float) -> float:
    """Until when requests are seen that became visible by ``horizon``, as the engine polls only now and then."""
    if limits.scheduler_recv_interval <= 1:
        return horizon
    if engine.running == 0 or steps_weight(engine) >= limits.scheduler_recv_interval:
        engine.received_us = horizon
        engine.polled_steps, engine.polled_prompt_steps = engine.steps, engine.prompt_steps
    return engine.received_us


@compiled
def steps_weight(engine: np.void) -> int:
    """What the steps since the last look for new requests count for."""
    prompt_steps = engine.prompt_steps - engine.polled_prompt_steps
    return engine.steps - engine.polled_steps + (PROMPT_STEP_WEIGHT - 1) * prompt_steps


@compiled
def rest(engine: np.void, limits: np.void) -> None:
    """Nothing runs and nothing waits: the ratio of new tokens is at its start again."""
    engine.ratio_from = first_ratio(limits)
    engine.ratio_clock = engine.clock


# ---------------------------------------------------------------- prompts held back


@compiled
def partial_tokens(engine: np.void, requests: np.ndarray) -> int:
    """Tokens that the prompts under way have yet to compute."""
    tokens = 0
    r = engine.partial
    while r >= 0:
        tokens += requests[r].known - requests[r].computed
        r = requests[r].next_partial
    return tokens


@compiled
def waiting_tokens(engine: np.void, requests: np.ndarray, horizon: float, most: int, enough: float) -> int:
    """Known tokens of the first ``most`` requests of the queue that are visible; not counted beyond ``enough``."""
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
    """Prompts under way that this step does not end."""
    count = 0
    r = engine.partial
    while r >= 0:
        count += requests[r].computed + requests[r].chunk < requests[r].known
        r = requests[r].next_partial
    return count


# ---------------------------------------------------------------- room for an admission


@compiled
def first_ratio(limits: np.void) -> float:
    """The ratio of new tokens of an engine that was idle."""
    return min(FIRST_RATIO * limits.schedule_conservativeness, 1.0)


@compiled
def new_token_ratio(engine: np.void, limits: np.void) -> float:
    """The share of their answers that running requests are expected to give yet: it falls with every decode step."""
    steps = engine.clock - engine.ratio_clock
    if steps <= 0:
        return engine.ratio_from
    first = first_ratio(limits)
    least = first * LEAST_SHARE
    return max(engine.ratio_from - steps * ((first - least) / DECAY_STEPS), least)


@compiled
def reset_ratio(engine: np.void, requests: np.ndarray, limits: np.void) -> None:
    """Set the ratio after a preemption, from what the requests that still run have generated.

    The decode step that preempted does not count for its fall.
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
    engine.ratio_clock = engine.clock + 1


@compiled
def reserved_tokens(limits: np.void, known: int, target: int, ratio: float) -> int:
    """Tokens in the cache that a request's KV units are reserved for."""
    tokens = target - 1
    if limits.capacity_policy != GUARANTEED_NO_EVICT:
        tokens = min(known + int(ratio * min(target - known, LONGEST_ESTIMATE)), tokens)
    return min(tokens + limits.drafts, limits.max_model_len - 1)


@compiled
def admission_room(engine: np.void, requests: np.ndarray, limits: np.void, decodes: bool) -> int:
    """Free KV units that are not reserved for running requests, after this step's tokens of theirs.

    ``decodes``: the decoding requests get a token in this step. All free units, where nothing is reserved.
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
            known = request.base + engine.clock + 1
            tokens = known if decodes else known - 1
            if limits.one_by_one:
                tokens = max(request.computed + request.chunk, request.reserved)
        end = max(reserved_tokens(limits, known, request.target, ratio), tokens)
        units -= units_held(end, limits) - units_held(tokens, limits)
        r = request.after
    return units


@compiled
def units_to_reserve(limits: np.void, request: np.void, cached: int, units: int) -> int:
    """KV units that an admission reserves for a request with ``cached`` tokens; ``units``: of its first chunk."""
    if limits.capacity_policy == MAX_UTILIZATION:
        return units
    end = reserved_tokens(limits, request.known, request.target, 1.0)
    there = 0 if request.received > 0 else cached // limits.block_size * limits.full_units
    return max(units_held(end, limits) - there, units)


@compiled
def is_refused(engine: np.void, limits: np.void, needed: int, room: int) -> bool:
    """True where less is left than an admission reserves; an engine that estimates takes one request in any case."""
    return needed > room and not (limits.capacity_policy == NEW_TOKEN_RATIO and engine.running == 0)


@compiled
def until_poll(engine: np.void, limits: np.void, most: int, stop_us: float) -> tuple:
    """(decode steps, time of the first event) of a run that ends before the engine looks for new requests again."""
    if limits.scheduler_recv_interval <= 1:
        return most, stop_us
    return min(most, limits.scheduler_recv_interval - steps_weight(engine)), FOREVER
