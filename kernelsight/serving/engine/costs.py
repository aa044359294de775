"""Step times: GPU time interpolated from step costs, with the knots that it uses; host time; ITL histogram.

And the length of decode runs, steps until the batch changes: engines that share a client plan runs that may be cut
short.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine import host
from kernelsight.serving.engine.admission import shrinks_uncached
from kernelsight.serving.engine.batch import affordable_steps
from kernelsight.serving.engine.heaps import next_departure
from kernelsight.serving.engine.policy import candidate, until_poll
from kernelsight.serving.engine.queue import next_visible_us
from kernelsight.serving.engine.records import BIN_WIDTH, FOREVER
from kernelsight.serving.engine.state import Contexts, Core, Line, StepCosts


@inlined
def decode_until(core: Core, rows: np.ndarray, again: bool, horizon: float, send_us: float, alone: bool) -> tuple:
    """Return (most decode steps until the batch changes, time of the event that may end them earlier).

    ``send_us``: when the client sends next; ``alone``: this engine is the client's only one.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    most = 1
    if limits.tiers > 0 and (engine.loading > 0 or candidate(engine, requests, limits, horizon) >= 0):
        again = True  # a load may end, or what the tiers hold of the next prompt may change
    if not again and not shrinks_uncached(engine, requests, limits, horizon):
        departure = next_departure(engine, requests, core.heaps[engine.group])
        most = affordable_steps(engine, requests, limits, departure - engine.clock)
    if rows.shape[0] > 0:
        most = min(most, rows.shape[0] - engine.rows)
    stop_us = FOREVER
    if not engine.blocked:
        stop_us = next_visible_us(engine, requests, limits, horizon)
        if alone:
            stop_us = min(stop_us, send_us + core.host.request_us)
        stop_us -= limits.batch_wait_us
    if not limits.plain:
        most, stop_us = until_poll(engine, limits, most, stop_us)
    return most, stop_us


@compiled
def run_end_us(engine: np.void, host: np.void, costs: StepCosts, steps: int) -> float:
    """Return the end of ``steps`` decode steps that begin now, as ``decode_run`` computes it, without changing state.

    No attention window fills within these steps.
    """
    batch = engine.decoding
    linear_us = costs.values[costs.layout.tokens_at + batch] + costs.values[costs.layout.sampled_at + batch]
    hidden_us, exposed_us, _ = host_times(batch, batch, 0, host)
    now, done = engine.now, 0
    j, w = engine.decode_y, engine.window_y
    while done < steps:
        contexts = contexts_ahead(engine, costs, done, j, w)
        j, w = contexts.full_knot, contexts.window_knot
        piece, step, _ = decode_line(costs, batch, contexts, linear_us, hidden_us, exposed_us)
        piece = min(float(steps - done), piece)
        now += line_time(step, int(piece))
        done += int(piece)
    return now


host_times = inlined(host.host_times)


@inlined
def knot_below(costs: np.ndarray, part: np.void, y: float, hint: int) -> int:
    """Return the index of the y knot below ``y``, at most the last but one; ``hint``: where the search begins."""
    last = part.y_size - 2
    if last < 1:
        return 0
    at = part.y_at
    low = min(hint, last)
    if costs[at + low] <= y or low == 0:
        if low == last or y < costs[at + low + 1]:
            return low
        if low + 1 == last or y < costs[at + low + 2]:
            return low + 1
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        if costs[at + middle] <= y:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def line_at(costs: np.ndarray, part: np.void, x: int, j: int) -> tuple:
    """Return (value at y knot ``j``, slope above it) of a surface at one x; the last segment is extrapolated."""
    corner = part.at + int(costs[part.x_at + x]) * part.y_size + j
    share = costs[part.share_at + x]
    right = part.y_size if share != 0.0 else 0
    low = (1.0 - share) * costs[corner] + share * costs[corner + right]
    if part.y_size < 2:
        return low, 0.0
    high = (1.0 - share) * costs[corner + 1] + share * costs[corner + right + 1]
    return low, (high - low) / (costs[part.y_at + j + 1] - costs[part.y_at + j])


@inlined
def surface_us(costs: np.ndarray, part: np.void, x: int, y: float, j: int) -> float:
    """Return a surface, interpolated bilinearly, at a whole x, with the y knot ``j`` below; 0 for an absent part."""
    if part.y_size == 0:
        return 0.0
    low, slope = line_at(costs, part, x, j)
    return low + slope * (y - costs[part.y_at + j])


@inlined
def spend(engine: np.void, costs: StepCosts, phase: int, at: int, times: float) -> None:
    """Add ``times`` uses of the cost at ``at`` in a phase, and its energy and measured time to the engine's."""
    costs.uses[phase, at] += times
    engine.energy_j += times * costs.values[costs.layout.energy_at + at]
    engine.measured_us += times * costs.values[2 * costs.layout.energy_at + at]


@inlined
def add_use(
    engine: np.void, costs: StepCosts, phase: int, part: np.void, x: int, y: float, j: int, times: float
) -> None:
    """Add ``times`` steps at (x, y) to the uses of the four knots around it; linear, so y may be a mean over steps."""
    if part.y_size == 0:
        return
    values = costs.values
    corner = part.at + int(values[part.x_at + x]) * part.y_size + j
    share = values[part.share_at + x]
    right = part.y_size if share != 0.0 else 0
    upper = 0
    above = 0.0
    if part.y_size > 1:
        upper = 1
        above = (y - values[part.y_at + j]) / (values[part.y_at + j + 1] - values[part.y_at + j])
    spend(engine, costs, phase, corner, times * (1.0 - share) * (1.0 - above))
    spend(engine, costs, phase, corner + right, times * share * (1.0 - above))
    spend(engine, costs, phase, corner + upper, times * (1.0 - share) * above)
    spend(engine, costs, phase, corner + right + upper, times * share * above)


@inlined
def mean_tokens(engine: np.void, ahead: int) -> tuple:
    """Return the mean contexts of the decode batch ``ahead`` steps from now: in full, and inside the window."""
    batch = engine.decoding
    full = (engine.context_offset_sum + batch * (engine.clock + ahead)) / batch
    return full, (engine.inside + engine.below * ahead) / batch


@inlined
def contexts_ahead(engine: np.void, costs: StepCosts, ahead: int, full_knot: int, window_knot: int) -> Contexts:
    """Return ``mean_tokens`` with the knots below them; ``full_knot``, ``window_knot``: where the search begins."""
    full, windowed = mean_tokens(engine, ahead)
    full_knot = knot_below(costs.values, costs.layout.decode, full, full_knot)
    window_knot = knot_below(costs.values, costs.layout.window, windowed, window_knot)
    return Contexts(full, windowed, full_knot, window_knot, engine.below / engine.decoding)


@inlined
def contexts_now(engine: np.void, costs: StepCosts) -> Contexts:
    """Return the contexts of the next decode step; their knots are kept for the next search."""
    contexts = contexts_ahead(engine, costs, 0, engine.decode_y, engine.window_y)
    engine.decode_y, engine.window_y = contexts.full_knot, contexts.window_knot
    return contexts


@inlined
def steps_to_next_knot(costs: np.ndarray, part: np.void, j: int, y: float, slope: float) -> float:
    """Return the steps until ``y``, growing by ``slope`` per step, passes the next knot; at least 1."""
    if part.y_size < 2 or slope <= 0.0 or j >= part.y_size - 2:
        return FOREVER
    return max(np.ceil((costs[part.y_at + j + 1] - y) / slope), 1.0)


@inlined
def decode_line(
    costs: StepCosts, batch: int, contexts: Contexts, linear_us: float, hidden_us: float, exposed_us: float
) -> tuple:
    """Return (steps, step times, GPU times) of the next decode steps whose times grow linearly, at least one.

    ``linear_us``: GPU time without attention; ``hidden_us``, ``exposed_us``: host time, see ``host_times``.
    """
    values, layout = costs.values, costs.layout
    full, windowed, j, w = contexts.full, contexts.windowed, contexts.full_knot, contexts.window_knot
    steps = steps_to_next_knot(values, layout.decode, j, full, 1.0)
    gpu_us, gpu_slope = linear_us, 0.0
    if layout.decode.y_size > 0:
        low, gpu_slope = line_at(values, layout.decode, batch, j)
        gpu_us += low + gpu_slope * (full - values[layout.decode.y_at + j])
    if layout.window.y_size > 0:
        low, window_slope = line_at(values, layout.window, batch, w)
        gpu_us += low + window_slope * (windowed - values[layout.window.y_at + w])
        gpu_slope += window_slope * contexts.window_slope
        steps = min(steps, steps_to_next_knot(values, layout.window, w, windowed, contexts.window_slope))
    step_us, slope = exposed_us + gpu_us, gpu_slope
    if gpu_us < hidden_us:
        step_us, slope = exposed_us + hidden_us, 0.0
    if gpu_slope != 0.0 and (gpu_us < hidden_us) == (gpu_slope > 0.0):
        # the slower of host and GPU sets the pace, until the GPU's line crosses the host's
        steps = min(steps, max(np.ceil((hidden_us - gpu_us) / gpu_slope), 1.0))
    return steps, Line(step_us, slope), Line(gpu_us, gpu_slope)


@inlined
def gap_bin(histogram: np.ndarray, gap_us: float) -> int:
    """Return the bin of an inter-token latency in the logarithmic histogram."""
    return min(max(int(np.log(max(gap_us, 1.0)) / BIN_WIDTH), 0), histogram.size - 1)


@inlined
def add_gap_line(histogram: np.ndarray, gaps: Line, steps: int, count: int) -> None:
    """Add ``count`` inter-token latencies for each of ``steps`` steps with linear times to the histogram."""
    done = 0
    while done < steps:
        gap = gaps.first_us + gaps.slope_us * done
        number = gap_bin(histogram, gap)
        inside = steps - done
        if abs(gaps.slope_us) > 1e-12 and inside > 1:
            edge = np.exp((number + (1 if gaps.slope_us > 0.0 else 0)) * BIN_WIDTH)
            inside = min(inside, max(int((edge - gap) / gaps.slope_us), 1))
        histogram[number] += count * inside
        done += inside


@inlined
def line_time(line: Line, steps: float) -> float:
    """Return the total time of ``steps`` steps whose times grow linearly."""
    return steps * line.first_us + line.slope_us * steps * (steps - 1.0) / 2.0


@inlined
def steps_until(line: Line, most: int, span_us: float) -> int:
    """Return the fewest steps (at most ``most``) with linear times that take ``span_us``: the root of a quadratic."""
    if span_us <= 0.0:
        return 0
    steps = span_us / line.first_us
    if line.slope_us != 0.0:
        half = line.first_us - line.slope_us / 2.0
        root = half * half + 2.0 * line.slope_us * span_us
        steps = (np.sqrt(root) - half) / line.slope_us if root > 0.0 else float(most)
    count = min(max(int(steps), 0), most)
    while count > 0 and line_time(line, count - 1) >= span_us:
        count -= 1
    while count < most and line_time(line, count) < span_us:
        count += 1
    return count


@inlined
def cut_line(line: Line, steps: int, span_us: float, prepared: bool) -> tuple:
    """Return (steps, whether the run ends with them, whether they pass ``span_us``), of up to ``steps`` linear ones.

    The run ends after the step that passes ``span_us``; one step later where that was ``prepared`` already, as with
    asynchronous scheduling.
    """
    if span_us <= 0.0:
        return 1, True, True
    if span_us == FOREVER:
        return steps, False, False
    passing = steps_until(line, steps, span_us)
    if line_time(line, passing) < span_us:
        return steps, False, False
    if not prepared:
        return passing, True, True
    # the additional step may belong to the same segment
    return (passing + 1, True, True) if passing < steps else (passing, False, True)
