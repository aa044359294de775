"""Heaps of a group's requests: when each finishes and when its attention window is full, by the clock of the group.

Entries are (clock, key of the request), the smallest clock first; a group has a heap of each kind (LEAVING, FILLING)
and, with batches in flight, a list of noted requests (FLYING, see ``groups``).
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import inlined
from kernelsight.serving.engine.records import NOBODY, NUMBER, TICKET_BITS

LEAVING, FILLING, FLYING = 0, 1, 2


@inlined
def entrant(requests: np.ndarray, r: int) -> int:
    """Return the key of a request in a heap; keys are in order of admission."""
    return (requests[r].ticket << TICKET_BITS) | r


@inlined
def comes_before(clock: int, name: int, other_clock: int, other: int) -> bool:
    """Whether an entry comes before another: by clock, then by order of admission."""
    return clock < other_clock or (clock == other_clock and name < other)


@inlined
def sift_up(heaps: np.ndarray, heap: int, size: int, clock: int, name: int) -> None:
    """Add an entry to a heap of ``size`` entries."""
    slot = size
    while slot > 0:
        parent = (slot - 1) // 2
        if not comes_before(clock, name, heaps[heap, parent, 0], heaps[heap, parent, 1]):
            break
        heaps[heap, slot, 0], heaps[heap, slot, 1] = heaps[heap, parent, 0], heaps[heap, parent, 1]
        slot = parent
    heaps[heap, slot, 0], heaps[heap, slot, 1] = clock, name


@inlined
def sift_down(heaps: np.ndarray, heap: int, size: int) -> None:
    """Remove the first of ``size`` entries."""
    clock, name = heaps[heap, size - 1, 0], heaps[heap, size - 1, 1]
    last, slot = size - 1, 0
    while True:
        child = 2 * slot + 1
        if child >= last:
            break
        if child + 1 < last and comes_before(
            heaps[heap, child + 1, 0], heaps[heap, child + 1, 1], heaps[heap, child, 0], heaps[heap, child, 1]
        ):
            child += 1
        if not comes_before(heaps[heap, child, 0], heaps[heap, child, 1], clock, name):
            break
        heaps[heap, slot, 0], heaps[heap, slot, 1] = heaps[heap, child, 0], heaps[heap, child, 1]
        slot = child
    heaps[heap, slot, 0], heaps[heap, slot, 1] = clock, name


@inlined
def is_due(batch: np.void, requests: np.ndarray, heap: int, clock: int, name: int) -> bool:
    """Whether an entry is valid; entries of requests that left the group stay in the heap until they reach its top."""
    request = requests[name & NUMBER]
    return request.group == batch.group and (request.leaves_at if heap == LEAVING else request.fills_at) == clock


@inlined
def heap_add(batch: np.void, requests: np.ndarray, heaps: np.ndarray, heap: int, size: int, clock: int, r: int) -> int:
    """Add an entry and return the new size; a full heap first drops its stale entries."""
    if size == heaps.shape[1]:
        kept = 0
        for i in range(size):
            entry, name = heaps[heap, i, 0], heaps[heap, i, 1]
            if is_due(batch, requests, heap, entry, name):
                sift_up(heaps, heap, kept, entry, name)
                kept += 1
        size = kept
    sift_up(heaps, heap, size, clock, entrant(requests, r))
    return size + 1


@inlined
def next_departure(engine: np.void, requests: np.ndarray, heaps: np.ndarray) -> int:
    """Return the decode clock at which the next request finishes; -1: none."""
    while engine.leaving > 0:
        if is_due(engine, requests, LEAVING, heaps[LEAVING, 0, 0], heaps[LEAVING, 0, 1]):
            return heaps[LEAVING, 0, 0]
        sift_down(heaps, LEAVING, engine.leaving)
        engine.leaving -= 1
    return NOBODY


@inlined
def next_filling(engine: np.void, requests: np.ndarray, heaps: np.ndarray) -> int:
    """Return the decode clock at which the next request fills its attention window; -1: none."""
    while engine.filling > 0:
        if is_due(engine, requests, FILLING, heaps[FILLING, 0, 0], heaps[FILLING, 0, 1]):
            return heaps[FILLING, 0, 0]
        sift_down(heaps, FILLING, engine.filling)
        engine.filling -= 1
    return NOBODY
