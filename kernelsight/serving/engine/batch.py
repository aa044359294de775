"""The running batch: its requests in order of admission, when each one finishes, and the KV units they hold.

All decoding requests of a group gain one token per decode step, so the context of each is stored as an offset from the
decode clock of its group (``context_offset``): sums, finishes and block demand are then known many steps ahead without
a pass over requests. An engine has one group; with pipeline stages it has one for each batch in flight and one that
waits for the next batch (see ``groups``). The parameter ``batch`` of a rule may be a group or the engine, whose record
holds its group. With drafts the contexts of a group's requests grow by different numbers of tokens: the demand of the
next step is then added up when a step ends.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.adapters import leave_slot
from kernelsight.serving.engine.heaps import FILLING, LEAVING, heap_add, next_filling
from kernelsight.serving.engine.records import NOBODY, NUMBER
from kernelsight.serving.engine.state import Core


@inlined
def units_held(tokens: int, limits: np.void) -> int:
    """Return the KV units of a request with this many tokens in the KV cache; 0 before its first token."""
    if tokens == 0:
        return 0
    blocks = (tokens + limits.block_size - 1) // limits.block_size
    full, windows = limits.full_units * blocks, limits.window_units * min(blocks, limits.window_blocks)
    return (max(full, windows) if limits.windows_apart else full + windows) + limits.sequence_units


@inlined
def tokens_of(engine: np.void, request: np.void) -> int:
    """Return the tokens of a running request in the KV cache; in a batch in flight, those before that batch."""
    if not request.decoding:
        return request.computed
    return request.context_offset + (engine.clock if request.group == engine.group else engine.clocks[request.group])


@inlined
def tokens_held(engine: np.void, request: np.void) -> int:
    """Return the tokens that a running request has KV units for: cached ones, and those of rejected drafts."""
    return max(tokens_of(engine, request), request.reserved)


@inlined
def is_ready(engine: np.void, request: np.void) -> bool:
    """Whether a running request can decode in the next step."""
    return request.decoding and request.group == engine.group


@inlined
def is_in_flight(engine: np.void, request: np.void) -> bool:
    """Whether a running request waits for its token from a batch in flight."""
    return request.all_in_flight or (request.decoding and request.group != engine.group)


@inlined
def chunk_must_return(engine: np.void, request: np.void, limits: np.void) -> bool:
    """Whether a partly computed prompt gets no chunk now, because the one before it is in flight."""
    return not limits.chunks_overlap and request.chunk_returns_us > engine.now


@inlined
def tokens_in_step(request: np.void, limits: np.void) -> int:
    """Return the tokens of a decoding request in its batch; with all drafts where ``chunk`` is 0."""
    return request.chunk if request.chunk > 0 else 1 + limits.drafts


# ---------------------------------------------------------------- joining and leaving


@inlined
def join(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Append a request to the running batch."""
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
    """Append a request to the list of partly computed prompts."""
    requests[r].next_partial = NOBODY
    if engine.partial >= 0:
        requests[engine.last_partial].next_partial = r
    else:
        engine.partial = r
    engine.last_partial = r
    engine.partial_count += 1


@compiled
def forget_partial(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Remove a request from the list of partly computed prompts."""
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
    """Remove a request from the running batch."""
    request = requests[r]
    leave_slot(engine, request)
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
def start_decoding(batch: np.void, requests: np.ndarray, heaps: np.ndarray, limits: np.void, r: int) -> None:
    """Add a request, whose ``computed`` is up to date, to the decoding requests at the current decode clock."""
    request = requests[r]
    request.decoding, request.group = True, batch.group
    request.context_offset = request.computed - batch.clock
    request.leaves_at = request.target - 1 - request.context_offset
    request.fills_at = NOBODY
    batch.decoding += 1
    batch.context_offset_sum += request.context_offset
    if limits.drafts > 0:
        count_ahead(batch, request, limits, request.computed, 1)
        return
    batch.block_boundaries[(-request.context_offset) % limits.block_size] += 1
    batch.leaving = heap_add(batch, requests, heaps, LEAVING, batch.leaving, request.leaves_at, r)
    if limits.window_tokens > 0:
        batch.inside += min(request.computed, limits.window_tokens)
        if request.computed < limits.window_tokens:
            batch.below += 1
            request.fills_at = limits.window_tokens - request.context_offset
            batch.filling = heap_add(batch, requests, heaps, FILLING, batch.filling, request.fills_at, r)


@inlined
def stop_decoding(batch: np.void, requests: np.ndarray, limits: np.void, r: int) -> None:
    """Remove a request from the decoding requests and bring its ``computed`` up to date."""
    request = requests[r]
    request.computed = request.context_offset + batch.clock
    request.known = request.computed + 1
    request.decoding = False
    request.fills_at = NOBODY
    request.leaves_at = NOBODY
    batch.decoding -= 1
    batch.context_offset_sum -= request.context_offset
    if limits.drafts > 0:
        count_ahead(batch, request, limits, request.computed, -1)
        return
    batch.block_boundaries[(-request.context_offset) % limits.block_size] -= 1
    if limits.window_tokens > 0:
        batch.inside -= min(request.computed, limits.window_tokens)
        if request.computed < limits.window_tokens:
            batch.below -= 1


@inlined
def reserve(request: np.void, limits: np.void, tokens: int) -> None:
    """Record that a request has KV units for ``tokens``, rounded up to whole blocks."""
    if tokens > request.reserved:
        request.reserved = (tokens + limits.block_size - 1) // limits.block_size * limits.block_size


@inlined
def count_ahead(batch: np.void, request: np.void, limits: np.void, tokens: int, times: int) -> None:
    """Add ``times`` (1 or -1) the next step's KV demand and the attention windows of a request with drafts."""
    held, end = max(tokens, request.reserved), tokens + 1 + limits.drafts
    if end > held:
        batch.units_next += times * (units_held(end, limits) - units_held(held, limits))
    batch.near_end += times if limits.max_model_len - 1 - tokens < 1 + limits.drafts else 0
    batch.inside += times * min(tokens, limits.window_tokens)
    batch.draft_inside += times * min(tokens, limits.draft_window_tokens)


@compiled
def push_fresh(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Add a decoding request to the fresh list: its last token is not from the last decode step."""
    requests[r].fresh = True
    requests[r].next_fresh = engine.fresh
    engine.fresh = r


@compiled
def forget_fresh(engine: np.void, requests: np.ndarray, r: int) -> None:
    """Remove a request from the fresh list."""
    requests[r].fresh = False
    if engine.fresh == r:
        engine.fresh = requests[r].next_fresh
        return
    i = engine.fresh
    while requests[i].next_fresh != r:
        i = requests[i].next_fresh
    requests[i].next_fresh = requests[r].next_fresh


# ---------------------------------------------------------------- KV demand of the next steps


@inlined
def units_next(engine: np.void, requests: np.ndarray, limits: np.void) -> int:
    """Return the KV units that the decoding requests need for the next step."""
    return engine.units_next if limits.drafts > 0 else units_ahead(engine, requests, limits, 1)


@inlined
def units_ahead(engine: np.void, requests: np.ndarray, limits: np.void, steps: int) -> int:
    """Return the KV units that the decoding requests need for their next ``steps`` tokens each."""
    if limits.window_units > 0:
        return units_ahead_by_request(engine, requests, limits, steps)
    blocks = steps // limits.block_size * engine.decoding
    first = engine.clock % limits.block_size
    for i in range(first, first + steps % limits.block_size):
        blocks += engine.block_boundaries[i if i < limits.block_size else i - limits.block_size]
    return blocks * limits.full_units


@compiled
def units_ahead_by_request(engine: np.void, requests: np.ndarray, limits: np.void, steps: int) -> int:
    """Return ``units_ahead`` by a pass over the requests: blocks of window layers stop growing at different times."""
    units = 0
    r = engine.oldest
    while r >= 0:
        request = requests[r]
        if is_ready(engine, request):
            held = tokens_of(engine, request)
            units += units_held(held + steps, limits) - units_held(held, limits)
        r = request.after
    return units


@inlined
def affordable_steps(engine: np.void, requests: np.ndarray, limits: np.void, most: int) -> int:
    """Return the largest number of decode steps, 1 to ``most``, with enough free blocks; the first has its blocks."""
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
def advance(core: Core, steps: int) -> None:
    """Advance the decode clock; the tokens inside attention windows grow linearly until the next window is full."""
    engine, requests = core.engine, core.requests
    engine.clock += steps
    if core.limits.window_tokens == 0:
        return
    engine.inside += (engine.below - engine.skipped_below) * steps
    heaps = core.heaps[engine.group]
    while next_filling(engine, requests, heaps) == engine.clock:
        requests[heaps[FILLING, 0, 1] & NUMBER].fills_at = NOBODY
        engine.below -= 1
