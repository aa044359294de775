"""Cancellation of requests between two steps, as vLLM's ``Scheduler.finish_requests`` does.

The KV blocks of a cancelled request are free for the next step. A step that is underway keeps its requests.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import entry
from kernelsight.serving.engine.batch import is_in_flight
from kernelsight.serving.engine.preemption import leave_batch
from kernelsight.serving.engine.queue import take
from kernelsight.serving.engine.state import Scenario, core_of


@entry
def cancel(r: int, *arrays: np.ndarray) -> bool:
    """Cancel request ``r``, which was sent and has not ended; return False while it is in a step that is underway.

    ``arrays``: the fields of a ``Scenario``, in order.
    """
    scenario = Scenario(*arrays)
    request, client = scenario.requests[r], scenario.clients[0]
    i = request.replica
    engine = scenario.engines[i]
    # a request in the batch has computed tokens, or a chunk in the step that is underway; one in the queue has neither
    running = request.decoding or request.computed > 0 or request.chunk > 0
    if is_in_flight(engine, request) or (running and engine.underway and not scenario.limits[i].stages > 1):
        return False
    if running:
        leave_batch(core_of(scenario, i), r, 0)
    else:
        take(engine, scenario.requests, r)
    request.known = 0  # a batch in flight holds no token for it any more
    engine.in_flight -= 1
    client.in_flight -= 1
    client.ended += 1
    return True
