"""Prefix caching: which prompt blocks are cached, their reference counts, and LRU eviction.

A prompt is a list of *hash blocks* (one hash covers ``hash_tokens`` tokens and everything before them). The first
``valid`` KV blocks of a hash block are cached. A running request references every hash block that its tokens reach.
Unreferenced blocks, and the private blocks of requests that left, form one free queue in order of release; once blank
blocks are used up, blocks are evicted from its front (least recently used first, tail of a prefix first). A request
that runs alone does not preempt itself, but releases cached blocks that it references beyond its own tokens.
Only blocks of layers without a window are cached; blocks of window layers belong to one request, also after a hit.
A block counts as cached once a step that fills it is scheduled, so that requests of one step share it.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.batch import units_held
from kernelsight.serving.engine.records import NOBODY
from kernelsight.serving.engine.state import Core
from kernelsight.serving.engine.tiers import note_cached, note_evicted


@compiled
def queue_entry(engine: np.void, entries: np.ndarray, e: int) -> None:
    """Append an entry to the free queue."""
    entry = entries[e]
    entry.queued = True
    entry.before, entry.after = engine.last_free, NOBODY
    if engine.last_free >= 0:
        entries[engine.last_free].after = e
    else:
        engine.first_free = e
    engine.last_free = e


@compiled
def unqueue_entry(engine: np.void, entries: np.ndarray, e: int) -> None:
    """Remove an entry from the free queue."""
    entry = entries[e]
    entry.queued = False
    if entry.before >= 0:
        entries[entry.before].after = entry.after
    else:
        engine.first_free = entry.after
    if entry.after >= 0:
        entries[entry.after].before = entry.before
    else:
        engine.last_free = entry.before


@inlined
def take_units(core: Core, units: int) -> None:
    """Allocate KV units: blank ones first, then by evicting the blocks that were released first."""
    engine, limits, entries = core.engine, core.limits, core.entries
    engine.free_units -= units
    if limits.hash_tokens == 0:
        return
    blank = min(units, engine.blank_units)
    engine.blank_units -= blank
    units -= blank
    while units > 0:
        e = engine.first_free
        size = limits.full_units if e < limits.private_at else 1
        lost = min((units + size - 1) // size, entries[e].valid)
        if limits.tiers > 0 and e < limits.private_at:
            note_evicted(core, e, entries[e].valid)
        entries[e].valid -= lost
        units -= lost * size
        if entries[e].valid == 0:
            unqueue_entry(engine, entries, e)
    # evicting a block of several units may free more than is needed
    engine.blank_units -= units


@compiled
def hash_blocks(request: np.void, tokens: int, limits: np.void) -> int:
    """Return the number of hash blocks of which a request's first ``tokens`` tokens fill a KV block."""
    if limits.hash_tokens == 0:
        return 0
    full = min(tokens, request.prompt) // limits.block_size * limits.block_size
    return min((full + limits.hash_tokens - 1) // limits.hash_tokens, request.hash_count)


@compiled
def cached_prefix(request: np.void, hashes: np.ndarray, entries: np.ndarray, limits: np.void) -> tuple:
    """Return (tokens, unreferenced units) of a waiting request's cached prefix; at least one token is left over."""
    if limits.hash_tokens == 0:
        return 0, 0
    per_hash = limits.hash_tokens // limits.block_size
    most = min(request.prompt, request.known - 1) // limits.block_size
    blocks = unkept = 0
    for i in range(request.hash_count):
        entry = entries[limits.entries_at + hashes[request.hash_at + i]]
        hit_blocks = min(entry.valid, most - blocks)
        if hit_blocks > 0 and entry.users == 0:
            unkept += hit_blocks * limits.full_units
        blocks += hit_blocks
        if hit_blocks < per_hash:
            break
    return blocks * limits.block_size, unkept


@compiled
def keep_prefix(core: Core, request: np.void, tokens: int) -> None:
    """Reference the hash blocks of the cached prefix of ``tokens`` tokens of a request that is admitted."""
    engine, limits, hashes, entries = core.engine, core.limits, core.hashes, core.entries
    request.kept = 0
    request.shared_units = 0
    if limits.hash_tokens == 0:
        return
    blocks = tokens // limits.block_size
    per_hash = limits.hash_tokens // limits.block_size
    request.shared_units = blocks * limits.full_units
    while request.kept < hash_blocks(request, tokens, limits):
        e = limits.entries_at + hashes[request.hash_at + request.kept]
        if entries[e].queued:
            # cached blocks beyond the prefix are released: with them the request could exceed the memory
            used = min(entries[e].valid, blocks - request.kept * per_hash)
            unqueue_entry(engine, entries, e)
            engine.free_units -= used * limits.full_units
            engine.blank_units += (entries[e].valid - used) * limits.full_units
            entries[e].valid = used
        entries[e].users += 1
        request.kept += 1


@compiled
def keep_reached(core: Core, request: np.void, tokens: int) -> None:
    """Reference every hash block that the first ``tokens`` tokens reach; blocks cached behind a gap are evicted."""
    engine, limits, hashes, entries = core.engine, core.limits, core.hashes, core.entries
    while request.kept < hash_blocks(request, tokens, limits):
        e = limits.entries_at + hashes[request.hash_at + request.kept]
        if entries[e].queued:
            unqueue_entry(engine, entries, e)
            engine.blank_units += entries[e].valid * limits.full_units
            entries[e].valid = 0
        entries[e].users += 1
        request.kept += 1


@compiled
def cache_chunk(core: Core, request: np.void) -> None:
    """Cache the KV blocks that a scheduled chunk fills, unless another request has cached them."""
    limits, hashes, entries = core.limits, core.hashes, core.entries
    if limits.hash_tokens == 0 or request.hash_count == 0:
        return
    per_hash = limits.hash_tokens // limits.block_size
    before = request.computed // limits.block_size
    after = min(request.computed + request.chunk, request.prompt) // limits.block_size
    keep_reached(core, request, request.computed + request.chunk)
    after = min(after, request.hash_count * per_hash)
    filled = False
    for block in range(before, after):
        number = hashes[request.hash_at + block // per_hash]
        entry = entries[limits.entries_at + number]
        if entry.valid == block % per_hash:
            entry.valid += 1
            request.shared_units += limits.full_units
            filled = True
        if filled and limits.tiers > 0 and (block + 1 == after or (block + 1) % per_hash == 0):
            note_cached(core, number, entry.valid)
            filled = False


@compiled
def keep_own_only(core: Core, request: np.void, tokens: int) -> None:
    """Release the cached blocks that a request which runs alone references beyond those of its ``tokens``.

    Other requests left them; without this a request that fits the memory could run out of blocks.
    """
    engine, limits, hashes, entries = core.engine, core.limits, core.hashes, core.entries
    per_hash = limits.hash_tokens // limits.block_size
    full = min(tokens, request.prompt) // limits.block_size
    spare, request.shared_units = -request.shared_units, 0
    for i in range(request.kept):
        entry = entries[limits.entries_at + hashes[request.hash_at + i]]
        spare += entry.valid * limits.full_units
        entry.valid = min(entry.valid, full - i * per_hash)
        request.shared_units += entry.valid * limits.full_units
    engine.free_units += spare
    engine.blank_units += spare


@compiled
def release(core: Core, r: int, tokens: int) -> None:
    """Free the blocks of a request that leaves with ``tokens`` computed: private ones, then its prefix, tail first."""
    engine, limits, hashes, entries = core.engine, core.limits, core.hashes, core.entries
    request = core.requests[r]
    units = units_held(tokens, limits)
    if limits.hash_tokens == 0:
        engine.free_units += units
        return
    private = units - request.shared_units
    if private > 0:
        own = limits.private_at + r
        if entries[own].queued:
            unqueue_entry(engine, entries, own)
        entries[own].valid += private
        queue_entry(engine, entries, own)
        engine.free_units += private
    while request.kept > 0:
        request.kept -= 1
        e = limits.entries_at + hashes[request.hash_at + request.kept]
        entries[e].users -= 1
        if entries[e].users == 0 and entries[e].valid > 0:
            queue_entry(engine, entries, e)
            engine.free_units += entries[e].valid * limits.full_units
    request.shared_units = 0
