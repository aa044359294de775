"""KV memory of the reference scheduler, in plain Python: counted by formula, or block by block with a prefix cache.

The prefix cache has real blocks, each in one place at a time, and every running request a table of its blocks. Its
rules, where the semantics leave a choice open:

- A hash names ``hash_tokens`` tokens of a prompt and all before them; the last one may be partly filled. What is cached
  of it is a run of KV blocks from its first on.
- Hits are full KV blocks without a gap; at least one known token is left to compute.
- A full prompt block is cached when the step that fills it is scheduled, unless another request has put it there: then
  the copy is the request's own. Generated tokens are always its own.
- A running request keeps every hash that its full prompt blocks reach. What is cached of such a hash beyond the hits
  goes blank where nobody else keeps it, because the request computes it itself.
- A request alone that runs short gives back the copies and the longer prefixes that others left with its hashes;
  nothing is admitted in that step, as after a preemption.
- What is cached are blocks of layers without a window, of ``full_units`` units each. The units of windows are each
  request's own, also after a hit: what a window needs of a cached prefix is taken to be there.
- What leaves goes to the end of the free queue: own blocks first, together with those left before, then the hashes that
  nobody else keeps, last one first, each from its tail. Blank units are taken first, then those at the front of the
  queue: cached blocks whole, own ones unit by unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def beside_full(limits: Any, full: int, blocks: int) -> int:
    """Units that layers with a window take beside ``full`` units of the others; in a pool of their own what is more."""
    windows = limits.window_units * min(blocks, limits.window_blocks)
    return max(windows - full, 0) if limits.windows_apart else windows


class CountedMemory:
    """KV units by formula; nothing is shared."""

    def __init__(self, limits: Any) -> None:
        self.limits = limits
        self.tokens: dict[int, int] = {}  # by id of the request

    def units_of(self, tokens: int) -> int:
        """KV units of a request with this many tokens in the cache."""
        blocks = -(-tokens // self.limits.block_size)
        full = self.limits.full_units * blocks
        return full + beside_full(self.limits, full, blocks) + self.limits.sequence_units

    @property
    def used(self) -> int:
        """KV units in use."""
        return sum(self.units_of(tokens) for tokens in self.tokens.values())

    def hit_tokens(self, request: Any) -> int:
        """Tokens that a waiting request finds in the cache."""
        return 0

    def load_tokens(self, request: Any) -> int:
        """Tokens that a waiting request finds in KV tiers behind the cache."""
        return 0

    def end_writes(self, now: float) -> float:
        """When the transfers end that a step waits for, which begins now."""
        return 0.0

    def unkept_hits(self, request: Any) -> int:
        """Units found in the cache that would no longer be free."""
        return 0

    def hit_units(self, request: Any) -> int:
        """Units that a waiting request finds in the cache."""
        return 0

    def fits(self, request: Any, tokens: int) -> bool:
        """Whether the request may have this many tokens more."""
        mine = self.tokens.get(id(request), 0)
        others = self.used - (self.units_of(mine) if id(request) in self.tokens else 0)
        return others + self.units_of(mine + tokens) <= self.limits.capacity_units

    def enter(self, request: Any, now: float = 0.0) -> float:
        """A request is admitted; returns when its load ends."""
        self.tokens[id(request)] = 0
        return now

    def grow(self, request: Any, tokens: int) -> None:
        """A running request gets this many tokens more."""
        self.tokens[id(request)] += tokens

    def keep_own_only(self, request: Any) -> None:
        """A request alone has nothing of others, and fits: it would have been rejected."""
        raise AssertionError(f"{self.tokens[id(request)]} tokens of a request alone leave no room for its next ones")

    def leave(self, request: Any) -> None:
        """A running request ends, or is preempted."""
        del self.tokens[id(request)]


@dataclass(eq=False)
class Block:
    """A piece of a hash, or units that are a request's own."""

    units: int
    hash_id: int | None = None
    owner: int | None = None


class CachedMemory(CountedMemory):
    """KV blocks with a prefix cache; the requests say their hashes (``hashes``), the load what one stands for."""

    def __init__(self, limits: Any, hash_tokens: int) -> None:
        super().__init__(limits)
        self.block_size = limits.block_size
        self.per_hash, left = divmod(hash_tokens, limits.block_size)
        assert left == 0 and limits.full_units > 0 and limits.sequence_units == 0
        self.capacity = limits.capacity_units
        self.blank = self.capacity  # units
        self.queue: list[Block] = []  # free, contents kept for now; the front goes first
        self.cached: dict[int, list[Block]] = {}  # by hash
        self.keepers: dict[int, set[int]] = {}  # by hash: ids of running requests
        self.kept: dict[int, list[int]] = {}  # by request: its hashes, in order
        self.table: dict[int, list[Block]] = {}  # by request: its blocks, in order of tokens
        self.in_window: dict[int, int] = {}  # by request: units of layers with a window

    @property
    def free(self) -> int:
        """Units that can be taken."""
        return self.blank + sum(block.units for block in self.queue)

    @property
    def used(self) -> int:
        """Units that running requests hold or keep; every block is somewhere, once (INV-4)."""
        self.check()
        return self.capacity - self.free

    def check(self) -> None:
        """AssertionError: a block in two places or nowhere, one that is free and in use, a hash that is too long."""
        held = {id(b): b.units for blocks in self.table.values() for b in blocks}
        for name, keepers in self.keepers.items():
            held |= {id(b): b.units for b in self.cached.get(name, [])} if keepers else {}
        waiting = {id(b) for b in self.queue}
        assert len(waiting) == len(self.queue) and not held.keys() & waiting
        assert sum(held.values()) + sum(self.in_window.values()) + self.free == self.capacity
        for name, blocks in self.cached.items():
            assert all(b.hash_id == name for b in blocks) and len(blocks) <= self.per_hash

    def blocks_of(self, tokens: int) -> int:
        """Blocks of this many tokens in a layer without a window."""
        return -(-tokens // self.block_size)

    def window_units_of(self, tokens: int) -> int:
        """Units that this many tokens have in layers with a window, beside those of the others."""
        blocks = self.blocks_of(tokens)
        return beside_full(self.limits, self.limits.full_units * blocks, blocks)

    def units_of(self, tokens: int) -> int:
        """Units of this many tokens."""
        return self.limits.full_units * self.blocks_of(tokens) + self.window_units_of(tokens)

    # --- admission

    def hits(self, request: Any) -> list[Block]:
        """Cached blocks that a waiting request may use."""
        most = min(request.prompt_tokens, request.known_tokens - 1) // self.block_size
        found: list[Block] = []
        for name in request.hashes:
            blocks = self.cached.get(name, [])
            found += blocks
            if len(blocks) < self.per_hash:
                break
        return found[:most]

    def hit_tokens(self, request: Any) -> int:
        """Tokens that a waiting request finds in the cache."""
        return len(self.hits(request)) * self.block_size

    def hit_units(self, request: Any) -> int:
        """Units that a waiting request finds in the cache."""
        return sum(block.units for block in self.hits(request))

    def fits(self, request: Any, tokens: int) -> bool:
        """Whether units for this many tokens more are free, beside hits that would no longer be free."""
        if id(request) in self.tokens:
            have = self.tokens[id(request)]
            return self.units_of(have + tokens) - self.units_of(have) <= self.free
        needed = self.units_of(self.hit_tokens(request) + self.load_tokens(request) + tokens) - self.hit_units(request)
        return needed + self.unkept_hits(request) <= self.free

    def unkept_hits(self, request: Any) -> int:
        """Units of cached blocks that a waiting request may use and that are free until it does."""
        return sum(block.units for block in self.hits(request) if block in self.queue)

    def enter(self, request: Any, now: float = 0.0) -> float:
        """A request is admitted with its hits."""
        hits = self.hits(request)
        self.table[id(request)], self.kept[id(request)] = hits, []
        self.tokens[id(request)] = len(hits) * self.block_size
        self.in_window[id(request)] = 0
        self.keep(request, len(hits), hits)
        return now

    def keep(self, request: Any, blocks: int, used: list[Block]) -> None:
        """Keep the hashes that this many blocks reach; of those nobody keeps, only the blocks in use stay cached."""
        for name in request.hashes[len(self.kept[id(request)]) : -(-blocks // self.per_hash)]:
            keepers = self.keepers.setdefault(name, set())
            if not keepers:
                for block in list(self.cached.get(name, [])):
                    self.queue.remove(block)
                    if block not in used:
                        self.cached[name].remove(block)
                        self.blank += block.units
            keepers.add(id(request))
            self.kept[id(request)].append(name)

    # --- running

    def grow(self, request: Any, tokens: int) -> None:
        """A running request gets this many tokens more; the prompt blocks that they fill are cached."""
        table, before = self.table[id(request)], self.tokens[id(request)]
        after = self.tokens[id(request)] = before + tokens
        more = self.blocks_of(after) - len(table)
        self.take(self.limits.full_units * more + self.window_units_of(after) - self.in_window[id(request)])
        table += [Block(self.limits.full_units, owner=id(request)) for _ in range(more)]
        self.in_window[id(request)] = self.window_units_of(after)
        full = min(after, request.prompt_tokens) // self.block_size
        self.keep(request, full, [])
        for position in range(before // self.block_size, min(full, len(request.hashes) * self.per_hash)):
            name = request.hashes[position // self.per_hash]
            blocks = self.cached.setdefault(name, [])
            if len(blocks) == position % self.per_hash:
                table[position].hash_id, table[position].owner = name, None
                blocks.append(table[position])
                self.note_cached(name, len(blocks))

    def take(self, units: int) -> None:
        """Take blank units, or those of the front of the queue, whose contents are lost."""
        while self.blank < units:
            block = self.queue.pop(0)
            if block.hash_id is not None:
                self.note_evicted(block.hash_id, len(self.cached[block.hash_id]))
                assert not self.keepers[block.hash_id], "a block in use is never lost"
                assert self.cached[block.hash_id].pop() is block, "a hash is lost from its tail"
            self.blank += block.units
        self.blank -= units

    def note_cached(self, name: int, blocks: int) -> None:
        """The first ``blocks`` of a hash are cached now."""

    def note_evicted(self, name: int, blocks: int) -> None:
        """Of the first ``blocks`` of a hash the last one is lost."""

    def keep_own_only(self, request: Any) -> None:
        """A request that runs alone gives back what others left: copies of its blocks, and what goes on behind them."""
        table = self.table[id(request)]
        full = min(self.tokens[id(request)], request.prompt_tokens) // self.block_size
        for number, name in enumerate(self.kept[id(request)]):
            for i, block in reversed(list(enumerate(self.cached[name]))):
                position = number * self.per_hash + i
                if position >= full:
                    spare = self.cached[name].pop()
                elif table[position] is not block:
                    spare, table[position] = table[position], block
                else:
                    continue
                self.blank += spare.units

    def leave(self, request: Any) -> None:
        """A running request ends, or is preempted: its own units wait first, then what only it kept."""
        del self.tokens[id(request)]
        units = sum(block.units for block in self.table.pop(id(request)) if block.owner == id(request))
        units += self.in_window.pop(id(request))
        if units:
            earlier = [block for block in self.queue if block.owner == id(request)]
            own = [Block(1, owner=id(request)) for _ in range(units)]
            self.queue = [block for block in self.queue if block.owner != id(request)] + earlier + own
        for name in reversed(self.kept.pop(id(request))):
            self.keepers[name].remove(id(request))
            if not self.keepers[name]:
                self.queue += reversed(self.cached.get(name, []))
