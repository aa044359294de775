"""Live engines: the scheduler loop of the simulation, advanced incrementally with a clock, for requests as they arrive.

Requests are preallocated records; one is filled and sent when a request arrives. The loop returns at a given moment
(``until_us``), and after each step of an engine, whose end may lie ahead: the time of every token is known before it
comes. All scheduling is the loop's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.serving.engine.input_checks import check_lengths
from kernelsight.serving.engine.inputs import Load, Routing
from kernelsight.serving.engine.loop import serve_until_full
from kernelsight.serving.engine.preemption import cancel
from kernelsight.serving.engine.records import ENTRY, FOREVER, OK, REQUEST
from kernelsight.serving.engine.replica import Pool, fresh_scenario
from kernelsight.serving.engine.request_blocks import fill_requests
from kernelsight.serving.engine.steps import COLUMNS, DECODES, END

# largest moment of the loop: up to FOREVER it would wait for requests that never arrive
LAST_US = 1e18
# hash-block numbers for waiting prompts, in addition to twice the blocks of the KV cache
MORE_BLOCKS = 1 << 16
MOST_BLOCKS = 1 << 22


class Tokens(NamedTuple):
    """``count`` tokens that the request in ``slot`` gets at ``time_us``, which may lie ahead."""

    time_us: float
    slot: int
    count: int


class HashBlocks:
    """Numbers of hash blocks for the loop, by their keys; numbers of blocks neither cached nor in use are reused."""

    def __init__(self, entries: np.ndarray, limits: np.ndarray, blocks: int) -> None:
        # each engine has one entry per block, then one per request (see ``replica.entry_records``)
        entries_each = int(limits["private_at"][0] - limits["entries_at"][0] + limits["requests"][0])
        records = entries[: limits.size * entries_each] if blocks else np.zeros(limits.size * entries_each, ENTRY)
        self._entries = records.reshape(limits.size, entries_each)[:, :blocks]
        self._numbers: dict[bytes, int] = {}
        self._keys: list[bytes | None] = [None] * blocks
        self._uses = np.zeros(blocks, np.int64)
        self._free = deque(range(blocks))

    def take(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return the numbers of a prompt's leading hash blocks, and count their use; stops if none is free."""
        taken = []
        for key in keys:
            number = self._numbers.get(key)
            if number is None:
                if not self._free and not self._sweep(taken):
                    break
                number = self._free.popleft()
                self._numbers[key], self._keys[number] = number, key
            taken.append(number)
        numbers = np.array(taken, np.int64)
        self._uses[numbers] += 1
        return numbers

    def give_back(self, numbers: np.ndarray) -> None:
        """Release the hash blocks of a request that has ended."""
        self._uses[numbers] -= 1

    def _sweep(self, kept: Sequence[int]) -> bool:
        """Free the numbers of blocks that no engine caches and no request uses; return whether any is free now."""
        is_unused = (self._uses == 0) & (self._entries["valid"].max(axis=0) == 0)
        is_unused[list(kept)] = False
        for number in np.flatnonzero(is_unused).tolist():
            key = self._keys[number]
            if key is not None:
                del self._numbers[key]
                self._keys[number] = None
                self._free.append(number)
        return bool(self._free)


class LiveEngines:
    """The engines of one pool behind a router, for requests that arrive one at a time.

    ``slots``: maximum number of requests that wait or run; ``hash_tokens``: prompt tokens per hash block, 0: prefixes
    are not shared.
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
        arrays.clients["next"], arrays.clients["together_until"] = slots, 0  # each is sent when it comes
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
        """Number of free slots."""
        return len(self._free)

    @property
    def next_us(self) -> float:
        """Time of the next event if no request arrives, us; infinite: never."""
        return float(self.client["next_us"])

    def add(
        self, now_us: float, prompt: int, output: int, keys: Sequence[bytes] = (), priority: int = 0
    ) -> tuple[int, list[Tokens]]:
        """Send a request at ``now_us``; return its slot, -1 if the engine rejects it, and all new tokens.

        Times must not decrease between calls. ``prompt``, ``output``: tokens; ``keys``: of the prompt's leading hash
        blocks, each over the block and all before it.
        """
        columns = np.array([now_us]), np.array([prompt]), np.array([output])
        check_lengths(*columns)
        slot = self._free.popleft()
        record = self.requests[slot : slot + 1]
        record[:] = np.zeros(1, REQUEST)
        fill_requests(record, *columns)
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
        """Write hash blocks after those of other requests, and return their start; compacts if space runs out."""
        hashes = self.arrays.hashes
        if self._hashes_used + numbers.size > hashes.size:
            slots_with_hashes = [slot for slot in self.active if self._numbers[slot].size]
            kept_numbers = [self._numbers[slot] for slot in slots_with_hashes]
            used = sum(numbers_of_request.size for numbers_of_request in kept_numbers)
            hashes = np.zeros(max(2 * (used + numbers.size), hashes.size), np.int64)
            hashes[:used] = np.concatenate([*kept_numbers, np.zeros(0, np.int64)])
            starts = np.cumsum([0, *(numbers_of_request.size for numbers_of_request in kept_numbers)])[:-1]
            self.requests["hash_at"][slots_with_hashes] = starts
            self.arrays, self._hashes_used = self.arrays._replace(hashes=hashes), used
        start = self._hashes_used
        hashes[start : start + numbers.size] = numbers
        self._hashes_used += numbers.size
        return start

    def cancel(self, slot: int) -> None:
        """Mark a request as cancelled; ``advance`` removes it between two steps."""
        if slot in self.active:
            self._leaving.add(slot)

    def advance(self, now_us: float) -> list[Tokens]:
        """Advance the simulation to a moment, at which no step begins yet; return the new tokens.

        Their times are the ends of steps: up to ``now_us``, or later for steps that are underway.
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
        """Remove the cancelled requests that no running step contains; return whether there were any."""
        cancelled = []
        for slot in self._leaving:
            has_left = slot not in self.active or cancel(slot, *self.arrays)
            if has_left:
                cancelled.append(slot)
        for slot in cancelled:
            self._leaving.discard(slot)
            if slot in self.active:
                self._end(slot)
        return bool(cancelled)

    def _run(self, until_us: float, tokens: list[Tokens]) -> None:
        """Run the loop until a moment, and append new tokens."""
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
        """Return the tokens of requests, prompt included, and the time of the last one if no step row states it."""
        requests, groups = self.requests[slots], self.arrays.groups[replica, self.requests["group"][slots]]
        ready = requests["group"] == self.engines["group"][replica]
        clock = np.where(ready, self.engines["clock"][replica], groups["clock"])
        known_tokens = np.where(requests["decoding"], requests["context_offset"] + clock + 1, requests["known"])
        decoded_us = np.where(ready, self.engines["last_decode_end"][replica], groups["last_decode_end"])
        in_group = requests["decoding"] & ~requests["fresh"] & ~self.alone[replica]
        return known_tokens, np.where(in_group, decoded_us, requests["last_token_us"])

    def _note(self, stepped: np.ndarray, tokens: list[Tokens]) -> None:
        """Append the tokens that requests got since the last call, and free the slots of finished requests."""
        if not self.active:
            return
        slots = np.fromiter(self.active, np.int64, len(self.active))
        requests, replica = self.requests, self.requests["replica"][slots]
        known_tokens, last_us = self._progress(slots, replica)
        new_tokens = known_tokens - requests["prompt"][slots] - self._given[slots]
        step_ends_us = self._rows[replica, 0, END]
        # a step that computed a prompt ended, or one of an engine with progress per request
        has_stated_time = last_us > self._last_us[slots]
        decoded = stepped[replica] & (self._rows[replica, 0, DECODES] > 0)
        for k in np.flatnonzero(new_tokens > 0).tolist():
            slot, count = int(slots[k]), int(new_tokens[k])
            if has_stated_time[k]:
                first_tokens = count if not self.alone[replica[k]] else 1
                tokens.append(Tokens(float(last_us[k]), slot, first_tokens))
                self._last_us[slot] = last_us[k]
                count -= first_tokens
            if count:
                assert decoded[k], "a token without a step"
                tokens.append(Tokens(float(step_ends_us[k]), slot, count))
                self._last_us[slot] = step_ends_us[k]
            self._given[slot] += new_tokens[k]
        for slot in slots[requests["finish_us"][slots] >= 0.0].tolist():
            self._end(slot)

    def _end(self, slot: int) -> None:
        """Free a slot; slots are reused in this order, so that no batch in flight still holds one."""
        self.active.discard(slot)
        self.blocks.give_back(self._numbers.pop(slot))
        self._free.append(slot)
