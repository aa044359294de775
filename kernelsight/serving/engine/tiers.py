"""KV tiers behind the GPU's prefix cache (host memory, disk, store): cached blocks, LRU eviction, and transfers.

A tier holds leading KV blocks of hash blocks, as the GPU's cache does (``prefix``), in a list from the least to the
most recently used; in the array of entries, its own record precedes those of its blocks. Engines that share a tier have
the same entries for it. Hits continue where those of the GPU's cache end, each block in the first tier that has it, and
are loaded to the GPU before they are used. By the deployment's write policy, a block is written

- THROUGH: to every tier, when it is cached on the GPU (vLLM's offloading connector, SGLang's and Dynamo's defaults);
- BACK: to the first tier, when the GPU's cache evicts it; what a tier evicts goes to the next one;
- MOVED: likewise, and a block that is loaded leaves the tier (TensorRT-LLM's host cache).

An evicted block that no tier takes is lost. An admission touches all hits of the prompt, the last one first, in every
tier that has them; new blocks are the most recently used, in their order (vLLM ``LRUCachePolicy``). Without a free
block the least recently used hash block is evicted, from its tail. Loads and writes move over the link between host and
GPU (PCIe), in each direction, and over the tier's own; each link serves them in order. Writes run in the background,
except that a step which reuses evicted blocks waits for them; a block counts as held once its write is queued.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled
from kernelsight.serving.engine.records import FOREVER, MOVED, NOBODY, THROUGH
from kernelsight.serving.engine.state import Core


@compiled
def unlink_entry(entries: np.ndarray, e: int) -> None:
    """Take an entry out of its tier's list."""
    entries[entries[e].before].after = entries[e].after
    entries[entries[e].after].before = entries[e].before
    entries[e].queued = False


@compiled
def touch(entries: np.ndarray, tier: int, e: int) -> None:
    """Make an entry the most recently used of the tier whose record is ``tier``."""
    if entries[e].queued:
        unlink_entry(entries, e)
    last = entries[tier].before
    entries[e].before, entries[e].after, entries[e].queued = last, tier, True
    entries[last].after = entries[tier].before = e


@compiled
def take_oldest(core: Core, t: int, keep: int, blocks: int) -> tuple:
    """Evict up to ``blocks`` of the least recently used hash block other than ``keep``; return (number or -1, held)."""
    engine, entries = core.engine, core.entries
    tier = core.limits.tier_at[t]
    e = entries[tier].after
    if e == keep:
        e = entries[e].after
    if e == tier:
        return NOBODY, 0
    had = entries[e].valid
    lost = min(had, blocks)
    entries[e].valid -= lost
    entries[tier].valid += lost
    engine.tier_evicted[t] += lost
    if entries[e].valid == 0:
        unlink_entry(entries, e)
    return e - tier - 1, had


@compiled
def put_blocks(core: Core, t: int, number: int, blocks: int) -> None:
    """Store the first ``blocks`` of a hash block, as far as free blocks allow, as the most recently used."""
    engine, entries = core.engine, core.entries
    tier = core.limits.tier_at[t]
    e = tier + 1 + number
    added = min(max(blocks - entries[e].valid, 0), entries[tier].valid)
    entries[e].valid += added
    entries[tier].valid -= added
    engine.tier_written[t] += added
    engine.pending_writes[t] += added
    if entries[e].valid > 0:
        touch(entries, tier, e)


@compiled
def missing_blocks(core: Core, t: int, number: int, blocks: int) -> int:
    """Return the blocks that a tier must evict to hold the first ``blocks`` of a hash block."""
    entries = core.entries
    tier = core.limits.tier_at[t]
    return blocks - entries[tier + 1 + number].valid - entries[tier].valid


@compiled
def write_last(core: Core, t: int, number: int, blocks: int) -> None:
    """Write the first ``blocks`` of a hash block to a tier; evicted blocks are lost."""
    keep = core.limits.tier_at[t] + 1 + number
    missing = missing_blocks(core, t, number, blocks)
    while missing > 0 and take_oldest(core, t, keep, missing)[0] >= 0:
        missing = missing_blocks(core, t, number, blocks)
    put_blocks(core, t, number, blocks)


@compiled
def write_second(core: Core, t: int, number: int, blocks: int) -> None:
    """Write the first ``blocks`` of a hash block to a tier; evicted blocks go to the next tier, if there is one."""
    keep = core.limits.tier_at[t] + 1 + number
    missing = missing_blocks(core, t, number, blocks)
    while missing > 0:
        evicted, had = take_oldest(core, t, keep, missing)
        if evicted < 0:
            break
        if t + 1 < core.limits.tiers:
            write_last(core, t + 1, evicted, had)
        missing = missing_blocks(core, t, number, blocks)
    put_blocks(core, t, number, blocks)


@compiled
def write_first(core: Core, number: int, blocks: int) -> None:
    """Write the first ``blocks`` of a hash block to the first tier; evicted blocks go to the next one."""
    keep = core.limits.tier_at[0] + 1 + number
    missing = missing_blocks(core, 0, number, blocks)
    while missing > 0:
        evicted, had = take_oldest(core, 0, keep, missing)
        if evicted < 0:
            break
        if core.limits.tiers > 1:
            write_second(core, 1, evicted, had)
        missing = missing_blocks(core, 0, number, blocks)
    put_blocks(core, 0, number, blocks)


@compiled
def note_cached(core: Core, number: int, blocks: int) -> None:
    """Write newly cached blocks of a hash block to all tiers, with the write-through policy."""
    if core.limits.write_policy == THROUGH:
        for t in range(core.limits.tiers):
            write_last(core, t, number, blocks)


@compiled
def note_evicted(core: Core, e: int, blocks: int) -> None:
    """Write the cached blocks of a hash block to the first tier when the GPU's cache evicts some of them."""
    if core.limits.write_policy != THROUGH:
        write_first(core, e - core.limits.entries_at, blocks)


@compiled
def tier_blocks(request: np.void, hashes: np.ndarray, entries: np.ndarray, limits: np.void, cached: int) -> int:
    """Return the KV blocks of a waiting prompt that tiers hold after ``cached`` ones; one token is left over."""
    per_hash = limits.hash_tokens // limits.block_size
    most = min(min(request.prompt, request.known - 1) // limits.block_size, request.hash_count * per_hash)
    blocks = cached
    while blocks < most:
        number, held = hashes[request.hash_at + blocks // per_hash], 0
        for t in range(limits.tiers):
            held = max(held, entries[limits.tier_at[t] + 1 + number].valid)
        if held <= blocks % per_hash:
            break
        blocks = min(blocks - blocks % per_hash + held, most)
        if held < per_hash:
            break
    return blocks - cached


@compiled
def load_blocks(core: Core, request: np.void, cached: int, blocks: int) -> float:
    """Queue the load of ``blocks`` after ``cached`` ones, each from the first tier that has it; return its end."""
    engine, limits, hashes, entries = core.engine, core.limits, core.hashes, core.entries
    per_hash = limits.hash_tokens // limits.block_size
    at, end = cached, cached + blocks
    for t in range(limits.tiers):
        engine.load_blocks[t] = 0
    while at < end:
        number, within = hashes[request.hash_at + at // per_hash], at % per_hash
        t = 0
        while entries[limits.tier_at[t] + 1 + number].valid <= within:
            t += 1
        count = min(entries[limits.tier_at[t] + 1 + number].valid - within, end - at)
        engine.load_blocks[t] += count
        at += count
    touch_prompt(core, request, cached + blocks)
    begin_us = request.visible_us if limits.prefetch and request.visible_us > 0.0 else engine.now
    # prefetched blocks are read to host memory, and go from there to the GPU when the request is admitted
    engine.link_read_us = max(engine.link_read_us, engine.now) + blocks * limits.link_read_us
    end_us = engine.link_read_us
    for t in range(limits.tiers):
        count = engine.load_blocks[t]
        if count > 0:
            engine.tier_read[t] += count
            engine.tier_read_us[t] = max(engine.tier_read_us[t], begin_us) + count * limits.tier_read_us[t]
            end_us = max(end_us, engine.tier_read_us[t] + limits.tier_latency_us[t])
    return end_us


@compiled
def touch_prompt(core: Core, request: np.void, blocks: int) -> None:
    """Make the hash blocks of a prompt's first ``blocks`` the most recently used, the first one last."""
    limits, hashes, entries = core.limits, core.hashes, core.entries
    per_hash = limits.hash_tokens // limits.block_size
    for i in range((blocks + per_hash - 1) // per_hash - 1, -1, -1):
        for t in range(limits.tiers):
            e = limits.tier_at[t] + 1 + hashes[request.hash_at + i]
            if entries[e].valid > 0:
                touch(entries, limits.tier_at[t], e)


@compiled
def forget_moved(core: Core, request: np.void, cached: int, blocks: int) -> None:
    """Drop loaded blocks from the tiers, with the policy MOVED: a block is in one place only."""
    limits, hashes, entries = core.limits, core.hashes, core.entries
    if limits.write_policy != MOVED:
        return
    per_hash = limits.hash_tokens // limits.block_size
    for i in range(cached // per_hash, (cached + blocks + per_hash - 1) // per_hash):
        for t in range(limits.tiers):
            e = limits.tier_at[t] + 1 + hashes[request.hash_at + i]
            if entries[e].valid > 0:
                entries[limits.tier_at[t]].valid += entries[e].valid
                entries[e].valid = 0
                unlink_entry(entries, e)


@compiled
def end_writes(engine: np.void, limits: np.void) -> None:
    """Queue the writes of a step on their links; with other policies than write-through the step waits for them."""
    written = 0
    end_us = 0.0
    for t in range(limits.tiers):
        count = engine.pending_writes[t]
        if count > 0:
            written += count if t == 0 or limits.write_policy == THROUGH else 0
            engine.tier_write_us[t] = max(engine.tier_write_us[t], engine.now) + count * limits.tier_write_us[t]
            end_us = max(end_us, engine.tier_write_us[t] + limits.tier_latency_us[t])
            engine.pending_writes[t] = 0
    if written > 0:
        engine.link_write_us = max(engine.link_write_us, engine.now) + written * limits.link_write_us
        end_us = max(end_us, engine.link_write_us)
    if limits.write_policy != THROUGH:
        engine.loads_us = max(engine.loads_us, end_us)


@compiled
def is_loading(engine: np.void, request: np.void, seen_us: float) -> bool:
    """Whether a running request still waits for its load at ``seen_us``; record a load that has ended."""
    if request.loaded_us == 0.0:
        return False
    if request.loaded_us > seen_us:
        return True
    request.loaded_us = 0.0
    engine.loading -= 1
    return False


@compiled
def first_load_us(engine: np.void, requests: np.ndarray) -> float:
    """Return when the first load ends that a running request waits for; inf: none."""
    moment = FOREVER
    r = engine.partial
    while r >= 0:
        if requests[r].loaded_us > 0.0:
            moment = min(moment, requests[r].loaded_us)
        r = requests[r].next_partial
    return moment
