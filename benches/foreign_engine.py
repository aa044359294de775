"""A server that shares nothing with KernelSight: its own step costs, scheduler, noise, front end and client.

Of Llama-3.1-8B on one H100, in milliseconds: a step takes 1 + L + 0.35 min(W, a n) + 4.6e-5 context + 2.2e-7 chunk
position + 6e-4 sequences + 0.3 with a prompt, with L = max(W, a n), W = 5.65 (weights), a = 0.0245 and n tokens.
The constants are chosen so that a log without a fault takes as long as on a real engine; the form is nobody's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

SLOW_NOISE, STEP_NOISE, NOISE_S = 0.012, 0.015, 4.0
BLOCK = 16


class Engine(NamedTuple):
    """Settings and faults of a server; times in milliseconds, moments in seconds."""

    seats: int = 256
    budget: int = 8192
    weights_ms: float = 5.65
    token_ms: float = 0.0245
    small_step_ms: float = 0.0
    every_step_ms: float = 0.0
    request_ms: float = 4.0
    prompt_token_ms: float = 0.006
    caching: bool = True
    speed: Callable[[float], float] = lambda now: 1.0
    stops: tuple[tuple[float, float], ...] = ()
    restarts: bool = False


class Load(NamedTuple):
    """Requests: when they are sent, their lengths, and the prefix that each shares with others (-1: none)."""

    sent_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    prefix: np.ndarray
    prefix_tokens: int = 0


class Times(NamedTuple):
    """What the client saw: seconds from sending to each token, by request; none for those that failed."""

    tokens_s: list[list[float]]
    cached: np.ndarray


class _Sequence:
    __slots__ = ("cached", "done", "emitted", "number", "output", "prompt", "shared")

    def __init__(self, number: int, prompt: int, output: int, shared: int) -> None:
        self.number, self.prompt, self.output, self.shared = number, prompt, output, shared
        self.done = self.cached = self.emitted = 0


def serve(load: Load, engine: Engine, dice: np.random.Generator) -> Times:
    """Serve a load: decodes first, then prompts in chunks, nearly in the order of arrival."""
    ready = _at_the_scheduler(load, engine, dice)
    order = np.argsort(ready, kind="stable")
    waiting: deque[_Sequence] = deque()
    running: list[_Sequence] = []
    stamps: list[list[float]] = [[] for _ in ready]
    cached, known = np.zeros(ready.size, int), set()
    stops, now, place, drift, failed = deque(engine.stops), 0.0, 0, 0.0, set()
    while place < ready.size or waiting or running:
        if not waiting and not running:
            now = max(now, ready[order[place]])
        if stops and now >= stops[0][0]:
            now += stops.popleft()[1]
            if engine.restarts:
                failed |= {one.number for one in running}
                running, known = [], set()
        while place < ready.size and ready[order[place]] <= now:
            number = int(order[place])
            prefix = int(load.prefix[number])
            waiting.append(_Sequence(number, int(load.prompt[number]), int(load.output[number]), prefix))
            place += 1
        decodes = [one for one in running if one.done >= one.prompt]
        left, chunks = engine.budget - len(decodes), []
        for one in running:
            if one.done < one.prompt and left > 0:
                chunks.append((one, min(left, one.prompt - one.done)))
                left -= chunks[-1][1]
        if len(waiting) > 1 and dice.random() < 0.02:
            waiting[0], waiting[1] = waiting[1], waiting[0]
        while waiting and left > 0 and len(running) < engine.seats:
            one = waiting.popleft()
            if engine.caching and one.shared in known:
                one.done = one.cached = min(load.prefix_tokens, one.prompt - 1) // BLOCK * BLOCK
                cached[one.number] = one.cached
            running.append(one)
            chunks.append((one, min(left, one.prompt - one.done)))
            left -= chunks[-1][1]
        tokens = len(decodes) + sum(size for _, size in chunks)
        read = engine.token_ms * tokens
        step = 0.8 + engine.every_step_ms + max(engine.weights_ms, read) + 0.35 * min(engine.weights_ms, read)
        step += 4.6e-5 * sum(one.prompt + one.emitted for one in decodes) + 6e-4 * len(running)
        step += sum(2.2e-7 * size * (one.done + size / 2) for one, size in chunks) + (0.3 if chunks else 0.0)
        step += engine.small_step_ms if tokens <= 512 else 0.0
        keep = np.exp(-step / 1e3 / NOISE_S)
        drift = keep * drift + SLOW_NOISE * np.sqrt(1.0 - keep**2) * dice.standard_normal()
        now += step / 1e3 * engine.speed(now) * np.exp(drift + STEP_NOISE * dice.standard_normal())
        for one, size in chunks:
            one.done += size
            if one.done >= one.prompt:
                known.add(one.shared)
        for one in running:
            if one.done >= one.prompt:
                one.emitted += 1
                stamps[one.number].append(now)
        running = [one for one in running if one.emitted < one.output]
    network = 3e-4 + dice.exponential(4e-4, ready.size)
    seen = [
        [] if number in failed else (np.maximum.accumulate(own) - load.sent_s[number] + network[number]).tolist()
        for number, own in enumerate(stamps)
    ]
    return Times(seen, cached)


def _at_the_scheduler(load: Load, engine: Engine, dice: np.random.Generator) -> np.ndarray:
    """Return when each request reaches the scheduler: a client with delays, and a front end of two workers."""
    ready, free = np.zeros(load.sent_s.size), [0.0, 0.0]
    late = 2e-4 + dice.exponential(5e-4, load.sent_s.size) + 0.02 * (dice.random(load.sent_s.size) < 0.01)
    for number in np.argsort(load.sent_s + late, kind="stable"):
        worker = int(np.argmin(free))
        begin = max(load.sent_s[number] + late[number], free[worker])
        free[worker] = begin + (engine.request_ms + engine.prompt_token_ms * load.prompt[number]) / 1e3
        ready[number] = free[worker]
    return ready
