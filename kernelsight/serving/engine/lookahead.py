"""How far a decode run reaches: engines that share a client plan runs, which a new request may cut short."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.admission import shrinks_uncached
from kernelsight.serving.engine.batch import affordable_steps
from kernelsight.serving.engine.compiled import compiled, inlined
from kernelsight.serving.engine.costs import decode_line, host_times, knot_below, line_time
from kernelsight.serving.engine.heaps import next_departure
from kernelsight.serving.engine.policy import candidate, until_poll
from kernelsight.serving.engine.queue import next_visible_us
from kernelsight.serving.engine.records import FOREVER


@inlined
def decode_until(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    host: np.void,
    again: bool,
    horizon: float,
    rows: np.ndarray,
    send_us: float,
    alone: bool,
) -> tuple:
    """(largest number of decode steps until the batch changes, time of the event that may end them earlier).

    ``send_us``: when the client sends next; ``alone``: this engine is the client's only one.
    """
    most = 1
    if limits.tiers > 0 and (engine.loading > 0 or candidate(engine, requests, limits, horizon) >= 0):
        again = True  # a load may end, or what the tiers hold of the next prompt may change
    if not again and not shrinks_uncached(engine, requests, limits, horizon):
        most = affordable_steps(engine, requests, limits, next_departure(engine, requests, heaps) - engine.clock)
    if rows.shape[0] > 0:
        most = min(most, rows.shape[0] - engine.rows)
    stop_us = FOREVER
    if not engine.blocked:
        stop_us = next_visible_us(engine, requests, limits, horizon)
        if alone:
            stop_us = min(stop_us, send_us + host.request_us)
        stop_us -= limits.batch_wait_us
    if not limits.plain:
        most, stop_us = until_poll(engine, limits, most, stop_us)
    return most, stop_us


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
