"""The benchmark client: when requests are sent, to whom, and what follows from those that ended."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compiled import compiled
from kernelsight.serving.queue import enqueue, verdict
from kernelsight.serving.records import FINISHED, FOREVER


@compiled
def next_send_us(client: np.void, requests: np.ndarray) -> float:
    """When the next request goes out, as far as is known now; infinite while no slot is free, or none is left."""
    if client.next == requests.size or client.in_flight == client.max_concurrency:
        return FOREVER
    return max(requests[client.next].arrival_us, client.now)


@compiled
def send_next(client: np.void, engine: np.void, requests: np.ndarray, limits: np.void, host: np.void) -> None:
    """Send the next request to an engine; what that can never serve is turned away, and its slot is free again."""
    r = client.next
    request = requests[r]
    request.sent_us = client.now
    request.visible_us = client.now + host.request_us
    client.next += 1
    request.status = verdict(request, limits)
    if request.status != FINISHED:
        client.ended += 1
        return
    client.in_flight += 1
    engine.in_flight += 1
    enqueue(engine, requests, limits, r)


@compiled
def note_ended(client: np.void, engine: np.void, requests: np.ndarray) -> None:
    """Free the slots of the requests that ended."""
    r = engine.first_ended
    while r >= 0:
        client.ended += 1
        client.in_flight -= 1
        r = requests[r].next_waiting
    engine.first_ended = -1
