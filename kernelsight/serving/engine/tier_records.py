"""KV tiers in the loop's records: limits, entries of cached blocks, and counts of moved blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelsight.serving.engine.inputs import Tiers
from kernelsight.serving.engine.records import ENTRY, NO_LIMIT
from kernelsight.serving.engine.served import TierBlocks

NO_TIERS = Tiers()


def put_tiers(record: np.void, tiers: Tiers, ranks: int, prefill_first: bool) -> None:
    """Set tiers in a LIMITS record; requests load ahead only on a plain engine whose steps mix prompts and decodes."""
    simple = not record["per_request_progress"] and ranks == 1
    if not record["hash_tokens"] or not any(tier.blocks for tier in tiers.tiers):
        return
    record["tiers"], record["write_policy"], record["prefetch"] = len(tiers.tiers), tiers.write_policy, tiers.prefetch
    record["load_ahead"] = tiers.load_ahead and simple and not prefill_first and record["plain"]
    record["link_read_us"], record["link_write_us"] = tiers.link_read_us, tiers.link_write_us
    for name in ("read_us", "write_us", "latency_us"):
        record[f"tier_{name}"][: len(tiers.tiers)] = [getattr(tier, name) for tier in tiers.tiers]


def entry_records(limits: np.ndarray, pools: Sequence[tuple[Tiers, int]], blocks: int, n: int) -> np.ndarray:
    """Return ENTRY records, and set the offsets of each engine's in its LIMITS record.

    For each engine: one for each hash block, and one for the freed private blocks of each request; then for each tier,
    of one engine or of all that share it: its own record, and one for each hash block. ``pools``: tiers and number of
    engines of each pool; ``blocks``: number of hash blocks; ``n``: number of requests.
    """
    entries_of_engine = blocks + n
    limits["entries_at"] = np.arange(limits.size) * entries_of_engine
    limits["private_at"] = limits["entries_at"] + blocks
    count, capacities, shared = limits.size * entries_of_engine, {}, {}
    owners = [(number, tiers) for number, (tiers, engines) in enumerate(pools) for _ in range(engines)]
    for record, (number, tiers) in zip(limits, owners, strict=True):
        for t, tier in enumerate(tiers.tiers[: record["tiers"]]):
            tier_entry = shared.get((number, t))
            if tier_entry is None:
                tier_entry, count = count, count + 1 + blocks
                capacities[tier_entry] = tier.blocks
                if tier.shared:
                    shared[number, t] = tier_entry
            record["tier_at"][t] = tier_entry
    entries = np.zeros(count, ENTRY)
    for tier_entry, capacity in capacities.items():
        entries[tier_entry]["valid"] = min(capacity, NO_LIMIT // 2)
        entries[tier_entry]["before"] = entries[tier_entry]["after"] = tier_entry
    return entries


def tier_blocks_of(engine: np.void, tiers: int) -> TierBlocks | None:
    """Return the counts of blocks of an engine's tiers; None without tiers."""
    names = ("tier_hit", "tier_read", "tier_written", "tier_evicted")
    return TierBlocks(*(engine[name][:tiers].copy() for name in names)) if tiers else None
