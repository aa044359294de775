"""The discrete-event loop of one scenario: a client and its engines, from the first arrival to the last finish.

Events in order of time; at equal times in this order: a step ends, the client sends a request (or a KV transfer to a
decode engine ends), a step begins. Between two events that change the batch (a visible arrival, an admission, a finish,
a shortage of KV blocks) all decode steps are advanced at once; steps with prompts are simulated one at a time.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined, loop_entry
from kernelsight.serving.engine.adapters import load_before_decodes, set_level, wait_for_loads
from kernelsight.serving.engine.client import forget_gaps, next_send_us, note_ended, note_rejected, take_next
from kernelsight.serving.engine.costs import decode_until, run_end_us
from kernelsight.serving.engine.decode_runs import decode_run
from kernelsight.serving.engine.heaps import next_filling
from kernelsight.serving.engine.pipeline import begin_batches
from kernelsight.serving.engine.policy import received_until, reset_ratio_when_idle
from kernelsight.serving.engine.queue import deliver, horizon_us, next_visible_us, queue_head, receive
from kernelsight.serving.engine.ranks import begin_ranks, shorten_ranks, take_ranks
from kernelsight.serving.engine.records import FOREVER, NOBODY, SCORED
from kernelsight.serving.engine.returned_batches import end_batch
from kernelsight.serving.engine.router import route, route_decode
from kernelsight.serving.engine.scheduler import schedule
from kernelsight.serving.engine.state import (
    Core,
    Metrics,
    Scenario,
    Step,
    StepCosts,
    core_of,
    costs_of,
    metrics_of,
)
from kernelsight.serving.engine.steps import end_chunks, end_decodes, pass_single_step, single_step
from kernelsight.serving.engine.tiers import first_load_us
from kernelsight.serving.engine.waits import keep_sums, note_admitted, note_computed, note_finished, note_returned


@inlined
def next_begin_us(engine: np.void, requests: np.ndarray, limits: np.void) -> float:
    """Return when an engine begins its next step, as far as is known now."""
    horizon = horizon_us(engine, limits)
    idle = engine.running == engine.loading and queue_head(engine, requests, limits, horizon) < 0
    if not idle or engine.batches > 0:
        return engine.now
    return max(next_work_us(engine, requests, limits, horizon), engine.now) + limits.batch_wait_us


@inlined
def next_work_us(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> float:
    """Return when an idle engine has work: its next request becomes visible, or a load from a KV tier ends."""
    next_us = next_visible_us(engine, requests, limits, horizon)
    if engine.loading > 0:
        next_us = min(next_us, first_load_us(engine, requests))
    return next_us


@inlined
def wake(engine: np.void, requests: np.ndarray, limits: np.void) -> float:
    """Begin a step: advance an idle engine's clock to the next visible request; return the visibility horizon."""
    horizon = horizon_us(engine, limits)
    idle = engine.running == engine.loading and queue_head(engine, requests, limits, horizon) < 0
    if not limits.plain and ((idle and engine.running == 0) or engine.steps == 0):
        reset_ratio_when_idle(engine, limits)
    if idle:
        next_us = next_work_us(engine, requests, limits, horizon)
        engine.now = engine.previous_start = horizon = max(next_us, engine.now) + limits.batch_wait_us
    # idle time is counted when a step follows: after the last finish there is none
    engine.idle_us += engine.now - engine.last_us
    engine.skipped = engine.skipped_tokens = engine.skipped_inside = engine.skipped_below = 0
    engine.step_found = engine.step_looked_up = 0
    engine.underway = True
    return horizon if limits.plain else received_until(engine, limits, horizon)


@inlined
def next_engine(engines: np.ndarray, requests: np.ndarray, limits: np.ndarray) -> tuple:
    """Return (engine, time) of the next step that ends or begins; at equal times, ends go first."""
    first, moment, ends = NOBODY, FOREVER, False
    for i in range(engines.size):
        engine = engines[i]
        due = engine.due_us if engine.underway else next_begin_us(engine, requests, limits[i])
        if due < moment or (due == moment and engine.underway and not ends):
            first, moment, ends = i, due, engine.underway
    return first, moment


@compiled
def take_run(scenario: Scenario, i: int, stop_us: float, prepared: bool) -> None:
    """Execute the decode run that engine ``i`` and its ranks have planned, up to the step that passes ``stop_us``.

    ``prepared``: with asynchronous scheduling also the step that is prepared by then (see ``cut_line``); no ranks.
    """
    if scenario.limits[i].ranks > 1:
        take_ranks(scenario, i - scenario.limits[i].rank, stop_us)
        return
    engine = scenario.engines[i]
    core, costs, metrics = core_of(scenario, i), costs_of(scenario, i), metrics_of(scenario, i)
    decode_run(core, costs, metrics, engine.planned_steps, stop_us, prepared)
    engine.planned = False
    engine.due_us = engine.now


@compiled
def take_runs(scenario: Scenario) -> None:
    """Execute the planned decode runs up to now, so that a scored router sees the current state of engines."""
    client = scenario.clients[0]
    for i in range(client.front):
        if scenario.engines[i].planned:
            take_run(scenario, i, client.now, False)


@inlined
def end_step(core: Core, metrics: Metrics) -> None:
    """End an engine's step, or decode run: prompts advance, requests finish."""
    engine, requests, sums = core.engine, core.requests, metrics.sums
    if sums.shape[0] > 0:
        keep_sums(engine)
        note_computed(engine, requests, sums)
    if engine.step_prompt_tokens > 0:
        end_chunks(core, metrics.histogram)
    end_decodes(core, engine.admitted)
    engine.last_us = engine.now
    engine.underway = False
    if sums.shape[0] > 0:
        note_finished(engine, requests, sums)


@inlined
def return_batch(core: Core, metrics: Metrics) -> None:
    """Process the return of an engine's oldest batch."""
    engine, sums = core.engine, metrics.sums
    if sums.shape[0] > 0:
        keep_sums(engine)
        note_returned(engine, core.requests, core.heaps, sums, core.groups[core.stages[engine.oldest_batch].group])
    end_batch(core, metrics.histogram)
    if sums.shape[0] > 0:
        note_finished(engine, core.requests, sums)


@inlined
def end_engine(scenario: Scenario, i: int) -> None:
    """End the step of engine ``i``, and of all its ranks; pass finished requests to the client."""
    client, engine, own = scenario.clients[0], scenario.engines[i], scenario.limits[i]
    warming = client.warmups_left > 0
    if own.per_request_progress:
        return_batch(core_of(scenario, i), metrics_of(scenario, i))
        note_ended(client, engine, scenario.requests, scenario.edges, scenario.turns)
    else:
        if engine.planned:
            take_run(scenario, i, FOREVER, False)
            client.now = engine.now
        for k in range(i - own.rank, i - own.rank + own.ranks):
            if scenario.engines[k].underway:  # a rank without requests has no step
                end_step(core_of(scenario, k), metrics_of(scenario, k))
                note_ended(client, scenario.engines[k], scenario.requests, scenario.edges, scenario.turns)
    if warming and client.warmups_left == 0:
        forget_gaps(scenario.engines, scenario.histogram)


@compiled
def plan_run(core: Core, costs: StepCosts, most: int) -> None:
    """Plan a decode run of up to ``most`` steps and its end, which a request from the client may cut short."""
    engine = core.engine
    filling = next_filling(engine, core.requests, core.heaps[engine.group])
    engine.planned_steps = most if filling < 0 else min(most, filling - engine.clock)
    engine.planned = True
    engine.due_us = run_end_us(engine, core.host, costs, engine.planned_steps)


@inlined
def send_next(scenario: Scenario) -> None:
    """Send the next request, or queue a prompt whose KV transfer to a decode engine has ended."""
    client, requests, engines = scenario.clients[0], scenario.requests, scenario.engines
    warming = client.warmups_left > 0
    if client.router == SCORED:
        take_runs(scenario)
    r = take_next(client, requests, scenario.edges, scenario.turns)
    i = 0
    if requests[r].moving:
        i = client.front + route_decode(client, engines[client.front :])
        receive(scenario, i, r)
    else:
        if client.front > 1:
            i = route(scenario, r)
        if not deliver(scenario, i, r):
            note_rejected(client, requests, scenario.edges, r)
            if warming and client.warmups_left == 0:
                forget_gaps(engines, scenario.histogram)
            return
    stop_us = requests[r].visible_us - scenario.limits[i].batch_wait_us
    if engines[i].planned and not engines[i].blocked and stop_us < engines[i].due_us:
        if scenario.limits[i].ranks > 1:
            shorten_ranks(engines, scenario.limits, i - scenario.limits[i].rank, stop_us)
        else:
            take_run(scenario, i, stop_us, scenario.limits[i].asynchronous)


@inlined
def begin_step(scenario: Scenario, i: int, send_us: float, alone: bool, looked_at: bool) -> None:
    """Schedule a step and execute it, or the decode run that it begins; with several engines, only plan the run.

    ``looked_at``: a scored router may read the engine's state at any time; runs that a request may end take one step.
    """
    engine, requests, limits = scenario.engines[i], scenario.requests, scenario.limits[i]
    metrics = metrics_of(scenario, i)
    horizon, ticket = wake(engine, requests, limits), engine.admitted
    prompt_tokens, decode_tokens, again, blocked = schedule(core_of(scenario, i), horizon)
    set_level(engine, limits, prompt_tokens, decode_tokens)
    core, costs = core_of(scenario, i), costs_of(scenario, i)
    if metrics.sums.shape[0] > 0:
        note_admitted(engine, requests, metrics.sums, ticket)
    engine.stalled = decode_tokens == 0 and engine.decoding > 0
    engine.step_prompt_tokens, engine.blocked = prompt_tokens, blocked
    engine.peak_units = max(engine.peak_units, limits.capacity_units - engine.free_units)
    if prompt_tokens == 0 and decode_tokens > 0:
        load_before_decodes(engine, limits)
        most, stop_us = decode_until(core, metrics.rows, again, horizon, send_us, alone)
        if not alone and stop_us == FOREVER:
            plan_run(core, costs, most)
            return
        decode_run(core, costs, metrics, 1 if looked_at else most, stop_us, limits.asynchronous)
    elif prompt_tokens > 0:
        gpu_us, host_us = single_step(engine, requests, core.host, costs, prompt_tokens, decode_tokens, 0)
        end_us = engine.now + (gpu_us + host_us)
        wait_us = wait_for_loads(engine, limits, end_us)
        step = Step(prompt_tokens, decode_tokens, engine.now, end_us + wait_us, gpu_us, host_us, wait_us)
        pass_single_step(core, costs.layout.split, metrics, step)
    elif engine.loading > 0:
        # the next request does not fit, and all others load
        end_us = max(first_load_us(engine, requests), engine.now)
        engine.idle_us += end_us - engine.now
        engine.now = engine.previous_start = end_us
    engine.due_us = engine.now


@inlined
def begin_engine(scenario: Scenario, i: int, now: float, send_us: float) -> None:
    """Begin a step of engine ``i``, and of all its ranks; ``send_us``: when the client sends next."""
    own = scenario.limits[i]
    if own.ranks > 1:
        begin_ranks(scenario, i - own.rank, now)
        return
    if own.per_request_progress:
        begin_batches(scenario, i)
    else:
        client = scenario.clients[0]
        looked_at = client.router == SCORED and i < client.front and client.front > 1
        begin_step(scenario, i, send_us, scenario.engines.size == 1, looked_at)


@inlined
def are_full(scenario: Scenario, i: int) -> bool:
    """Whether the step rows of engine ``i``, or of a rank that begins a step with it, are full."""
    own, most = scenario.limits[i], 0
    for k in range(i - own.rank, i - own.rank + own.ranks):
        most = max(most, scenario.engines[k].rows)
    return most > 0 and most > scenario.rows.shape[1] - own.stages


@loop_entry
def serve_until_full(*arrays: np.ndarray) -> None:
    """Simulate until all requests have ended, an engine's buffer of step rows is full, or all filled records are sent.

    In the last two cases call it again. With the client's ``until_us`` it also returns after all events up to that
    time, except that no step begins then: requests may still be sent at that time. Decode runs are cut there, which
    changes no result.

    ``arrays``: the fields of a ``Scenario``, in order.
    """
    scenario = Scenario(*arrays)
    client, engines, requests, limits = scenario.clients[0], scenario.engines, scenario.requests, scenario.limits
    while client.ended < requests.size:
        if client.next == client.filled and client.filled < requests.size:
            return
        i, engine_us = next_engine(engines, requests, limits)
        engine = engines[i]
        send_us = next_send_us(client, requests, scenario.turns)
        if client.until_us < send_us:
            client.next_us = min(send_us, engine_us)
            if client.until_us < engine_us or (client.until_us == engine_us and not engine.underway):
                return
            send_us = client.until_us  # decode runs end there
        client.now = min(send_us, engine_us)
        if send_us < engine_us or (send_us == engine_us and not engine.underway):
            send_next(scenario)
            continue
        if engine.underway:
            end_engine(scenario, i)
            send_us = min(next_send_us(client, requests, scenario.turns), client.until_us)
            # an engine that is alone begins its next step now, unless something comes first
            if engines.size > 1 or engine.running == engine.loading or send_us <= engine.now:
                continue
        if are_full(scenario, i):
            return
        begin_engine(scenario, i, engine_us, send_us)
