"""The queue of one engine: which requests wait there, which of them it can see, and who is next."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.batch import units_held
from kernelsight.serving.compiled import compiled
from kernelsight.serving.records import FINISHED, FOREVER, NO_MEMORY, NOBODY, TOO_LONG


@compiled
def verdict(request: np.void, limits: np.void) -> int:
    """FINISHED for a request that the engine can serve, else why it turns it away."""
    if request.target > limits.max_model_len or (not limits.chunked and request.prompt > limits.max_num_batched_tokens):
        return TOO_LONG
    return NO_MEMORY if units_held(request.target - 1, limits) > limits.capacity_units else FINISHED


@compiled
def enqueue(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Put a request at the end of the queue; requests come in the order in which they become visible."""
    requests[r].next_waiting = NOBODY
    if engine.first_waiting >= 0:
        requests[engine.last_waiting].next_waiting = r
    else:
        engine.first_waiting = r
    engine.last_waiting = r


@compiled
def return_to_front(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Put a preempted request before all others, where it is seen at once."""
    requests[r].visible_us = -FOREVER
    requests[r].next_waiting = engine.first_waiting
    if engine.first_waiting < 0:
        engine.last_waiting = r
    engine.first_waiting = r


@compiled
def queue_head(engine: np.void, requests: np.ndarray, horizon: float) -> int:
    """The request that would be admitted next, of those that are visible at ``horizon``; -1 for none."""
    head = engine.first_waiting
    return head if head >= 0 and requests[head].visible_us <= horizon else NOBODY


@compiled
def take_head(engine: np.void, requests: np.ndarray) -> None:
    """Remove the request that ``queue_head`` named."""
    engine.first_waiting = requests[engine.first_waiting].next_waiting


@compiled
def next_visible_us(engine: np.void, requests: np.ndarray) -> float:
    """When the head of the queue is seen; infinite for an empty queue."""
    return requests[engine.first_waiting].visible_us if engine.first_waiting >= 0 else FOREVER
