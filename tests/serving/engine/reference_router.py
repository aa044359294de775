"""Routers of the reference, written from the rules that ``reference_scenario`` states."""

from __future__ import annotations

from kernelsight.serving.engine import inputs, records
from tests.serving.engine.reference_adapters import Adapters
from tests.serving.engine.reference_engine import Engine
from tests.serving.engine.reference_scheduler import Request


class Router:
    """Chooses an engine; remembers what it sent where."""

    def __init__(self, routing: inputs.Routing, engines: list[Engine], hash_tokens: int, session: list[int]):
        self.routing, self.engines, self.hash_tokens = routing, engines, hash_tokens
        self.session, self.begun = session, dict[int, int]()
        self.routed = 0
        self.sent: list[set[int]] = [set() for _ in engines]

    def route(self, request: Request) -> int:
        """The number of the engine that gets the request."""
        order = [(self.routed + k) % len(self.engines) for k in range(len(self.engines))]
        self.routed += 1
        loads = [engine.in_flight for engine in self.engines]
        lightest = min(order, key=lambda i: loads[i])
        if self.routing.router == records.ROUND_ROBIN:
            return order[0]
        if self.routing.router == records.LEAST_LOADED:
            return lightest
        if self.routing.router == records.SCORED:
            scores = self.scores(request)
            return max(order, key=lambda i: scores[i])
        if self.routing.router == records.SESSION_AFFINITY:
            return self.begun.setdefault(self.session[request.number], lightest)
        matches = [self.matched_blocks(i, request) for i in range(len(self.engines))]
        best = matches.index(max(matches))
        tokens = min(matches[best] * self.hash_tokens, request.prompt_tokens)
        alike = max(loads) - min(loads) <= self.routing.balance_abs_threshold or max(
            loads
        ) <= self.routing.balance_rel_threshold * min(loads)
        chosen = best if tokens > self.routing.cache_threshold * request.prompt_tokens and alike else lightest
        self.sent[chosen].update(request.hashes)
        return chosen

    def scores(self, request: Request) -> list[float]:
        """The sum of weight x score of each engine."""
        weights = self.routing.weights
        waiting = [engine.in_flight - len(engine.scheduler.running) for engine in self.engines]
        running = [len(engine.scheduler.running) for engine in self.engines]

        def among(counts: list[int], own: int) -> float:
            return 1.0 if max(counts) == min(counts) else (max(counts) - own) / (max(counts) - min(counts))

        found = []
        for i, engine in enumerate(self.engines):
            memory, limits = engine.scheduler.memory, engine.limits
            own = memory.hit_tokens(request) // limits.block_size
            behind = memory.load_tokens(request) // limits.block_size
            cached = (own + weights.tier * behind) / max(request.prompt_tokens // limits.block_size, 1)
            score = weights.prefix * cached
            score += weights.kv_use * (1.0 - memory.used / max(limits.capacity_units, 1))
            score += weights.queue * among(waiting, waiting[i])
            score += weights.running * among(running, running[i])
            score += weights.adapter * self.adapter_score(engine.scheduler.adapters, request.adapter)
            score += weights.load * (0.5 * (1.0 - min(waiting[i], 128) / 128))
            found.append(score)
        return found

    def adapter_score(self, adapters: Adapters, adapter: int) -> float:
        """1 for an adapter on the GPU, 0.8 where a slot is empty; 0 for requests without one."""
        if adapter < 0 or not adapters.limits.max_loras:
            return 0.0
        place = adapters.held(adapter)
        if place and place.on_gpu:
            return 1.0
        return 0.8 if len(adapters.on_gpu()) < adapters.limits.max_loras else 0.0

    def matched_blocks(self, i: int, request: Request) -> int:
        """Leading hash blocks of the prompt that engine ``i`` was sent before."""
        return next((k for k, h in enumerate(request.hashes) if h not in self.sent[i]), len(request.hashes))


class DecodeRouter:
    """Chooses a decode engine."""

    def __init__(self, routing: inputs.Routing, engines: list[Engine]):
        self.in_turn, self.engines = routing.router == records.ROUND_ROBIN, engines
        self.handed = 0

    def route(self) -> int:
        """The number of the decode engine that gets the next request."""
        order = [(self.handed + k) % len(self.engines) for k in range(len(self.engines))]
        self.handed += 1
        return order[0] if self.in_turn else min(order, key=lambda i: self.engines[i].in_flight)
