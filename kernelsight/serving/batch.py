"""The running batch: who is in it, in which order, when they leave, and what KV units they hold.

Decoding requests all gain one token a decode step, so what they have is kept as ``base`` against one decode clock:
sums, departures and block needs are then known for many steps ahead without looking at each request.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compiled import compiled, inlined
from kernelsight.serving.records import NOBODY, NUMBER, TICKET_BITS

LEAVING, FILLING = 0, 1


@inlined
def units_held(tokens: int, limits: np.void) -> int:
    """KV units that a request with this many cached tokens holds; none before its first token."""
    if tokens == 0:
        return 0
    blocks = (tokens + limits.block_size - 1) // limits.block_size
    return limits.full_units * blocks + limits.window_units * min(blocks, limits.window_blocks) + limits.sequence_units


@inlined
def tokens_of(engine: np.void, request: np.void) -> int:
    """Tokens of a running request that are in the cache."""
    return request.base + engine.clock if request.decoding else request.computed


@inlined
def tokens_held(engine: np.void, request: np.void) -> int:
    """Tokens that a running request has KV units for: those in the cache, and those of drafts that were rejected."""
    return max(tokens_of(engine, request), request.reserved)


# ---------------------------------------------------------------- heaps of (clock, entrant), smallest clock first


@inlined
def entrant(requests: np.ndarray, r: int) -> int:
    """A request's name in a heap: by these names requests are in order of admission."""
    return (requests[r].ticket << TICKET_BITS) | r


@inlined
def comes_before(clock: int, name: int, other_clock: int, other: int) -> bool:
    """Order of a heap: by clock, and at one clock by order of admission."""
    return clock < other_clock or (clock == other_clock and name < other)


@inlined
def sift_up(heaps: np.ndarray, heap: int, size: int, clock: int, name: int) -> None:
    """Add an entry to a heap of ``size`` entries."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if not comes_before(clock, name, heaps[heap, parent, 0], heaps[heap, parent, 1]):
            break
        heaps[heap, place, 0], heaps[heap, place, 1] = heaps[heap, parent, 0], heaps[heap, parent, 1]
        place = parent
    heaps[heap, place, 0], heaps[heap, place, 1] = clock, name


@inlined
def sift_down(heaps: np.ndarray, heap: int, size: int) -> None:
    """Remove the first of ``size`` entries."""
    clock, name = heaps[heap, size - 1, 0], heaps[heap, size - 1, 1]
    last, place = size - 1, 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and comes_before(
            heaps[heap, child + 1, 0], heaps[heap, child + 1, 1], heaps[heap, child, 0], heaps[heap, child, 1]
        ):
            child += 1
        if not comes_before(heaps[heap, child, 0], heaps[heap, child, 1], clock, name):
            break
        heaps[heap, place, 0], heaps[heap, place, 1] = heaps[heap, child, 0], heaps[heap, child, 1]
        place = child
    heaps[heap, place, 0], heaps[heap, place, 1] = clock, name


@inlined
def is_due(requests: np.ndarray, heap: int, clock: int, name: int) -> bool:
    """True for an entry that still stands; entries of requests that left otherwise stay behind until they are met."""
    request = requests[name & NUMBER]
    return (request.leaves_at if heap == LEAVING else request.fills_at) == clock


@inlined
def heap_add(requests: np.ndarray, heaps: np.ndarray, heap: int, size: int, clock: int, r: int) -> int:
    """Add an entry and return the new size; a full heap first drops the entries that no longer stand."""
    if size == heaps.shape[1]:
        kept = 0
        for i in range(size):
            entry, name = heaps[heap, i, 0], heaps[heap, i, 1]
            if is_due(requests, heap, entry, name):
                sift_up(heaps, heap, kept, entry, name)
                kept += 1
        size = kept
    sift_up(heaps, heap, size, clock, entrant(requests, r))
    return size + 1


@inlined
def next_departure(engine: np.void, requests: np.ndarray, heaps: np.ndarray) -> int:
    """Decode clock at which the next request leaves, -1 for none."""
    while engine.leaving > 0:
        if is_due(requests, LEAVING, heaps[LEAVING, 0, 0], heaps[LEAVING, 0, 1]):
            return heaps[LEAVING, 0, 0]
        sift_down(heaps, LEAVING, engine.leaving)
        engine.leaving -= 1
    return NOBODY


@inlined
def next_filling(engine: np.void, requests: np.ndarray, heaps: np.ndarray) -> int:
    """Decode clock at which the next window fills, -1 for none."""
    while engine.filling > 0:
        if is_due(requests, FILLING, heaps[FILLING, 0, 0], heaps[FILLING, 0, 1]):
            return heaps[FILLING, 0, 0]
        sift_down(heaps, FILLING, engine.filling)
        engine.filling -= 1
    return NOBODY


# ---------------------------------------------------------------- joining and leaving


@inlined
def join(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Put a request at the end of the batch."""
    request = requests[r]
    request.ticket = engine.admitted
    engine.admitted += 1
    request.before, request.after = engine.newest, NOBODY
    if engine.newest >= 0:
        requests[engine.newest].after = r
    else:
        engine.oldest = r
    engine.newest = r
    engine.running += 1


@inlined
def push_partial(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Put a request at the end of the partial ones."""
    requests[r].next_partial = NOBODY
    if engine.partial >= 0:
        requests[engine.last_partial].next_partial = r
    else:
        engine.partial = r
    engine.last_partial = r
    engine.partial_count += 1


@compiled
def forget_partial(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Take a request out of the partial ones, whose order stays."""
    previous, i = NOBODY, engine.partial
    while i != r:
        previous, i = i, requests[i].next_partial
    following = requests[r].next_partial
    if previous >= 0:
        requests[previous].next_partial = following
    else:
        engine.partial = following
    if engine.last_partial == r:
        engine.last_partial = previous
    engine.partial_count -= 1


@inlined
def unlink(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Take a request out of the order of admission."""
    request = requests[r]
    if request.before >= 0:
        requests[request.before].after = request.after
    else:
        engine.oldest = request.after
    if request.after >= 0:
        requests[request.after].before = request.before
    else:
        engine.newest = request.before
    engine.running -= 1


@inlined
def start_decoding(engine: np.void, requests: np.ndarray, heaps: np.ndarray, limits: np.void, r: int) -> None:
    """Count a request among the decoding ones, from the present decode clock on; its computed tokens are up to date."""
    request = requests[r]
    request.decoding = True
    request.base = request.computed - engine.clock
    request.leaves_at = request.target - 1 - request.base
    engine.decoding += 1
    engine.base_sum += request.base
    engine.crossings[(-request.base) % limits.block_size] += 1
    engine.leaving = heap_add(requests, heaps, LEAVING, engine.leaving, request.leaves_at, r)
    request.fills_at = NOBODY
    if limits.window_tokens > 0:
        engine.inside += min(request.computed, limits.window_tokens)
        if request.computed < limits.window_tokens:
            engine.below += 1
            request.fills_at = limits.window_tokens - request.base
            engine.filling = heap_add(requests, heaps, FILLING, engine.filling, request.fills_at, r)


@inlined
def stop_decoding(engine: np.void, requests: np.ndarray, limits: np.void, r: int) -> None:
    """Take a request out of the counts of the decoding ones; its computed tokens are up to date afterwards."""
    request = requests[r]
    request.computed = request.base + engine.clock
    request.known = request.computed + 1
    request.decoding = False
    engine.decoding -= 1
    engine.base_sum -= request.base
    engine.crossings[(-request.base) % limits.block_size] -= 1
    if limits.window_tokens > 0:
        engine.inside -= min(request.computed, limits.window_tokens)
        if request.computed < limits.window_tokens:
            engine.below -= 1
    request.fills_at = NOBODY
    request.leaves_at = NOBODY


@compiled
def push_fresh(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Note a decoding request whose last token was not given in the last decode step."""
    requests[r].fresh = True
    requests[r].next_fresh = engine.fresh
    engine.fresh = r


@compiled
def forget_fresh(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Take a request out of the fresh ones."""
    requests[r].fresh = False
    if engine.fresh == r:
        engine.fresh = requests[r].next_fresh
        return
    i = engine.fresh
    while requests[i].next_fresh != r:
        i = requests[i].next_fresh
    requests[i].next_fresh = requests[r].next_fresh


# ---------------------------------------------------------------- decoding one by one (pipeline stages, drafts)


@inlined
def make_ready(engine: np.void, request: np.void) -> None:
    """Let a request decode from the next batch on: its last token has come back."""
    request.away = False
    request.decoding = True
    request.base = request.computed - engine.clock
    engine.decoding += 1


@inlined
def set_out(engine: np.void, request: np.void) -> None:
    """Take a request out of those that can decode: it is in a batch, or leaves."""
    request.decoding = False
    engine.decoding -= 1


# ---------------------------------------------------------------- KV units ahead


@inlined
def units_ahead(engine: np.void, requests: np.ndarray, limits: np.void, steps: int) -> int:
    """Units that the decoding requests need for their next ``steps`` tokens each, from the present clock."""
    if limits.window_units > 0:
        return units_ahead_by_request(engine, requests, limits, steps)
    blocks = steps // limits.block_size * engine.decoding
    first = engine.clock % limits.block_size
    for i in range(first, first + steps % limits.block_size):
        blocks += engine.crossings[i if i < limits.block_size else i - limits.block_size]
    return blocks * limits.full_units


@compiled
def units_ahead_by_request(engine: np.void, requests: np.ndarray, limits: np.void, steps: int) -> int:
    """The same request by request: blocks of window layers stop growing, each at its own time."""
    units = 0
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        if request.decoding:
            held = tokens_held(engine, request)
            tokens = max(tokens_of(engine, request) + steps, held)
            units += units_held(tokens, limits) - units_held(held, limits)
        r = request.after
    return units


@inlined
def affordable_steps(engine: np.void, requests: np.ndarray, limits: np.void, most: int) -> int:
    """Most decode steps, from 1 up to ``most``, whose blocks are free; those of the first are taken already."""
    if (
        limits.window_units == 0
        and (most // limits.block_size + 1) * engine.decoding * limits.full_units <= engine.free_units
    ):
        return most
    free = engine.free_units + units_ahead(engine, requests, limits, 1)
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if units_ahead(engine, requests, limits, middle) <= free:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def advance(engine: np.void, requests: np.ndarray, heaps: np.ndarray, limits: np.void, steps: int) -> None:
    """Move the decode clock on; between two windows that fill, the tokens inside windows grow on a line."""
    engine.clock += steps
    if limits.window_tokens == 0:
        return
    engine.inside += (engine.below - engine.held_below) * steps
    while next_filling(engine, requests, heaps) == engine.clock:
        requests[heaps[FILLING, 0, 1] & NUMBER].fills_at = NOBODY
        engine.below -= 1
