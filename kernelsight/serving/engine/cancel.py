"""Cancellation: a request leaves its engine between two steps, as vLLM's ``Scheduler.finish_requests`` does it.

Its blocks are free for the next step. A step that is underway keeps its requests: what was launched is not taken back.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.batch import is_in_flight
from kernelsight.serving.engine.compiled import entry
from kernelsight.serving.engine.preemption import leave_batch
from kernelsight.serving.engine.queue import take


@entry
def cancel(
    clients: np.ndarray,
    engines: np.ndarray,
    requests: np.ndarray,
    limits: np.ndarray,
    hashes: np.ndarray,
    entries: np.ndarray,
    r: int,
) -> bool:
    """Cancel a request that was sent and has not ended; False while a step is underway that it is in.

    Arrays have an item for each engine, as in ``loop``; ``r``: the request.
    """
    request, client = requests[r], clients[0]
    i = request.replica
    engine = engines[i]
    # a request in the batch has computed tokens, or a chunk in the step that is underway; one in the queue has neither
    running = request.decoding or request.computed > 0 or request.chunk > 0
    if is_in_flight(engine, request) or (running and engine.underway and not limits[i].stages > 1):
        return False
    if running:
        leave_batch(engine, requests, limits[i], hashes, entries, r, 0)
    else:
        take(engine, requests, r)
    request.known = 0  # a batch in flight holds no token for it any more
    engine.in_flight -= 1
    client.in_flight -= 1
    client.ended += 1
    return True
