"""Decode runs: steps that differ only by one more token of context each advance at once, segment by segment."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.batch import advance, units_ahead
from kernelsight.serving.engine.compiled import compiled, inlined
from kernelsight.serving.engine.costs import (
    add_gap_line,
    add_use,
    cut_line,
    decode_line,
    host_times,
    line_time,
    spend,
)
from kernelsight.serving.engine.heaps import next_filling
from kernelsight.serving.engine.prefix import take_units
from kernelsight.serving.engine.records import DECODE, FOREVER
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
    find_knots,
)


@compiled
def write_run(
    engine: np.void,
    requests: np.ndarray,
    limits: np.void,
    rows: np.ndarray,
    steps: int,
    step_us: float,
    slope: float,
    gpu_us: float,
    gpu_slope: float,
    pace_us: float,
    pace_slope: float,
    taken: int,
) -> None:
    """Write a row for each of ``steps`` decode steps with linear times; see ``advance_line``."""
    held = limits.capacity_units - engine.free_units - taken
    energy_j = (engine.energy_j - engine.row_energy_j) / steps
    engine.row_energy_j = engine.energy_j
    for j in range(steps):
        row = rows[engine.rows]
        row[START] = engine.now + line_time(pace_us, pace_slope, j)
        row[END] = engine.now + line_time(pace_us, pace_slope, j + 1)
        row[DECODES], row[RUNNING] = engine.decoding, engine.running
        row[UNITS] = held + units_ahead(engine, requests, limits, j + 1)
        row[HOST_TIME] = step_us + slope * j - gpu_us - gpu_slope * j
        row[STAGE_WAIT] = max(pace_us + pace_slope * j - step_us - slope * j, 0.0)
        # no request is admitted in a decode run, and only its first step may have preempted
        row[PREEMPTED] = engine.step_preempted
        engine.step_preempted = 0
        row[PROMPTS] = row[FOUND] = row[LOOKED_UP] = 0.0
        row[ENERGY] = energy_j
        engine.rows += 1


@inlined
def count_run_gaps(
    engine: np.void, requests: np.ndarray, histogram: np.ndarray, step_us: float, slope: float, steps: int
) -> None:
    """Count the inter-token gaps of decode steps with linear times that begin now."""
    batch = engine.decoding
    span_us = line_time(step_us, slope, steps)
    if engine.fresh < 0 and engine.last_decode_end == engine.now:
        # all requests have a token at this time: every gap is one step
        engine.gap_sum_us += span_us * batch
        add_gap_line(histogram, step_us, slope, steps, batch)
    else:
        count_decode_gaps(engine, requests, histogram, batch, engine.now + step_us)
        engine.gap_sum_us += (span_us - step_us) * batch
        add_gap_line(histogram, step_us + slope, slope, steps - 1, batch)


@inlined
def add_run_uses(
    engine: np.void, costs: np.ndarray, layout: np.void, uses: np.ndarray, y: float, windowed: float, steps: int
) -> None:
    """Add the knots of ``steps`` decode steps to ``uses``, at the contexts in the middle of the run."""
    batch, weights = engine.decoding, uses[DECODE]
    middle = (steps - 1) / 2.0
    spend(engine, costs, layout, weights, layout.tokens_at + batch, float(steps))
    spend(engine, costs, layout, weights, layout.sampled_at + batch, float(steps))
    add_use(engine, costs, layout, weights, layout.decode, batch, y + middle, engine.decode_y, float(steps))
    middle_w = windowed + engine.below / batch * middle
    add_use(engine, costs, layout, weights, layout.window, batch, middle_w, engine.window_y, float(steps))


@compiled
def advance_line(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    uses: np.ndarray,
    histogram: np.ndarray,
    rows: np.ndarray,
    y: float,
    windowed: float,
    linear_us: float,
    step_us: float,
    slope: float,
    gpu_us: float,
    gpu_slope: float,
    pace_us: float,
    pace_slope: float,
    steps: int,
    taken: int,
) -> None:
    """Advance a batch that only decodes by ``steps`` steps with linear times.

    ``y``, ``windowed``: its mean contexts, whose knots are found; ``linear_us``: GPU time without attention.
    ``pace_us``, ``pace_slope``: of the slowest rank, for which the others wait; without ranks the engine's own step.
    ``taken``: units of the first step that are allocated already.
    """
    batch = engine.decoding
    span_us, gpu_span_us = line_time(pace_us, pace_slope, steps), line_time(gpu_us, gpu_slope, steps)
    own_span_us = line_time(step_us, slope, steps)
    add_run_uses(engine, costs, layout, uses, y, windowed, steps)
    if layout.split:
        wait_us = span_us - own_span_us
        engine.step_kind_us[0] += gpu_span_us + wait_us
        engine.decode_attention_us[0] += gpu_span_us - linear_us * steps
        engine.moe_us[0] += costs[layout.moe_at + batch] * steps
        collectives_us = costs[layout.communication_at + batch] + costs[layout.sampled_communication_at + batch]
        engine.communication_us[0] += collectives_us * steps + wait_us
    engine.steps += steps
    engine.decode_steps += steps
    engine.gpu_us += gpu_span_us
    engine.host_us += own_span_us - gpu_span_us
    engine.idle_us += span_us - own_span_us
    if rows.shape[0] > 0:
        write_run(engine, requests, limits, rows, steps, step_us, slope, gpu_us, gpu_slope, pace_us, pace_slope, taken)
    count_run_gaps(engine, requests, histogram, pace_us, pace_slope, steps)
    take_units(engine, entries, limits, units_ahead(engine, requests, limits, steps) - taken)
    engine.previous_start = engine.now + line_time(pace_us, pace_slope, steps - 1)
    engine.now += span_us
    engine.last_decode_end = engine.now
    advance(engine, requests, heaps, limits, steps)


@compiled
def decode_run(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    host: np.void,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    uses: np.ndarray,
    histogram: np.ndarray,
    most: int,
    stop_us: float,
    rows: np.ndarray,
) -> None:
    """Advance a batch that only decodes by up to ``most`` steps.

    Steps are advanced segment by segment: all steps with linear times at once. The run ends early when a request
    becomes visible at ``stop_us``: see ``cut_line``.
    """
    batch = engine.decoding
    linear_us = costs[layout.tokens_at + batch] + costs[layout.sampled_at + batch]
    hidden_us, exposed_us, _ = host_times(batch, batch, 0, host)
    taken = units_ahead(engine, requests, limits, 1)
    done, ends = 0, False
    while done < most and not ends:
        y = (engine.context_offset_sum + batch * engine.clock) / batch
        windowed, slope_w = engine.inside / batch, engine.below / batch
        find_knots(engine, costs, layout, y, windowed)
        piece, step_us, slope, gpu_us, gpu_slope = decode_line(
            costs, layout, batch, y, engine.decode_y, windowed, engine.window_y, slope_w, linear_us, hidden_us,
            exposed_us,
        )  # fmt: skip
        piece = min(float(most - done), piece)
        if limits.window_tokens > 0:
            filling = next_filling(engine, requests, heaps)
            if filling >= 0:
                piece = min(piece, float(filling - engine.clock))
        steps, ends, seen = cut_line(step_us, slope, int(piece), stop_us - engine.now, limits.asynchronous)
        if seen:
            stop_us = -FOREVER
        advance_line(
            engine, requests, heaps, limits, entries, costs, layout, uses, histogram, rows, y, windowed, linear_us,
            step_us, slope, gpu_us, gpu_slope, step_us, slope, steps, taken,
        )  # fmt: skip
        taken = 0
        done += steps
