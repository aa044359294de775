"""The event loop of one scenario: a client and its engines, from the first arrival to the last finish.

Events in order of time; at equal times in this order: a step ends, the client sends a request (or a KV transfer to a
decode engine ends), a step begins. Between two events that change the batch (a visible arrival, an admission, a finish,
a shortage of KV blocks) all decode steps are advanced at once; steps with prompts are simulated singly.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.client import forget_gaps, next_send_us, note_ended, note_rejected, take_next
from kernelsight.serving.engine.compiled import compiled, inlined, loop_entry
from kernelsight.serving.engine.decode_runs import decode_run
from kernelsight.serving.engine.heaps import next_filling
from kernelsight.serving.engine.lookahead import decode_until, run_end_us
from kernelsight.serving.engine.pipeline import begin_batches
from kernelsight.serving.engine.policy import received_until, reset_ratio_when_idle
from kernelsight.serving.engine.queue import deliver, horizon_us, next_visible_us, queue_head, receive
from kernelsight.serving.engine.ranks import begin_ranks, shorten_ranks, take_ranks
from kernelsight.serving.engine.records import FOREVER, NOBODY, SCORED
from kernelsight.serving.engine.returned_batches import end_batch
from kernelsight.serving.engine.router import route, route_decode
from kernelsight.serving.engine.scheduler import schedule
from kernelsight.serving.engine.steps import end_chunks, end_decodes, pass_single_step, single_step
from kernelsight.serving.engine.tiers import end_writes, first_load_us
from kernelsight.serving.engine.waits import keep_sums, note_admitted, note_computed, note_finished, note_returned


@inlined
def next_begin_us(engine: np.void, requests: np.ndarray, limits: np.void) -> float:
    """When an idle engine begins its next step, as far as is known now."""
    horizon = horizon_us(engine, limits)
    idle = engine.running == engine.loading and queue_head(engine, requests, limits, horizon) < 0
    if not idle or engine.batches > 0:
        return engine.now
    return max(next_work_us(engine, requests, limits, horizon), engine.now) + limits.batch_wait_us


@inlined
def next_work_us(engine: np.void, requests: np.ndarray, limits: np.void, horizon: float) -> float:
    """When an idle engine has something to do: its next request becomes visible, or a load ends."""
    next_us = next_visible_us(engine, requests, limits, horizon)
    if engine.loading > 0:
        next_us = min(next_us, first_load_us(engine, requests))
    return next_us


@inlined
def wake(engine: np.void, requests: np.ndarray, limits: np.void) -> float:
    """Begin a step: advance an idle engine's clock to the next visible request; returns the visibility horizon."""
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
    """(engine, time) of the next step that ends or begins; at equal times, ends go first."""
    first, moment, ends = NOBODY, FOREVER, False
    for i in range(engines.size):
        engine = engines[i]
        due = engine.due_us if engine.underway else next_begin_us(engine, requests, limits[i])
        if due < moment or (due == moment and engine.underway and not ends):
            first, moment, ends = i, due, engine.underway
    return first, moment


@compiled
def take_run(
    engines: np.ndarray,
    i: int,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.ndarray,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.ndarray,
    uses: np.ndarray,
    histogram: np.ndarray,
    rows: np.ndarray,
    stop_us: float,
) -> None:
    """Execute the decode run that engine ``i``, or all its ranks, have planned, up to the step that passes ``stop_us``.

    Arrays have an item for each engine.
    """
    engine, own = engines[i], limits[i]
    if own.ranks > 1:
        take_ranks(
            engines, requests, heaps, limits, host[i], entries, costs, layout[i], uses, histogram, rows, i - own.rank,
            stop_us,
        )  # fmt: skip
        return
    decode_run(
        engine, requests, heaps[i, 0], own, host[i], entries, costs, layout[i], uses, histogram, engine.planned_steps,
        stop_us, rows[i],
    )  # fmt: skip
    engine.peak_units = max(engine.peak_units, own.capacity_units - engine.free_units)
    engine.planned = False
    engine.due_us = engine.now


@compiled
def take_runs(
    client: np.void,
    engines: np.ndarray,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.ndarray,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.ndarray,
    uses: np.ndarray,
    histogram: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Execute the planned decode runs up to now: a router that looks at engines sees them as they are."""
    for i in range(client.front):
        if engines[i].planned:
            take_run(
                engines, i, requests, heaps, limits, host, entries, costs, layout, uses, histogram, rows, client.now
            )


@inlined
def end_step(
    client: np.void,
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    histogram: np.ndarray,
    sums: np.ndarray,
    edges: np.ndarray,
    turns: np.ndarray,
) -> None:
    """End an engine's step, or decode run: prompts advance, requests finish; of a rank without requests, nothing."""
    if not engine.underway:
        return
    if sums.shape[0] > 0:
        keep_sums(engine)
        note_computed(engine, requests, sums)
    if engine.step_prompt_tokens > 0:
        end_chunks(engine, requests, heaps, limits, hashes, entries, histogram, engine.stalled)
    end_decodes(engine, requests, heaps, limits, hashes, entries, engine.admitted)
    engine.last_us = engine.now
    engine.underway = False
    if sums.shape[0] > 0:
        note_finished(engine, requests, sums)
    note_ended(client, engine, requests, edges, turns)


@compiled
def plan_run(
    engine: np.void, requests: np.ndarray, heaps: np.ndarray, host: np.void, costs: np.ndarray, layout: np.void
) -> None:
    """Plan a decode run and its end, which a request from the shared client may cut short."""
    filling = next_filling(engine, requests, heaps)
    if filling >= 0:
        engine.planned_steps = min(engine.planned_steps, filling - engine.clock)
    engine.planned = True
    engine.due_us = run_end_us(engine, host, costs, layout, engine.planned_steps)


@inlined
def take_send(
    client: np.void,
    engines: np.ndarray,
    requests: np.ndarray,
    edges: np.ndarray,
    turns: np.ndarray,
    hashes: np.ndarray,
    sent: np.ndarray,
    entries: np.ndarray,
    limits: np.ndarray,
) -> tuple:
    """(request, engine) of what is sent now: a new request, or a prompt whose KV transfer to a decode engine ended."""
    r = take_next(client, requests, edges, turns)
    if requests[r].moving:
        return r, client.front + route_decode(client, engines[client.front :])
    if client.front > 1:
        return r, route(client, engines[: client.front], requests, r, hashes, sent, entries, limits)
    return r, 0


@inlined
def begin_step(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    host: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    uses: np.ndarray,
    histogram: np.ndarray,
    groups: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
    send_us: float,
    alone: bool,
) -> None:
    """Schedule a step and execute it, or the decode run that it begins; with several engines, only plan the run."""
    horizon, ticket = wake(engine, requests, limits), engine.admitted
    prompt_tokens, decode_tokens, again, blocked = schedule(
        engine, requests, heaps, limits, hashes, entries, groups, horizon
    )
    if sums.shape[0] > 0:
        note_admitted(engine, requests, sums, ticket)
    engine.stalled = decode_tokens == 0 and engine.decoding > 0
    engine.step_prompt_tokens, engine.blocked = prompt_tokens, blocked
    engine.peak_units = max(engine.peak_units, limits.capacity_units - engine.free_units)
    if prompt_tokens == 0 and decode_tokens > 0:
        most, stop_us = decode_until(engine, requests, heaps[0], limits, host, again, horizon, rows, send_us, alone)
        if not alone and stop_us == FOREVER:
            engine.planned_steps = most
            plan_run(engine, requests, heaps[0], host, costs, layout)
            return
        decode_run(
            engine, requests, heaps[0], limits, host, entries, costs, layout, uses, histogram, most, stop_us, rows
        )
        engine.peak_units = max(engine.peak_units, limits.capacity_units - engine.free_units)
    elif prompt_tokens > 0:
        gpu_us, host_us = single_step(engine, requests, host, costs, layout, uses, prompt_tokens, decode_tokens, 0)
        end_us, wait_us = engine.now + (gpu_us + host_us), 0.0
        if limits.tiers > 0:
            end_writes(engine, limits)
            wait_us = max(engine.loads_us - end_us, 0.0)
            end_us += wait_us
        pass_single_step(
            engine, requests, heaps[0], limits, layout, histogram, rows, prompt_tokens, decode_tokens, gpu_us, host_us,
            wait_us, end_us,
        )  # fmt: skip
    elif engine.loading > 0:
        # the next request does not fit, and all others load
        end_us = max(first_load_us(engine, requests), engine.now)
        engine.idle_us += end_us - engine.now
        engine.now = engine.previous_start = end_us
    engine.due_us = engine.now


@inlined
def are_full(ranks: np.ndarray, limits: np.void, rows: np.ndarray) -> bool:
    """Whether the rows of one of these engines, which begin a step together, have no room for it."""
    most = 0
    for k in range(ranks.size):
        most = max(most, ranks[k].rows)
    return most > 0 and most > rows.shape[1] - limits.stages


@loop_entry
def serve_until_full(
    clients: np.ndarray,
    engines: np.ndarray,
    requests: np.ndarray,
    edges: np.ndarray,
    turns: np.ndarray,
    sent: np.ndarray,
    heaps: np.ndarray,
    hashes: np.ndarray,
    entries: np.ndarray,
    limits: np.ndarray,
    host: np.ndarray,
    costs: np.ndarray,
    layout: np.ndarray,
    draft_layout: np.ndarray,
    uses: np.ndarray,
    histogram: np.ndarray,
    stages: np.ndarray,
    groups: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Simulate until all requests have ended, or an engine's buffer of rows is full; call again then.

    Where the client has an ``until_us``, also until all that happens by then is done, except that no step begins at
    that moment: requests may still be sent then. Decode runs are cut there, which changes no result.

    All state is in the arguments. ``clients``: one CLIENT record; ``engines``: ENGINE records (see ``replica``). heaps,
    limits, host, layout, draft_layout, stages, groups (see ``pipeline``) and rows have one item per engine.
    ``edges``: EDGE records, which requests wait for which. ``turns``: a heap of later turns and KV transfers, shape
    [capacity, 2]; ``sent``: the prefix-aware router's memory.
    ``uses`` and ``histogram`` are added to. ``rows``: step rows, shape [engines, rows, COLUMNS]; no rows: none kept.
    ``sums``: what the steps of each request cost by part, see ``parts``; no rows: not kept.
    """
    i, client = 0, clients[0]
    engine, own, hst, own_heaps, own_rows = engines[0], limits[0], host[0], heaps[0], rows[0]
    alone = engines.size == 1
    while client.ended < requests.size:
        due, engine_us = next_engine(engines, requests, limits)
        send_us = next_send_us(client, requests, turns)
        if client.until_us < send_us:
            client.next_us = min(send_us, engine_us)
            if client.until_us < engine_us or (client.until_us == engine_us and not engines[due].underway):
                return
            send_us = client.until_us  # decode runs end there
        sends = send_us < engine_us or (send_us == engine_us and not engines[due].underway)
        client.now = min(send_us, engine_us)
        warming = client.warmups_left > 0
        r = NOBODY
        if sends:
            if client.router == SCORED:
                take_runs(client, engines, requests, heaps, limits, host, entries, costs, layout, uses, histogram, rows)
            r, due = take_send(client, engines, requests, edges, turns, hashes, sent, entries, limits)
        if i != due:
            i = due
            engine, own, hst = engines[i], limits[i], host[i]
            own_heaps, own_rows = heaps[i], rows[i]
        if sends:
            accepted = True
            if requests[r].moving:
                receive(client, engine, requests, own, i, r)
            else:
                accepted = deliver(client, engine, requests, own, limits[limits.size - 1], hst, i, r)
            if not accepted:
                note_rejected(client, requests, edges, r)
                if warming and client.warmups_left == 0:
                    forget_gaps(engines, histogram)
            elif engine.planned and not engine.blocked and requests[r].visible_us - own.batch_wait_us < engine.due_us:
                stop_us = requests[r].visible_us - own.batch_wait_us
                if own.ranks > 1:
                    shorten_ranks(engines, limits, i - own.rank, stop_us)
                    continue
                take_run(
                    engines, i, requests, heaps, limits, host, entries, costs, layout, uses, histogram, rows, stop_us
                )
            continue
        if engine.underway:
            if own.per_request_progress:
                if sums.shape[0] > 0:
                    keep_sums(engine)
                    returned = groups[i, stages[i, engine.oldest_batch].group]
                    note_returned(engine, requests, own_heaps, sums, returned)
                end_batch(engine, requests, own_heaps, own, hashes, entries, stages[i], groups[i], histogram)
                if sums.shape[0] > 0:
                    note_finished(engine, requests, sums)
                note_ended(client, engine, requests, edges, turns)
            else:
                if engine.planned:
                    take_run(
                        engines, i, requests, heaps, limits, host, entries, costs, layout, uses, histogram, rows,
                        FOREVER,
                    )  # fmt: skip
                    client.now = engine.now
                for k in range(i - own.rank, i - own.rank + own.ranks):
                    end_step(
                        client, engines[k], requests, heaps[k, 0], limits[k], hashes, entries, histogram, sums, edges,
                        turns,
                    )  # fmt: skip
            if warming and client.warmups_left == 0:
                forget_gaps(engines, histogram)
            send_us = min(next_send_us(client, requests, turns), client.until_us)
            if not alone or engine.running == engine.loading or send_us <= engine.now:
                continue
        first = i - own.rank
        if are_full(engines[first : first + own.ranks], own, rows):
            return
        if own.ranks > 1:
            begin_ranks(
                engines, requests, heaps, limits, hst, hashes, entries, costs, layout[i], draft_layout[i], uses,
                histogram, stages, groups, rows, sums, first, engine_us,
            )  # fmt: skip
        elif own.per_request_progress:
            begin_batches(
                engine, requests, own_heaps, own, hst, hashes, entries, costs, layout[i], draft_layout[i], uses,
                stages[i], groups[i], own_rows, sums,
            )  # fmt: skip
        else:
            begin_step(
                engine, requests, own_heaps, own, hst, hashes, entries, costs, layout[i], uses, histogram, groups[i],
                own_rows, sums, send_us, alone,
            )  # fmt: skip
