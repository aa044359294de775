"""A simulated LLM server independent of KernelSight: its own step costs, scheduler, noise, front end and client.

It stands for Llama-3.1-8B on one H100. A step of n tokens takes, in milliseconds,
1 + L + 0.35 min(W, a n) + 4.6e-5 context + 2.2e-7 chunk position + 6e-4 sequences + 0.3 with a prompt,
with L = max(W, a n), W = 5.65 (weights) and a = 0.0245.
The constants are chosen so that a log without a fault takes as long as on a real engine; no engine has this form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

SLOW_NOISE, STEP_NOISE, NOISE_S = 0.012, 0.015, 4.0
BLOCK = 16


class Engine(NamedTuple):
    """Settings and faults of a server; times in milliseconds, ``stops`` as (start, duration) in seconds."""

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
    """Requests: sent times, lengths in tokens, and the number of the prefix that each shares (-1: none)."""

    sent_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    prefix: np.ndarray
    prefix_tokens: int = 0


class Times(NamedTuple):
    """The client's times: seconds from sending to each token, by request (empty: failed); cached tokens."""

    tokens_s: list[list[float]]
    cached: np.ndarray


class _Sequence:
    """A request in the scheduler: lengths, computed, cached and emitted tokens, and its prefix."""

    __slots__ = ("cached", "done", "emitted", "number", "output", "prompt", "shared")

    def __init__(self, number: int, prompt: int, output: int, shared: int) -> None:
        self.number, self.prompt, self.output, self.shared = number, prompt, output, shared
        self.done = self.cached = self.emitted = 0


def serve(load: Load, engine: Engine, random: np.random.Generator) -> Times:
    """Serve a load: decodes first, then chunked prompts, nearly in the order of arrival."""
    ready = _at_the_scheduler(load, engine, random)
    order = np.argsort(ready, kind="stable")
    waiting: deque[_Sequence] = deque()
    running: list[_Sequence] = []
    emitted_at: list[list[float]] = [[] for _ in ready]
    cached, cached_prefixes = np.zeros(ready.size, int), set()
    stops, now, arrived, drift, failed = deque(engine.stops), 0.0, 0, 0.0, set()
    while arrived < ready.size or waiting or running:
        if not waiting and not running:
            now = max(now, ready[order[arrived]])
        if stops and now >= stops[0][0]:
            now += stops.popleft()[1]
            if engine.restarts:
                failed |= {sequence.number for sequence in running}
                running, cached_prefixes = [], set()
        while arrived < ready.size and ready[order[arrived]] <= now:
            number = int(order[arrived])
            prefix = int(load.prefix[number])
            waiting.append(_Sequence(number, int(load.prompt[number]), int(load.output[number]), prefix))
            arrived += 1
        decodes = [sequence for sequence in running if sequence.done >= sequence.prompt]
        budget, chunks = engine.budget - len(decodes), []
        for sequence in running:
            if sequence.done < sequence.prompt and budget > 0:
                chunks.append((sequence, min(budget, sequence.prompt - sequence.done)))
                budget -= chunks[-1][1]
        if len(waiting) > 1 and random.random() < 0.02:
            waiting[0], waiting[1] = waiting[1], waiting[0]
        while waiting and budget > 0 and len(running) < engine.seats:
            sequence = waiting.popleft()
            if engine.caching and sequence.shared in cached_prefixes:
                sequence.done = sequence.cached = min(load.prefix_tokens, sequence.prompt - 1) // BLOCK * BLOCK
                cached[sequence.number] = sequence.cached
            running.append(sequence)
            chunks.append((sequence, min(budget, sequence.prompt - sequence.done)))
            budget -= chunks[-1][1]
        tokens = len(decodes) + sum(size for _, size in chunks)
        token_ms = engine.token_ms * tokens
        step = 0.8 + engine.every_step_ms + max(engine.weights_ms, token_ms) + 0.35 * min(engine.weights_ms, token_ms)
        step += 4.6e-5 * sum(sequence.prompt + sequence.emitted for sequence in decodes) + 6e-4 * len(running)
        step += sum(2.2e-7 * size * (sequence.done + size / 2) for sequence, size in chunks) + (0.3 if chunks else 0.0)
        step += engine.small_step_ms if tokens <= 512 else 0.0
        decay = np.exp(-step / 1e3 / NOISE_S)
        drift = decay * drift + SLOW_NOISE * np.sqrt(1.0 - decay**2) * random.standard_normal()
        now += step / 1e3 * engine.speed(now) * np.exp(drift + STEP_NOISE * random.standard_normal())
        for sequence, size in chunks:
            sequence.done += size
            if sequence.done >= sequence.prompt:
                cached_prefixes.add(sequence.shared)
        for sequence in running:
            if sequence.done >= sequence.prompt:
                sequence.emitted += 1
                emitted_at[sequence.number].append(now)
        running = [sequence for sequence in running if sequence.emitted < sequence.output]
    network = 3e-4 + random.exponential(4e-4, ready.size)
    seen_s = [
        [] if number in failed else (np.maximum.accumulate(emitted_s) - load.sent_s[number] + network[number]).tolist()
        for number, emitted_s in enumerate(emitted_at)
    ]
    return Times(seen_s, cached)


def _at_the_scheduler(load: Load, engine: Engine, random: np.random.Generator) -> np.ndarray:
    """Return when each request reaches the scheduler, s: after client delays and a front end of two workers."""
    ready, free = np.zeros(load.sent_s.size), [0.0, 0.0]
    late = 2e-4 + random.exponential(5e-4, load.sent_s.size) + 0.02 * (random.random(load.sent_s.size) < 0.01)
    for number in np.argsort(load.sent_s + late, kind="stable"):
        worker = int(np.argmin(free))
        begin = max(load.sent_s[number] + late[number], free[worker])
        free[worker] = begin + (engine.request_ms + engine.prompt_token_ms * load.prompt[number]) / 1e3
        ready[number] = free[worker]
    return ready
