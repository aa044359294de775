"""Decode runs: consecutive decode steps of one batch, advanced at once while their times grow linearly."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.batch import advance, units_ahead
from kernelsight.serving.engine.costs import (
    add_gap_line,
    add_use,
    contexts_now,
    cut_line,
    decode_line,
    host_times,
    line_time,
    mean_tokens,
    spend,
)
from kernelsight.serving.engine.heaps import next_filling
from kernelsight.serving.engine.prefix import take_units
from kernelsight.serving.engine.records import DECODE, FOREVER
from kernelsight.serving.engine.state import Core, Line, Metrics, StepCosts
from kernelsight.serving.engine.steps import (
    DECODES,
    END,
    ENERGY,
    FOUND,
    HOST_TIME,
    LOOKED_UP,
    PREEMPTED,
    PROMPTS,
    RUNNING,
    STAGE_WAIT,
    START,
    UNITS,
    count_decode_gaps,
)


@compiled
def write_run(core: Core, rows: np.ndarray, steps: int, step: Line, gpu: Line, pace: Line, taken: int) -> None:
    """Write a row for each of ``steps`` decode steps with linear times; see ``advance_line``."""
    engine, requests, limits = core.engine, core.requests, core.limits
    held = limits.capacity_units - engine.free_units - taken
    energy_j = (engine.energy_j - engine.row_energy_j) / steps
    engine.row_energy_j = engine.energy_j
    for j in range(steps):
        row = rows[engine.rows]
        row[START] = engine.now + line_time(pace, j)
        row[END] = engine.now + line_time(pace, j + 1)
        row[DECODES], row[RUNNING] = engine.decoding, engine.running
        row[UNITS] = held + units_ahead(engine, requests, limits, j + 1)
        row[HOST_TIME] = step.first_us + step.slope_us * j - gpu.first_us - gpu.slope_us * j
        row[STAGE_WAIT] = max(pace.first_us + pace.slope_us * j - step.first_us - step.slope_us * j, 0.0)
        # no request is admitted in a decode run, and only its first step may have preempted
        row[PREEMPTED] = engine.step_preempted
        engine.step_preempted = 0
        row[PROMPTS] = row[FOUND] = row[LOOKED_UP] = 0.0
        row[ENERGY] = energy_j
        engine.rows += 1


@inlined
def count_run_gaps(engine: np.void, requests: np.ndarray, histogram: np.ndarray, pace: Line, steps: int) -> None:
    """Count the inter-token gaps of decode steps with linear times that begin now."""
    batch = engine.decoding
    span_us = line_time(pace, steps)
    if engine.fresh < 0 and engine.last_decode_end == engine.now:
        # all requests have a token at this time: every gap is one step
        engine.gap_sum_us += span_us * batch
        add_gap_line(histogram, pace, steps, batch)
    else:
        count_decode_gaps(engine, requests, histogram, batch, engine.now + pace.first_us)
        engine.gap_sum_us += (span_us - pace.first_us) * batch
        add_gap_line(histogram, Line(pace.first_us + pace.slope_us, pace.slope_us), steps - 1, batch)


@inlined
def add_run_uses(engine: np.void, costs: StepCosts, steps: int) -> None:
    """Count the costs that ``steps`` decode steps use, at the contexts in the middle of the run."""
    batch, layout = engine.decoding, costs.layout
    full, windowed = mean_tokens(engine, 0)
    middle = (steps - 1) / 2.0
    spend(engine, costs, DECODE, layout.tokens_at + batch, float(steps))
    spend(engine, costs, DECODE, layout.sampled_at + batch, float(steps))
    add_use(engine, costs, DECODE, layout.decode, batch, full + middle, engine.decode_y, float(steps))
    windowed += engine.below / batch * middle
    add_use(engine, costs, DECODE, layout.window, batch, windowed, engine.window_y, float(steps))


@compiled
def advance_line(
    core: Core,
    costs: StepCosts,
    metrics: Metrics,
    linear_us: float,
    step: Line,
    gpu: Line,
    pace: Line,
    steps: int,
    taken: int,
) -> None:
    """Advance a batch that only decodes by ``steps`` steps with linear times; its knots must have been searched.

    ``linear_us``: GPU time without attention. ``step``, ``gpu``: the engine's own step, and the GPU's part of it;
    ``pace``: of the slowest rank, for which the others wait; without ranks the engine's own step. ``taken``: units of
    the first step that are allocated already.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    batch, values, layout = engine.decoding, costs.values, costs.layout
    span_us, gpu_span_us, own_span_us = line_time(pace, steps), line_time(gpu, steps), line_time(step, steps)
    add_run_uses(engine, costs, steps)
    if layout.split:
        wait_us = span_us - own_span_us
        engine.step_kind_us[0] += gpu_span_us + wait_us
        engine.decode_attention_us[0] += gpu_span_us - linear_us * steps
        engine.moe_us[0] += values[layout.moe_at + batch] * steps
        collectives_us = values[layout.communication_at + batch] + values[layout.sampled_communication_at + batch]
        engine.communication_us[0] += collectives_us * steps + wait_us
    engine.steps += steps
    engine.decode_steps += steps
    engine.gpu_us += gpu_span_us
    engine.host_us += own_span_us - gpu_span_us
    engine.idle_us += span_us - own_span_us
    if metrics.rows.shape[0] > 0:
        write_run(core, metrics.rows, steps, step, gpu, pace, taken)
    count_run_gaps(engine, requests, metrics.histogram, pace, steps)
    take_units(core, units_ahead(engine, requests, limits, steps) - taken)
    engine.previous_start = engine.now + line_time(pace, steps - 1)
    engine.now += span_us
    engine.last_decode_end = engine.now
    advance(core, steps)


@compiled
def decode_run(core: Core, costs: StepCosts, metrics: Metrics, most: int, stop_us: float, prepared: bool) -> None:
    """Advance a batch that only decodes by up to ``most`` steps.

    Steps are advanced segment by segment: all steps with linear times at once. The run ends early when a request
    becomes visible at ``stop_us``, ``prepared`` one step later: see ``cut_line``.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    batch = engine.decoding
    linear_us = costs.values[costs.layout.tokens_at + batch] + costs.values[costs.layout.sampled_at + batch]
    hidden_us, exposed_us, _ = host_times(batch, batch, 0, core.host)
    taken = units_ahead(engine, requests, limits, 1)
    done, ends = 0, False
    while done < most and not ends:
        contexts = contexts_now(engine, costs)
        piece, step, gpu = decode_line(costs, batch, contexts, linear_us, hidden_us, exposed_us)
        piece = min(float(most - done), piece)
        if limits.window_tokens > 0:
            filling = next_filling(engine, requests, core.heaps[engine.group])
            if filling >= 0:
                piece = min(piece, float(filling - engine.clock))
        steps, ends, seen = cut_line(step, int(piece), stop_us - engine.now, prepared)
        if seen:
            stop_us = -FOREVER
        advance_line(core, costs, metrics, linear_us, step, gpu, step, steps, taken)
        taken = 0
        done += steps
    engine.peak_units = max(engine.peak_units, limits.capacity_units - engine.free_units)
