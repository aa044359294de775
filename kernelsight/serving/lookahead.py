"""When a decode run will end: where several engines share a client, each runs on as long as no request comes to it."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compiled import compiled
from kernelsight.serving.costs import host_times, knot_below, line_at, line_time, steps_to_next_knot


@compiled
def run_end_us(engine: np.void, host: np.void, costs: np.ndarray, layout: np.void, steps: int) -> float:
    """When ``steps`` decode steps end that begin now, line by line as ``decode_run`` takes them; nothing moves.

    No window fills within these steps.
    """
    batch = engine.decoding
    linear_us = costs[layout.tokens_at + batch] + costs[layout.sampled_at + batch]
    hidden_us, exposed_us = host_times(batch, batch, host)
    slope_w = engine.below / batch
    now, done = engine.now, 0
    j, w = engine.decode_y, engine.window_y
    while done < steps:
        y = (engine.base_sum + batch * (engine.clock + done)) / batch
        windowed = (engine.inside + engine.below * done) / batch
        j = knot_below(costs, layout.decode, y, j)
        w = knot_below(costs, layout.window, windowed, w)
        piece = min(float(steps - done), steps_to_next_knot(costs, layout.decode, j, y, 1.0))
        gpu_us, gpu_slope = linear_us, 0.0
        if layout.decode.y_size > 0:
            low, gpu_slope = line_at(costs, layout.decode, batch, j)
            gpu_us += low + gpu_slope * (y - costs[layout.decode.y_at + j])
        if layout.window.y_size > 0:
            low, window_slope = line_at(costs, layout.window, batch, w)
            gpu_us += low + window_slope * (windowed - costs[layout.window.y_at + w])
            gpu_slope += window_slope * slope_w
            piece = min(piece, steps_to_next_knot(costs, layout.window, w, windowed, slope_w))
        step_us, slope = exposed_us + gpu_us, gpu_slope
        if gpu_us < hidden_us:
            step_us, slope = exposed_us + hidden_us, 0.0
        if gpu_slope != 0.0 and (gpu_us < hidden_us) == (gpu_slope > 0.0):
            piece = min(piece, max(np.ceil((hidden_us - gpu_us) / gpu_slope), 1.0))
        now += line_time(step_us, slope, int(piece))
        done += int(piece)
    return now
