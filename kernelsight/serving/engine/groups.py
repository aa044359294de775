"""Groups of requests that decode together, on engines with several batches in flight or with drafts.

The requests that decode in one batch share a decode clock, as those of a plain engine do: a batch is formed, sent and
returned without a pass over its requests. A group waits in the engine's record until a batch takes it. Requests that
get no token in that batch are moved to another group; two groups are merged where both wait.

A batch also has *noted* requests: they get a token from it, but were not decoding when it was formed, or have been
preempted since. They are listed with their known tokens at that time, in order of admission.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.batch import (
    forget_fresh,
    is_ready,
    push_fresh,
    start_decoding,
    stop_decoding,
    tokens_in_step,
)
from kernelsight.serving.engine.heaps import FLYING, entrant
from kernelsight.serving.engine.records import NUMBER
from kernelsight.serving.engine.state import Core

# known tokens and drafts of a noted request are packed into one number
DRAFTS_BITS = 8
MOST_DRAFTS = (1 << DRAFTS_BITS) - 1


@inlined
def copy_group(source: np.void, target: np.void, limits: np.void) -> None:
    """Copy the state of a group from one record to another, except for its number."""
    target.decoding, target.clock, target.last_decode_end = source.decoding, source.clock, source.last_decode_end
    target.fresh, target.context_offset_sum = source.fresh, source.context_offset_sum
    target.inside, target.below = source.inside, source.below
    target.leaving, target.filling = source.leaving, source.filling
    target.units_next, target.near_end, target.draft_inside = source.units_next, source.near_end, source.draft_inside
    for i in range(limits.block_size if limits.drafts == 0 else 0):
        target.block_boundaries[i] = source.block_boundaries[i]


@compiled
def change_group(core: Core, batch: np.void) -> None:
    """Exchange the group that waits in the engine's record and the one of a batch."""
    engine, groups = core.engine, core.groups
    own, other = engine.group, batch.group
    copy_group(engine, groups[own], core.limits)
    engine.clocks[own] = engine.clock
    copy_group(groups[other], engine, core.limits)
    engine.group, batch.group = other, own


@inlined
def move(core: Core, source: np.void, target: np.void, r: int) -> None:
    """Move a decoding request from one group to another."""
    catch_up(core.requests, source, r)
    stop_decoding(source, core.requests, core.limits, r)
    start_decoding(target, core.requests, core.heaps[target.group], core.limits, r)
    push_fresh(target, core.requests, r)


@inlined
def catch_up(requests: np.ndarray, group: np.void, r: int) -> None:
    """Record when a request that leaves its group got its last token."""
    if requests[r].fresh:
        forget_fresh(group, requests, r)
    else:
        requests[r].last_token_us = group.last_decode_end


@compiled
def set_aside(core: Core, spare: np.void) -> None:
    """Move the requests that decode, but not in the batch that is formed, to an empty group."""
    engine, requests = core.engine, core.requests
    r = engine.oldest
    while r >= 0:
        if is_ready(engine, requests[r]) and requests[r].chunk == 0:
            move(core, engine, spare, r)
        r = requests[r].after


@compiled
def merge(core: Core, other: np.void) -> None:
    """Move all requests of another group to the one in the engine's record."""
    requests = core.requests
    r = core.engine.oldest
    while r >= 0:
        if requests[r].decoding and requests[r].group == other.group:
            move(core, other, core.engine, r)
        r = requests[r].after


@inlined
def note_request(requests: np.ndarray, heap: np.ndarray, group: np.void, r: int, drafts: int) -> None:
    """List a request that gets a token from a batch without being in its group; ``heap``: of the group."""
    slot, name = group.noted, entrant(requests, r)
    while slot > 0 and heap[FLYING, slot - 1, 1] > name:
        heap[FLYING, slot, 0], heap[FLYING, slot, 1] = heap[FLYING, slot - 1, 0], heap[FLYING, slot - 1, 1]
        slot -= 1
    heap[FLYING, slot, 0], heap[FLYING, slot, 1] = requests[r].known << DRAFTS_BITS | drafts, name
    group.noted += 1


@inlined
def noted_request(heap: np.ndarray, k: int) -> tuple:
    """Return (request, known tokens when the batch was formed, drafts) of the k-th noted request."""
    packed = heap[FLYING, k, 0]
    return heap[FLYING, k, 1] & NUMBER, packed >> DRAFTS_BITS, packed & MOST_DRAFTS


@compiled
def leave_flight(core: Core, r: int) -> None:
    """Take a request out of its group in flight before it is preempted; it is noted, and still gets its token."""
    request = core.requests[r]
    group = core.groups[request.group]
    tokens = tokens_in_step(request, core.limits)
    catch_up(core.requests, group, r)
    stop_decoding(group, core.requests, core.limits, r)
    note_request(core.requests, core.heaps[group.group], group, r, tokens - 1)
    request.computed += tokens
    request.chunk = 0
    request.all_in_flight = True
