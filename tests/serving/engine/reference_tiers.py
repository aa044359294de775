"""KV tiers behind the prefix cache of the reference scheduler, in plain Python.

Every tier is an ordered dict from hash to the number of its leading KV blocks that the tier holds, the least recently
used first. Rules where the semantics leave a choice open:

- Hits go on behind those of the GPU's cache; of each hash the first tier is asked that has more than is used already.
- An admission touches, in every tier, the hashes under the blocks that were found, the last one first.
- A write of the first blocks of a hash evicts others, the least recently used first, each from its tail, until there is
  room; the hash itself is never evicted for it. What does not fit is not written.
- Written through: to all tiers at once, when the GPU caches a block. Otherwise to the first tier, when the GPU evicts a
  block, and from a tier to the next one when that evicts; moved: a load drops its hashes from all tiers.
- Loads, and writes, use the link between host and GPU one after the other, and the tier's own link as well. A load ends
  when both have served it, and the tier's latency is over.
"""

from __future__ import annotations

import math
from typing import Any

from kernelsight.serving.engine import inputs, records
from tests.serving.engine.reference_memory import CachedMemory


class TieredMemory(CachedMemory):
    """KV blocks with a prefix cache, and tiers behind it."""

    def __init__(self, limits: Any, hash_tokens: int, tiers: inputs.Tiers) -> None:
        super().__init__(limits, hash_tokens)
        self.tiers = tiers
        number = range(len(tiers.tiers))
        self.held: list[dict[int, int]] = [{} for _ in number]
        self.hit, self.read, self.written, self.evicted = ([0 for _ in number] for _ in range(4))
        self.pending = [0 for _ in number]
        self.read_us, self.write_us = [0.0 for _ in number], [0.0 for _ in number]
        self.link_read_us = self.link_write_us = self.waits_us = 0.0

    def check(self) -> None:
        """AssertionError: a tier holds more than it may, or moved other than it holds."""
        super().check()
        for t, tier in enumerate(self.tiers.tiers):
            assert sum(self.held[t].values()) <= tier.blocks
            if self.tiers.write_policy != records.MOVED:
                assert sum(self.held[t].values()) == self.written[t] - self.evicted[t]

    # --- loads

    def found(self, request: Any) -> list[tuple[int, int]]:
        """(tier, hash) of each KV block behind the hits of the GPU's cache."""
        most = min(request.prompt_tokens, request.known_tokens - 1) // self.block_size
        at, found = len(self.hits(request)), []
        while at < min(most, len(request.hashes) * self.per_hash):
            name, within = request.hashes[at // self.per_hash], at % self.per_hash
            tier = next((t for t, held in enumerate(self.held) if held.get(name, 0) > within), None)
            if tier is None:
                break
            found.append((tier, name))
            at += 1
        return found

    def load_tokens(self, request: Any) -> int:
        """Tokens that a waiting request finds in the tiers."""
        return len(self.found(request)) * self.block_size

    def enter(self, request: Any, now: float = 0.0) -> float:
        """A request is admitted with its hits, and its load is ordered; returns when that ends."""
        hits, found = len(self.hits(request)), self.found(request)
        super().enter(request)
        for name in reversed(request.hashes[: -(-(hits + len(found)) // self.per_hash)]):
            for held in self.held:
                if name in held:
                    held[name] = held.pop(name)
        end = self.load(request, [tier for tier, _ in found], now)
        if self.tiers.write_policy == records.MOVED:
            for name in dict.fromkeys(name for _, name in found):
                for held in self.held:
                    held.pop(name, None)
        self.grow(request, len(found) * self.block_size)
        return end

    def load(self, request: Any, found: list[int], now: float) -> float:
        """Order the load of a block from each of these tiers."""
        if not found:
            return now
        begin = now
        if self.tiers.prefetch and request.visible_us > 0.0:
            begin = request.visible_us
        self.link_read_us = max(self.link_read_us, now) + len(found) * self.tiers.link_read_us
        end = self.link_read_us
        for t, tier in enumerate(self.tiers.tiers):
            count = found.count(t)
            self.read[t] += count
            if request.scheduled_us < 0:
                self.hit[t] += count
            if count:
                self.read_us[t] = max(self.read_us[t], begin) + count * tier.read_us
                end = max(end, self.read_us[t] + tier.latency_us)
        if not (self.tiers.load_ahead and not self.limits.prefill_first):
            self.waits_us = max(self.waits_us, end)
        return end

    # --- writes

    def note_cached(self, name: int, blocks: int) -> None:
        if self.tiers.write_policy == records.THROUGH:
            for t in range(len(self.held)):
                self.write(t, name, blocks)

    def note_evicted(self, name: int, blocks: int) -> None:
        if self.tiers.write_policy != records.THROUGH:
            self.write(0, name, blocks)

    def write(self, t: int, name: int, blocks: int) -> None:
        """Hold the first blocks of a hash in a tier, as the most recently used."""
        held, capacity = self.held[t], self.tiers.tiers[t].blocks
        had = held.get(name, 0)
        while blocks - had > capacity - sum(held.values()):
            oldest = next((other for other in held if other != name), None)
            if oldest is None:
                break
            count = held[oldest]
            lost = min(count, blocks - had - (capacity - sum(held.values())))
            held[oldest] -= lost
            self.evicted[t] += lost
            if not held[oldest]:
                del held[oldest]
            if self.tiers.write_policy != records.THROUGH and t + 1 < len(self.held):
                self.write(t + 1, oldest, count)
        added = min(max(blocks - had, 0), capacity - sum(held.values()))
        self.written[t] += added
        self.pending[t] += added
        held.pop(name, None)
        if had + added:
            held[name] = had + added

    def end_writes(self, now: float) -> float:
        """Order the writes of a step; returns when the transfers end that the step waits for."""
        through = self.tiers.write_policy == records.THROUGH
        over_link, end = sum(self.pending) if through else self.pending[0], -math.inf
        for t, tier in enumerate(self.tiers.tiers):
            if self.pending[t]:
                self.write_us[t] = max(self.write_us[t], now) + self.pending[t] * tier.write_us
                end = max(end, self.write_us[t] + tier.latency_us)
        self.pending = [0 for _ in self.pending]
        if over_link:
            self.link_write_us = max(self.link_write_us, now) + over_link * self.tiers.link_write_us
            end = max(end, self.link_write_us)
        if not through:
            self.waits_us = max(self.waits_us, end)
        return self.waits_us
