"""Executing a scheduled step: its time, the cost knots that it uses, and the tokens that requests get."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.batch import (
    advance,
    push_fresh,
    push_partial,
    start_decoding,
    stop_decoding,
    tokens_held,
    unlink,
)
from kernelsight.serving.engine.compiled import compiled, inlined
from kernelsight.serving.engine.costs import (
    add_use,
    gap_bin,
    host_times,
    knot_below,
    spend,
    surface_us,
)
from kernelsight.serving.engine.heaps import LEAVING, next_departure
from kernelsight.serving.engine.prefix import release
from kernelsight.serving.engine.records import DECODE, MIXED, NOBODY, NUMBER, PREFILL

# columns of a step row
START, END, PROMPTS, DECODES, RUNNING, WAITING, UNITS, HOST_TIME, FOUND, LOOKED_UP, PREEMPTED, STAGE_WAIT = range(12)
ENERGY = 12
COLUMNS = 13  # WAITING is counted afterwards, except with per-request progress


@inlined
def count_decode_gaps(engine: np.void, requests: np.ndarray, histogram: np.ndarray, batch: int, end: float) -> None:
    """Count the inter-token gaps of a decode step: since the last decode step, or a fresh request's last token."""
    others = batch
    r, kept = engine.fresh, NOBODY
    while r >= 0:
        request = requests[r]
        following = request.next_fresh
        if request.skipped:
            request.skipped = False
            request.next_fresh = kept
            kept = r
        else:
            gap = end - request.last_token_us
            histogram[gap_bin(histogram, gap)] += 1
            engine.gap_sum_us += gap
            request.fresh = False
            others -= 1
        r = following
    engine.fresh = kept
    if others > 0:
        gap = end - engine.last_decode_end
        histogram[gap_bin(histogram, gap)] += others
        engine.gap_sum_us += gap * others


@inlined
def find_knots(engine: np.void, costs: np.ndarray, layout: np.void, y: float, windowed: float) -> None:
    """Find the knots below the mean contexts of the decode batch, starting from the last ones."""
    engine.decode_y = knot_below(costs, layout.decode, y, engine.decode_y)
    engine.window_y = knot_below(costs, layout.window, windowed, engine.window_y)


@compiled
def single_step(
    engine: np.void,
    requests: np.ndarray,
    host: np.void,
    costs: np.ndarray,
    layout: np.void,
    uses: np.ndarray,
    prompt_tokens: int,
    decode_tokens: int,
    expert_tokens: int,
) -> tuple:
    """(GPU time, exposed host time) of one scheduled step; adds the knots that it uses to ``uses``.

    ``expert_tokens``: tokens that each rank sends to the experts, in the mean, where ranks step together; else 0.
    """
    phase = DECODE if prompt_tokens == 0 else (MIXED if decode_tokens > 0 else PREFILL)
    y = windowed = 0.0
    if decode_tokens > 0:
        y = (
            engine.context_offset_sum + engine.decoding * engine.clock - (engine.skipped_tokens - engine.skipped)
        ) / decode_tokens
        windowed = (engine.inside - engine.skipped_inside) / decode_tokens
    gpu_us, chunks, _ = cost_step(
        engine, requests, costs, layout, uses[phase], prompt_tokens, decode_tokens, decode_tokens, y, windowed
    )
    gpu_us += cost_experts(engine, costs, layout, uses[phase], expert_tokens, 1 if chunks > 0 else 0, 1)
    tokens = prompt_tokens + decode_tokens
    hidden_us, exposed_us, _ = host_times(chunks + decode_tokens, tokens, chunks, host)
    return gpu_us, exposed_us + max(0.0, hidden_us - gpu_us)


@compiled
def pass_single_step(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    layout: np.void,
    histogram: np.ndarray,
    rows: np.ndarray,
    prompt_tokens: int,
    decode_tokens: int,
    gpu_us: float,
    host_us: float,
    wait_us: float,
    end_us: float,
) -> None:
    """Advance the clock to the end of one step, write its row, and give its decodes their tokens.

    ``wait_us``: for the slowest rank, where ranks step together.
    """
    engine.previous_start = engine.now
    engine.now = end_us
    engine.steps += 1
    engine.gpu_us += gpu_us
    engine.host_us += host_us
    engine.idle_us += wait_us
    engine.prompt_tokens += prompt_tokens
    kind = 1 if prompt_tokens > 0 else 0
    engine.prompt_steps += kind
    engine.step_kind_us[kind] += gpu_us + wait_us
    if layout.split and limits.ranks > 1:
        engine.communication_us[kind] += wait_us
    if rows.shape[0] > 0:
        row = rows[engine.rows]
        row[START], row[END], row[HOST_TIME] = engine.previous_start, engine.now, host_us
        row[PROMPTS], row[DECODES], row[RUNNING] = prompt_tokens, decode_tokens, engine.running
        row[UNITS], row[STAGE_WAIT] = limits.capacity_units - engine.free_units, wait_us
        row[FOUND], row[LOOKED_UP] = engine.step_found, engine.step_looked_up
        row[PREEMPTED] = engine.step_preempted
        row[ENERGY] = engine.energy_j - engine.row_energy_j
        engine.row_energy_j = engine.energy_j
        engine.step_preempted = 0
        engine.rows += 1
    if decode_tokens > 0:
        count_decode_gaps(engine, requests, histogram, decode_tokens, engine.now)
        advance(engine, requests, heaps, limits, 1)
        engine.decode_steps += 1
    if not engine.stalled:
        engine.last_decode_end = engine.now


@inlined
def cost_experts(
    engine: np.void, costs: np.ndarray, layout: np.void, weights: np.ndarray, tokens: int, kind: int, steps: int
) -> float:
    """Time of the experts that ranks share, for each of ``steps`` steps; adds the knots that they use to ``weights``.

    ``tokens``: that each rank sends to them, in the mean; 0: no ranks. ``kind``: 0 of steps that only decode, else 1.
    """
    if tokens == 0:
        return 0.0
    experts_us = costs[layout.experts_at + tokens]
    spend(engine, costs, layout, weights, layout.experts_at + tokens, float(steps))
    if layout.split:
        exchange_us = costs[layout.experts_communication_at + tokens]
        engine.moe_us[kind] += (experts_us - exchange_us) * steps
        engine.communication_us[kind] += exchange_us * steps
    return experts_us


@inlined
def cost_step(
    engine: np.void,
    requests: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    weights: np.ndarray,
    prompt_tokens: int,
    decode_tokens: int,
    decodes: int,
    y: float,
    windowed: float,
) -> tuple:
    """(GPU time, chunks, sampled tokens) of a scheduled step; adds the knots that it uses to ``weights``.

    ``decodes``: decoding requests; ``y``, ``windowed``: their mean contexts, in full and inside the window.
    """
    gpu_us, chunks, ended = cost_layers(
        engine, requests, costs, layout, weights, prompt_tokens + decode_tokens, decodes, y, windowed
    )
    sampled = decode_tokens + ended
    spend(engine, costs, layout, weights, layout.sampled_at + sampled, 1.0)
    if layout.split:
        engine.communication_us[1 if chunks > 0 else 0] += costs[layout.sampled_communication_at + sampled]
    return gpu_us + costs[layout.sampled_at + sampled], chunks, sampled


@inlined
def cost_layers(
    engine: np.void,
    requests: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    weights: np.ndarray,
    tokens: int,
    decodes: int,
    y: float,
    windowed: float,
) -> tuple:
    """(GPU time, chunks, chunks that complete a prompt) of a scheduled step without logits; see ``cost_step``."""
    ended = 0
    chunks = 0
    gpu_us = prompts_us = 0.0
    r = engine.partial
    while r >= 0:
        request = requests[r]
        if request.chunk > 0:
            chunks += 1
            if request.computed + request.chunk == request.known:
                ended += 1
            before = float(request.computed)
            j = knot_below(costs, layout.prefill, before, 0)
            chunk_us = surface_us(costs, layout.prefill, request.chunk, before, j)
            gpu_us += chunk_us
            prompts_us += chunk_us
            add_use(engine, costs, layout, weights, layout.prefill, request.chunk, before, j, 1.0)
        r = request.next_partial
    if chunks > 1 and layout.prefill.y_size > 0:
        # all chunks share one launch: subtract the cost of the smallest knot for every further chunk
        gpu_us -= (chunks - 1) * costs[layout.prefill.at]
        prompts_us -= (chunks - 1) * costs[layout.prefill.at]
        spend(engine, costs, layout, weights, layout.prefill.at, 1.0 - chunks)
    gpu_us += costs[layout.tokens_at + tokens]
    spend(engine, costs, layout, weights, layout.tokens_at + tokens, 1.0)
    decodes_us = 0.0
    if decodes > 0:
        decodes_us = cost_decodes(engine, costs, layout, weights, decodes, y, windowed, 1)
        gpu_us += decodes_us
    if layout.split:
        kind = 1 if chunks > 0 else 0
        engine.prefill_attention_us += prompts_us
        engine.decode_attention_us[kind] += decodes_us
        engine.moe_us[kind] += costs[layout.moe_at + tokens]
        engine.communication_us[kind] += costs[layout.communication_at + tokens]
    return gpu_us, chunks, ended


@inlined
def cost_decodes(
    engine: np.void,
    costs: np.ndarray,
    layout: np.void,
    weights: np.ndarray,
    decodes: int,
    y: float,
    windowed: float,
    times: int,
) -> float:
    """GPU time of ``times`` decode-attention steps of a batch; adds the knots that they use to ``weights``."""
    find_knots(engine, costs, layout, y, windowed)
    gpu_us = surface_us(costs, layout.decode, decodes, y, engine.decode_y)
    gpu_us += surface_us(costs, layout.window, decodes, windowed, engine.window_y)
    add_use(engine, costs, layout, weights, layout.decode, decodes, y, engine.decode_y, float(times))
    add_use(engine, costs, layout, weights, layout.window, decodes, windowed, engine.window_y, float(times))
    return gpu_us * times


@inlined
def end_request(
    engine: np.void, requests: np.ndarray, limits: np.void, hashes: np.ndarray, entries: np.ndarray, r: int
) -> None:
    """Finish a request: free its blocks and its client slot."""
    request = requests[r]
    release(engine, hashes, entries, limits, r, request, tokens_held(engine, request))
    unlink(engine, requests, r)
    note_finish(engine, request, r)


@inlined
def note_finish(engine: np.void, request: np.void, r: int) -> None:
    """Add a request to the finished ones that the client processes next."""
    request.finish_us = engine.now
    request.next_waiting = engine.first_ended
    engine.first_ended = r
    engine.in_flight -= 1


@inlined
def end_decodes(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    before: int,
) -> None:
    """Finish decoding requests with tickets below ``before`` that have their last token, in order."""
    while next_departure(engine, requests, heaps) == engine.clock:
        r = heaps[LEAVING, 0, 1] & NUMBER
        if requests[r].ticket >= before:
            break
        stop_decoding(engine, requests, limits, r)
        end_request(engine, requests, limits, hashes, entries, r)


@inlined
def end_chunks(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    histogram: np.ndarray,
    stalled: bool,
) -> None:
    """Advance partly computed prompts by their chunks; completed ones get a token and start decoding.

    ``stalled``: the decoding requests get no token in this step, so that the new ones are fresh.
    """
    r = engine.partial
    engine.partial = engine.last_partial = NOBODY
    engine.partial_count = 0
    while r >= 0:
        request = requests[r]
        following = request.next_partial
        end_decodes(engine, requests, heaps, limits, hashes, entries, request.ticket)
        request.computed += request.chunk
        request.chunk = 0
        if request.computed < request.known:
            push_partial(engine, requests, r)  # still partly computed
            r = following
            continue
        note_token(engine, request, histogram)
        if request.known == request.target:
            end_request(engine, requests, limits, hashes, entries, r)
        else:
            start_decoding(engine, requests, heaps, limits, r)
            if stalled:
                push_fresh(engine, requests, r)
        r = following


@inlined
def note_token(engine: np.void, request: np.void, histogram: np.ndarray) -> None:
    """Give a request a token at the engine's time, and count its inter-token gap."""
    if request.first_token_us < 0.0:
        request.first_token_us = engine.now
    else:
        gap = engine.now - request.last_token_us
        histogram[gap_bin(histogram, gap)] += 1
        engine.gap_sum_us += gap
    request.last_token_us = engine.now
    if request.resumed_us >= 0.0:
        request.recomputed_us += engine.now - request.resumed_us
        request.resumed_us = -1.0
    request.known += 1
