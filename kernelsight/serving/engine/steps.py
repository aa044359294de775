"""Execution of a scheduled step: its time, the knots of step costs that it uses, and the tokens that requests get."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.batch import (
    advance,
    push_fresh,
    push_partial,
    start_decoding,
    stop_decoding,
    tokens_held,
    unlink,
)
from kernelsight.serving.engine.costs import add_use, gap_bin, host_times, knot_below, spend, surface_us
from kernelsight.serving.engine.heaps import LEAVING, next_departure
from kernelsight.serving.engine.prefix import release
from kernelsight.serving.engine.records import DECODE, MIXED, NOBODY, NUMBER, PREFILL
from kernelsight.serving.engine.state import Core, Metrics, Step, StepCosts

# columns of a step row
START, END, PROMPTS, DECODES, RUNNING, WAITING, UNITS, HOST_TIME, FOUND, LOOKED_UP, PREEMPTED, STAGE_WAIT = range(12)
ENERGY = 12
COLUMNS = 13  # WAITING is counted afterwards, except with per-request progress


@inlined
def count_decode_gaps(engine: np.void, requests: np.ndarray, histogram: np.ndarray, batch: int, end: float) -> None:
    """Count the inter-token latencies of a decode step: since the last decode step, or a fresh request's last token."""
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
def find_knots(engine: np.void, costs: StepCosts, y: float, windowed: float) -> None:
    """Find the knots below the mean contexts of the decode batch, starting from the last ones."""
    engine.decode_y = knot_below(costs.values, costs.layout.decode, y, engine.decode_y)
    engine.window_y = knot_below(costs.values, costs.layout.window, windowed, engine.window_y)


@inlined
def phase_of(prompt_tokens: int, decode_tokens: int) -> int:
    """Return the phase that a step's costs are counted in."""
    return DECODE if prompt_tokens == 0 else (MIXED if decode_tokens > 0 else PREFILL)


@compiled
def single_step(
    engine: np.void,
    requests: np.ndarray,
    host: np.void,
    costs: StepCosts,
    prompt_tokens: int,
    decode_tokens: int,
    expert_tokens: int,
) -> tuple:
    """Return (GPU time, exposed host time) of one scheduled step; count the costs that it uses.

    ``expert_tokens``: mean tokens that a rank sends to the experts, where ranks step together; otherwise 0.
    """
    phase = phase_of(prompt_tokens, decode_tokens)
    y = windowed = 0.0
    if decode_tokens > 0:
        y = (
            engine.context_offset_sum + engine.decoding * engine.clock - (engine.skipped_tokens - engine.skipped)
        ) / decode_tokens
        windowed = (engine.inside - engine.skipped_inside) / decode_tokens
    gpu_us, chunks, _ = cost_step(
        engine, requests, costs, phase, prompt_tokens, decode_tokens, decode_tokens, y, windowed
    )
    gpu_us += cost_experts(engine, costs, phase, expert_tokens, 1 if chunks > 0 else 0, 1)
    tokens = prompt_tokens + decode_tokens
    hidden_us, exposed_us, _ = host_times(chunks + decode_tokens, tokens, chunks, host)
    return gpu_us, exposed_us + max(0.0, hidden_us - gpu_us)


@inlined
def count_step(core: Core, metrics: Metrics, step: Step) -> None:
    """Add a step to the engine's totals, and write its row."""
    engine, rows = core.engine, metrics.rows
    engine.steps += 1
    engine.prompt_steps += 1 if step.prompt_tokens > 0 else 0
    engine.prompt_tokens += step.prompt_tokens
    engine.gpu_us += step.gpu_us
    engine.host_us += step.host_us
    if rows.shape[0] == 0:
        return
    row = rows[engine.rows]
    row[START], row[END], row[HOST_TIME], row[STAGE_WAIT] = step.start_us, step.end_us, step.host_us, step.wait_us
    row[PROMPTS], row[DECODES], row[RUNNING] = step.prompt_tokens, step.decode_tokens, engine.running
    row[WAITING] = engine.in_flight - engine.running
    row[UNITS] = core.limits.capacity_units - engine.free_units
    row[FOUND], row[LOOKED_UP], row[PREEMPTED] = engine.step_found, engine.step_looked_up, engine.step_preempted
    row[ENERGY] = engine.energy_j - engine.row_energy_j
    engine.row_energy_j = engine.energy_j
    engine.step_preempted = 0
    engine.rows += 1


@compiled
def pass_single_step(core: Core, split: bool, metrics: Metrics, step: Step) -> None:
    """Advance the clock to the end of one step, and give its decodes their tokens; ``split``: see LAYOUT."""
    engine = core.engine
    engine.previous_start = engine.now
    engine.now = step.end_us
    engine.idle_us += step.wait_us
    kind = 1 if step.prompt_tokens > 0 else 0
    engine.step_kind_us[kind] += step.gpu_us + step.wait_us
    if split and core.limits.ranks > 1:
        engine.communication_us[kind] += step.wait_us
    count_step(core, metrics, step)
    if step.decode_tokens > 0:
        count_decode_gaps(engine, core.requests, metrics.histogram, step.decode_tokens, engine.now)
        advance(core, 1)
        engine.decode_steps += 1
    if not engine.stalled:
        engine.last_decode_end = engine.now


@inlined
def cost_experts(engine: np.void, costs: StepCosts, phase: int, tokens: int, kind: int, steps: int) -> float:
    """Return the time by step of the experts that ranks share; count the costs that ``steps`` steps use.

    ``tokens``: mean tokens that a rank sends to them; 0: no ranks. ``kind``: 0 of steps that only decode, else 1.
    """
    values, layout = costs.values, costs.layout
    if tokens == 0:
        return 0.0
    experts_us = values[layout.experts_at + tokens]
    spend(engine, costs, phase, layout.experts_at + tokens, float(steps))
    if layout.split:
        exchange_us = values[layout.experts_communication_at + tokens]
        engine.moe_us[kind] += (experts_us - exchange_us) * steps
        engine.communication_us[kind] += exchange_us * steps
    return experts_us


@inlined
def cost_step(
    engine: np.void,
    requests: np.ndarray,
    costs: StepCosts,
    phase: int,
    prompt_tokens: int,
    decode_tokens: int,
    decodes: int,
    y: float,
    windowed: float,
) -> tuple:
    """Return (GPU time, chunks, sampled tokens) of a scheduled step; count the costs that it uses.

    ``decodes``: decoding requests; ``y``, ``windowed``: their mean contexts, in full and inside the window.
    """
    layout = costs.layout
    gpu_us, chunks, ended = cost_layers(
        engine, requests, costs, phase, prompt_tokens + decode_tokens, decodes, y, windowed
    )
    sampled = decode_tokens + ended
    spend(engine, costs, phase, layout.sampled_at + sampled, 1.0)
    if layout.split:
        engine.communication_us[1 if chunks > 0 else 0] += costs.values[layout.sampled_communication_at + sampled]
    return gpu_us + costs.values[layout.sampled_at + sampled], chunks, sampled


@inlined
def cost_layers(
    engine: np.void,
    requests: np.ndarray,
    costs: StepCosts,
    phase: int,
    tokens: int,
    decodes: int,
    y: float,
    windowed: float,
) -> tuple:
    """Return (GPU time, chunks, chunks that complete a prompt) of a step without logits; see ``cost_step``."""
    values, layout = costs.values, costs.layout
    ended = longest = 0
    chunks = 0
    gpu_us = prompts_us = 0.0
    r = engine.partial
    while r >= 0:
        request = requests[r]
        if request.chunk > 0:
            chunks += 1
            longest = max(longest, request.chunk)
            if request.computed + request.chunk == request.known:
                ended += 1
            before = float(request.computed)
            j = knot_below(values, layout.prefill, before, 0)
            chunk_us = surface_us(values, layout.prefill, request.chunk, before, j)
            gpu_us += chunk_us
            prompts_us += chunk_us
            add_use(engine, costs, phase, layout.prefill, request.chunk, before, j, 1.0)
        r = request.next_partial
    if chunks > 1 and layout.prefill.y_size > 0:
        # all chunks share one launch: subtract the cost of the smallest knot for every further chunk
        gpu_us -= (chunks - 1) * values[layout.prefill.at]
        prompts_us -= (chunks - 1) * values[layout.prefill.at]
        spend(engine, costs, phase, layout.prefill.at, 1.0 - chunks)
    row = tokens + (layout.prompts_at if chunks > 0 else 0)
    gpu_us += values[layout.tokens_at + row]
    spend(engine, costs, phase, layout.tokens_at + row, 1.0)
    decodes_us = 0.0
    if decodes > 0:
        if longest > 1 and layout.mixed.y_size > 0:
            j = knot_below(values, layout.mixed, y, engine.decode_y)
            decodes_us = surface_us(values, layout.mixed, decodes, y, j)
            add_use(engine, costs, phase, layout.mixed, decodes, y, j, 1.0)
        else:
            decodes_us = cost_decodes(engine, costs, phase, decodes, y, windowed, 1)
        gpu_us += decodes_us
    if layout.split:
        kind = 1 if chunks > 0 else 0
        engine.prefill_attention_us += prompts_us
        engine.decode_attention_us[kind] += decodes_us
        engine.moe_us[kind] += values[layout.moe_at + row]
        engine.communication_us[kind] += values[layout.communication_at + row]
    return gpu_us, chunks, ended


@inlined
def cost_decodes(
    engine: np.void, costs: StepCosts, phase: int, decodes: int, y: float, windowed: float, times: int
) -> float:
    """Return the GPU time of ``times`` decode-attention steps of a batch; count the costs that they use."""
    values, layout = costs.values, costs.layout
    find_knots(engine, costs, y, windowed)
    gpu_us = surface_us(values, layout.decode, decodes, y, engine.decode_y)
    gpu_us += surface_us(values, layout.window, decodes, windowed, engine.window_y)
    add_use(engine, costs, phase, layout.decode, decodes, y, engine.decode_y, float(times))
    add_use(engine, costs, phase, layout.window, decodes, windowed, engine.window_y, float(times))
    return gpu_us * times


@inlined
def end_request(core: Core, r: int) -> None:
    """Finish a request: free its blocks and its client slot."""
    engine, request = core.engine, core.requests[r]
    release(core, r, tokens_held(engine, request))
    unlink(engine, core.requests, r)
    note_finish(engine, request, r)


@inlined
def note_finish(engine: np.void, request: np.void, r: int) -> None:
    """Add a request to the finished ones that the client processes next."""
    request.finish_us = engine.now
    request.next_waiting = engine.first_ended
    engine.first_ended = r
    engine.in_flight -= 1


@inlined
def end_decodes(core: Core, before: int) -> None:
    """Finish decoding requests with tickets below ``before`` that have their last token, in order."""
    engine, requests = core.engine, core.requests
    heaps = core.heaps[engine.group]
    while next_departure(engine, requests, heaps) == engine.clock:
        r = heaps[LEAVING, 0, 1] & NUMBER
        if requests[r].ticket >= before:
            break
        stop_decoding(engine, requests, core.limits, r)
        end_request(core, r)


@inlined
def end_chunks(core: Core, histogram: np.ndarray) -> None:
    """Advance partly computed prompts by their chunks; completed ones get a token and start decoding.

    Where the decoding requests get no token in this step (``stalled``), the new ones are fresh.
    """
    engine, requests = core.engine, core.requests
    r = engine.partial
    engine.partial = engine.last_partial = NOBODY
    engine.partial_count = 0
    while r >= 0:
        request = requests[r]
        following = request.next_partial
        end_decodes(core, request.ticket)
        request.computed += request.chunk
        request.chunk = 0
        if request.computed < request.known:
            push_partial(engine, requests, r)  # still partly computed
            r = following
            continue
        note_token(engine, request, histogram)
        if request.known == request.target:
            end_request(core, r)
        else:
            start_decoding(engine, requests, core.heaps[engine.group], core.limits, r)
            if engine.stalled:
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
