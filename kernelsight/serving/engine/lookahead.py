"""Length of decode runs: steps until the batch changes; engines that share a client plan runs that may be cut short."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.admission import shrinks_uncached
from kernelsight.serving.engine.batch import affordable_steps
from kernelsight.serving.engine.costs import contexts_ahead, decode_line, host_times, line_time
from kernelsight.serving.engine.heaps import next_departure
from kernelsight.serving.engine.policy import candidate, until_poll
from kernelsight.serving.engine.queue import next_visible_us
from kernelsight.serving.engine.records import FOREVER
from kernelsight.serving.engine.state import Core, StepCosts


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
