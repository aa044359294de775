"""Engines that run beside a clock: the scheduler's loop on its own state, advanced from moment to moment.

Requests are records that were allocated before; one is filled when a request arrives, and sent then. The loop returns
at the moment that was asked for (``until_us``), and after each step of an engine, whose end may lie ahead: every token
has its time before that time comes. Nothing is scheduled here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.serving.engine.cancel import cancel
from kernelsight.serving.engine.inputs import Load, Routing
from kernelsight.serving.engine.loop import serve_until_full
from kernelsight.serving.engine.records import ENTRY, FOREVER, OK, REQUEST
from kernelsight.serving.engine.replica import Pool, fresh_scenario
from kernelsight.serving.engine.request_columns import fill_requests
from kernelsight.serving.engine.steps import COLUMNS, DECODES, END

# the largest moment: with FOREVER the loop would wait for requests that never arrive
LAST_US = 1e18
# numbers for hash blocks beyond twice those that the KV cache holds: of prompts that wait
MORE_BLOCKS = 1 << 16
MOST_BLOCKS = 1 << 22


class Tokens(NamedTuple):
    """``count`` tokens that a request gets at ``time_us``, which may lie ahead."""

    time_us: float
    slot: int
    count: int


class HashBlocks:
    """The numbers of hash blocks in the loop; those of blocks that are neither cached nor used are reused."""

    def __init__(self, entries: np.ndarray, limits: np.ndarray, blocks: int) -> None:
        # each engine has an entry a block, then one a request (see ``replica.entry_records``)
        entries_each = int(limits["private_at"][0] - limits["entries_at"][0] + limits["requests"][0])
        records = entries[: limits.size * entries_each] if blocks else np.zeros(limits.size * entries_each, ENTRY)
        self._entries = records.reshape(limits.size, entries_each)[:, :blocks]
        self._numbers: dict[bytes, int] = {}
        self._keys: list[bytes | None] = [None] * blocks
        self._uses = np.zeros(blocks, np.int64)
        self._free = deque(range(blocks))

    def take(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return the numbers of a prompt's leading hash blocks, up to the first without a free number."""
        numbers_taken = []
        for key in keys:
            number = self._numbers.get(key)
            if number is None:
                if not self._free and not self._sweep(numbers_taken):
                    break
                number = self._free.popleft()
                self._numbers[key], self._keys[number] = number, key
            numbers_taken.append(number)
        numbers = np.array(numbers_taken, np.int64)
        self._uses[numbers] += 1
        return numbers

    def give_back(self, numbers: np.ndarray) -> None:
        """Note that a request with these hash blocks has ended."""
        self._uses[numbers] -= 1

    def _sweep(self, keeping: Sequence[int]) -> bool:
        """Free the numbers of blocks that no engine has cached and no request has; whether there were any."""
        idle = (self._uses == 0) & (self._entries["valid"].max(axis=0) == 0)
        idle[list(keeping)] = False
        for number in np.flatnonzero(idle).tolist():
            key = self._keys[number]
            if key is not None:
                del self._numbers[key]
                self._keys[number] = None
                self._free.append(number)
        return bool(self._free)


class LiveEngines:
    """The engines of one pool behind a router, and requests that arrive one at a time.

    ``slots``: requests that wait or run at once, at most. ``hash_tokens``: prompt tokens that one hash stands for;
    0: no prefix is shared.
    """

    def __init__(self, pool: Pool, slots: int, hash_tokens: int = 0, routing: Routing | None = None) -> None:
        limits, count = pool.limits, np.ones(slots, np.int64)
        self.hash_tokens = hash_tokens if limits.prefix_caching else 0
        cache_blocks = limits.capacity_units // max(limits.full_units, 1)
        blocks = min(2 * cache_blocks, MOST_BLOCKS) + MORE_BLOCKS if self.hash_tokens else 0
        load = Load(
            np.zeros(slots), count, count, np.array([blocks - 1] if blocks else [], np.int64),
            np.zeros(slots + 1, np.int64), self.hash_tokens,
        )  # fmt: skip
        uses = np.zeros((3, pool.costs.values.size))
        arrays, _ = fresh_scenario(load, [pool], routing or Routing(), None, uses, False)
        self._rows = np.zeros((pool.engines, max(len(pool.layers), 1), COLUMNS))
        self.arrays = arrays._replace(hashes=np.zeros(max(blocks, 1), np.int64), rows=self._rows)
        arrays.requests["arrival_us"] = FOREVER
        arrays.clients["next"] = slots
        self.client, self.engines, self.requests = arrays.clients[0], arrays.engines, arrays.requests
        self.blocks = HashBlocks(arrays.entries, arrays.limits, blocks)
        self.alone = ~arrays.limits["per_request_progress"]
        self._free, self._given, self._leaving = deque(range(slots)), np.zeros(slots, np.int64), set[int]()
        self._last_us, self._numbers = np.zeros(slots), dict[int, np.ndarray]()
        self._hashes_used = 0
        self.active = set[int]()
        self.reached_us = 0.0

    @property
    def free(self) -> int:
        """How many more requests may wait or run."""
        return len(self._free)

    @property
    def next_us(self) -> float:
        """When something happens next if no request arrives; infinite: never."""
        return float(self.client["next_us"])

    def add(
        self, now_us: float, prompt: int, output: int, keys: Sequence[bytes] = (), priority: int = 0
    ) -> tuple[int, list[Tokens]]:
        """Send a request, not before any other; returns its slot, or -1 where the engine rejects it, and new tokens.

        ``keys``: of its prompt's leading hash blocks, each of a block and all before it.
        """
        slot = self._free.popleft()
        record = self.requests[slot : slot + 1]
        record[:] = np.zeros(1, REQUEST)
        fill_requests(record, np.array([now_us]), np.array([prompt]), np.array([output]))
        record["priority"] = priority
        numbers = self.blocks.take(keys if self.hash_tokens else ())
        self._numbers[slot] = numbers
        record["hash_at"], record["hash_count"] = self._write_hashes(numbers), numbers.size
        self._given[slot], self._last_us[slot] = 0, -1.0
        self.client["next"] = slot
        self.active.add(slot)
        tokens = self.advance(now_us)
        record["arrival_us"], self.client["next"] = FOREVER, self.requests.size
        if record["status"][0] != OK:
            self._end(slot)
            return -1, tokens
        return slot, tokens

    def _write_hashes(self, numbers: np.ndarray) -> int:
        """Write hash blocks after those of other requests, and return their start; compacts where there is no space."""
        hashes = self.arrays.hashes
        if self._hashes_used + numbers.size > hashes.size:
            holding = [slot for slot in self.active if self._numbers[slot].size]
            kept_numbers = [self._numbers[slot] for slot in holding]
            used = sum(numbers_of_request.size for numbers_of_request in kept_numbers)
            hashes = np.zeros(max(2 * (used + numbers.size), hashes.size), np.int64)
            hashes[:used] = np.concatenate([*kept_numbers, np.zeros(0, np.int64)])
            starts = np.cumsum([0, *(numbers_of_request.size for numbers_of_request in kept_numbers)])[:-1]
            self.requests["hash_at"][holding] = starts
            self.arrays, self._hashes_used = self.arrays._replace(hashes=hashes), used
        start = self._hashes_used
        hashes[start : start + numbers.size] = numbers
        self._hashes_used += numbers.size
        return start

    def cancel(self, slot: int) -> None:
        """Cancel a request: it leaves between two steps, when the next moment is reached."""
        if slot in self.active:
            self._leaving.add(slot)

    def advance(self, now_us: float) -> list[Tokens]:
        """Do all that happens by a moment, except that no step begins then; returns the tokens that are new.

        Their times are those of the steps' ends: by ``now_us``, or at the end of a step that is underway.
        """
        tokens: list[Tokens] = []
        while self._leaving:
            replicas = self.requests["replica"][list(self._leaving)]
            due_us = float(self.engines["due_us"][replicas][self.engines["underway"][replicas]].min(initial=FOREVER))
            if due_us <= now_us:
                self._run(due_us, tokens)
            if not self._leave() and due_us > now_us:
                break
        self._run(now_us, tokens)
        self.reached_us = now_us
        return tokens

    def _leave(self) -> bool:
        """Remove the cancelled requests that no step has; whether there were any."""
        left_slots = []
        for slot in self._leaving:
            done = slot not in self.active or cancel(slot, *self.arrays)
            if done:
                left_slots.append(slot)
        for slot in left_slots:
            self._leaving.discard(slot)
            if slot in self.active:
                self._end(slot)
        return bool(left_slots)

    def _run(self, until_us: float, tokens: list[Tokens]) -> None:
        self.client["until_us"] = min(until_us, LAST_US)
        while True:
            serve_until_full(*self.arrays)
            self.client["ended"] = 0
            stepped = self.engines["rows"] > 0
            self._note(stepped, tokens)
            if not stepped.any():
                return
            self.engines["rows"] = 0

    def _progress(self, slots: np.ndarray, replica: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the known tokens of requests, and the time of the last one where no step states it."""
        requests, groups = self.requests[slots], self.arrays.groups[replica, self.requests["group"][slots]]
        ready = requests["group"] == self.engines["group"][replica]
        clock = np.where(ready, self.engines["clock"][replica], groups["clock"])
        known_tokens = np.where(requests["decoding"], requests["context_offset"] + clock + 1, requests["known"])
        decoded_us = np.where(ready, self.engines["last_decode_end"][replica], groups["last_decode_end"])
        in_group = requests["decoding"] & ~requests["fresh"] & ~self.alone[replica]
        return known_tokens, np.where(in_group, decoded_us, requests["last_token_us"])

    def _note(self, stepped: np.ndarray, tokens: list[Tokens]) -> None:
        """Add the tokens that requests have got since the last call; free the slots of those that have finished."""
        if not self.active:
            return
        slots = np.fromiter(self.active, np.int64, len(self.active))
        requests, replica = self.requests, self.requests["replica"][slots]
        known_tokens, last_us = self._progress(slots, replica)
        new = known_tokens - requests["prompt"][slots] - self._given[slots]
        step_ends_us = self._rows[replica, 0, END]
        # a step ended that computed a prompt, or of an engine whose requests differ in what they get
        noted = last_us > self._last_us[slots]
        decoded = stepped[replica] & (self._rows[replica, 0, DECODES] > 0)
        for k in np.flatnonzero(new > 0).tolist():
            slot, count = int(slots[k]), int(new[k])
            if noted[k]:
                first_tokens = count if not self.alone[replica[k]] else 1
                tokens.append(Tokens(float(last_us[k]), slot, first_tokens))
                self._last_us[slot] = last_us[k]
                count -= first_tokens
            if count:
                assert decoded[k], "a token without a step"
                tokens.append(Tokens(float(step_ends_us[k]), slot, count))
                self._last_us[slot] = step_ends_us[k]
            self._given[slot] += new[k]
        for slot in slots[requests["finish_us"][slots] >= 0.0].tolist():
            self._end(slot)

    def _end(self, slot: int) -> None:
        """Free a slot; the oldest free one is used first, when no batch in flight holds it any more."""
        self.active.discard(slot)
        self.blocks.give_back(self._numbers.pop(slot))
        self._free.append(slot)
