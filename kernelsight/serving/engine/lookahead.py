"""When a decode run will end: engines that share a client plan runs, which a new request may cut short."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.compiled import compiled
from kernelsight.serving.engine.costs import decode_line, host_times, knot_below, line_time


@compiled
def run_end_us(engine: np.void, host: np.void, costs: np.ndarray, layout: np.void, steps: int) -> float:
    """End of ``steps`` decode steps that begin now, computed as ``decode_run`` does, without changing any state.

    No attention window fills within these steps.
    """
    batch = engine.decoding
    linear_us = costs[layout.tokens_at + batch] + costs[layout.sampled_at + batch]
    hidden_us, exposed_us, _ = host_times(batch, batch, 0, host)
    slope_w = engine.below / batch
    now, done = engine.now, 0
    j, w = engine.decode_y, engine.window_y
    while done < steps:
        y = (engine.context_offset_sum + batch * (engine.clock + done)) / batch
        windowed = (engine.inside + engine.below * done) / batch
        j = knot_below(costs, layout.decode, y, j)
        w = knot_below(costs, layout.window, windowed, w)
        piece, step_us, slope, _, _ = decode_line(
            costs, layout, batch, y, j, windowed, w, slope_w, linear_us, hidden_us, exposed_us
        )
        piece = min(float(steps - done), piece)
        now += line_time(step_us, slope, int(piece))
        done += int(piece)
    return now
