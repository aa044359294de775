"""A client, its router and several engines in plain Python, one event at a time: what the compiled loop has to give.

Written from the semantics alone; the engines are those of ``reference_scheduler``. Where these leave a choice open:

- At one time, first all steps end, then the client sends, then steps begin; engines in their order.
- The client's slots are sessions in progress (requests, where sessions have one turn): a slot is taken when the first
  turn goes out and is free when the last one has ended, or when a turn is turned away; its later turns never go out.
- A later turn goes out when the one before it has ended and the think time is over; it needs no slot, and goes before
  first turns of the same time. First turns go out in order of arrival.
- The first ``warmups`` requests go out first. The clock of the others begins when these have ended: as much as a
  request arrives after the first one that is no warm-up, so much after that time it may go out.
- In turn: the k-th request that goes out goes to engine k modulo their number, turned away or not. Least loaded: fewest
  requests that were sent there and have not ended; among equal ones the next in turn. Prefix-aware: where the longest
  part of the prompt was sent before (the first engine of equal ones), if that is more than ``cache_threshold`` of it
  and the loads are alike: largest - smallest <= ``balance_abs_threshold``, or largest <= ``balance_rel_threshold`` x
  smallest. Otherwise to the least loaded. Scored: the highest sum of weight x score, of equal ones the next in turn, of
  each engine as it is then: the share of the prompt's whole blocks that it would find cached, those in tiers counting
  less; the share of the KV cache that no running request holds; how far it is from the most waiting, and running,
  requests of all engines to the fewest; one half without waiting requests, 0 with 128 of them.
- Where some engines prefill and others decode, the client sends to the first. They give the first token; the KV of the
  prompt goes over the link of its engine, one prompt after another in the order of their ends (of one step: of
  admission), and is there after the latency. That is an event like a later turn. Then the request goes in turn (or,
  unless the router takes turns, to the least loaded) to a decode engine, which sees it at once, gives it all its units
  when it admits it, and decodes it in that step. Preempted there it is recomputed there. A request that its decode
  engine could never serve is turned away at once.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from kernelsight.serving.engine import inputs, records
from tests.serving.engine.reference_pipeline import Pipeline
from tests.serving.engine.reference_scheduler import MOST_STEPS, Request, Run, Scheduler, Step, Work, step_time


class Prefills(NamedTuple):
    """Engines that compute the prompts for the others."""

    limits: Any
    host: Any
    gpu_time: Callable[[Work], float]
    engines: int
    transfer: inputs.Transfer
    pipeline: Callable[[], Pipeline] | None = None


class Engine:
    """One replica: its scheduler, and the step that it is in."""

    def __init__(
        self,
        limits: Any,
        host: Any,
        gpu_time: Callable[[Work], float],
        hash_tokens: int,
        start: float,
        tiers: inputs.Tiers | None = None,
    ):
        self.scheduler = Scheduler(limits, hash_tokens, tiers)
        self.limits, self.host, self.gpu_time = limits, host, gpu_time
        self.clock = self.horizon = self.last_end = start
        if limits.batch_wait_us:
            self.horizon = -math.inf  # nobody has looked yet
        self.granted: dict[int, int] | None = None
        self.run = Run([], [], 0.0)
        self.in_flight = 0
        self.link_free_us = -math.inf

    @property
    def is_underway(self) -> bool:
        """In a step."""
        return self.granted is not None

    def due_us(self) -> float:
        """When its step ends, or its next one begins."""
        if self.granted is not None or self.scheduler.running or self.scheduler.head(self.horizon):
            return self.clock
        queue = self.scheduler.queue
        return max(min((r.visible_us for r in queue), default=math.inf), self.clock) + self.limits.batch_wait_us

    def begin(self, now: float) -> None:
        """Begin a step."""
        if not self.scheduler.running and self.scheduler.head(self.horizon) is None:
            self.scheduler.reserve.rest()
            self.clock = self.horizon = now
        self.run.idle_us += now - self.last_end
        received = self.scheduler.polling.received_until(bool(self.scheduler.running), self.horizon)
        self.granted = self.scheduler.schedule(now, received)
        work = self.scheduler.work(self.granted)
        gpu_us = self.gpu_time(work)
        self.clock = now + step_time(work, gpu_us, self.host)
        running, units = len(self.scheduler.running), self.scheduler.memory.used
        self.run.steps.append(Step(now, self.clock, work, running, self.in_flight - running, units, gpu_us))

    def end(self) -> list[Request]:
        """End the step; returns the requests that ended with it."""
        ended = self.scheduler.advance(self.granted, self.clock)
        self.granted = None
        self.in_flight -= len(ended)
        before_us = self.run.steps[-1].start_us + self.limits.batch_wait_us
        self.horizon = before_us if self.limits.asynchronous else self.clock
        self.last_end = self.clock
        return ended

    def close(self) -> None:
        """All requests have ended."""

    def sent_us(self, request: Request, transfer: inputs.Transfer, now: float) -> float:
        """When the KV of a prompt that ended now has come to a decode engine."""
        us = transfer.sequence_us + transfer.token_us * request.prompt_tokens
        us += transfer.window_token_us * min(request.prompt_tokens, transfer.window_tokens)
        self.link_free_us = max(self.link_free_us, now) + us
        return self.link_free_us + transfer.latency_us


class PipelineEngine(Engine):
    """A replica with pipeline stages: its scheduler, and the batches in flight."""

    def __init__(self, limits: Any, pipeline: Pipeline, hash_tokens: int, start: float):
        super().__init__(limits, pipeline.host, pipeline.gpu_time, hash_tokens, start)
        self.pipeline = pipeline
        pipeline.open(start)
        self.batches: deque[tuple[float, list[tuple[Request, int]]]] = deque()
        self.waits = False  # for the oldest batch

    @property
    def is_underway(self) -> bool:
        """Until the oldest batch comes back."""
        return self.waits

    def due_us(self) -> float:
        """When the oldest batch comes back, or new ones are formed."""
        if self.waits:
            return self.batches[0][0]
        return self.clock if self.batches else super().due_us()

    def begin(self, now: float) -> None:
        """Form batches."""
        scheduler = self.scheduler
        while len(self.batches) < len(self.pipeline.shares):
            if not scheduler.running and scheduler.head(self.horizon) is None:
                if self.batches:
                    break
                scheduler.reserve.rest()
                self.horizon = now
            received = scheduler.polling.received_until(bool(scheduler.running), self.horizon)
            granted = scheduler.schedule(now, received)
            self.clock, self.horizon = now, now + self.limits.batch_wait_us
            work = scheduler.work(granted)
            if not work.tokens:
                break
            passage = self.pipeline.send(work, now, len(scheduler.running))
            counts = (len(scheduler.running), self.in_flight - len(scheduler.running), scheduler.memory.used)
            times = (passage.gpu_us, passage.host_us)
            self.run.steps.append(Step(passage.start_us, passage.end_us, work, *counts, *times))
            self.batches.append((passage.end_us, scheduler.launch(granted, passage.end_us)))
        self.waits = bool(self.batches)

    def end(self) -> list[Request]:
        """The oldest batch comes back; returns the requests that ended with it."""
        self.clock, sampled = self.batches.popleft()
        self.waits = False
        ended = self.scheduler.land(sampled, self.clock)
        self.in_flight -= len(ended)
        if not self.limits.asynchronous:
            self.horizon = self.clock
        elif not self.batches and not self.scheduler.running:
            self.horizon = min(self.horizon, self.clock)  # at rest there is no look beside a batch
        self.last_end = self.clock
        return ended

    def close(self) -> None:
        """All requests have ended."""
        self.run.idle_us = self.pipeline.close(self.last_end)
        self.run.proposed, self.run.accepted = self.scheduler.proposed, self.scheduler.accepted


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
            score += weights.load * (0.5 * (1.0 - min(waiting[i], 128) / 128))
            found.append(score)
        return found

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


def sessions(n: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Return the first of the requests that hang together with each of n requests."""
    together = [{i} for i in range(n)]
    for request, after in pairs:
        union = together[request] | together[after]
        for i in union:
            together[i] = union
    return [min(group) for group in together]


class Client:
    """Sends first turns into free slots, later turns at their time."""

    def __init__(self, requests: list[Request], load: inputs.Load):
        self.requests, self.warmups = requests, load.warmups
        pairs = [] if load.waits is None else list(zip(*(values.tolist() for values in load.waits), strict=True))
        self.before: dict[int, set[int]] = {}  # requests that each one still waits for
        self.behind: dict[int, list[tuple[int, float]]] = {}
        for request, after, pause_us in pairs:
            self.before.setdefault(request, set()).add(after)
            self.behind.setdefault(after, []).append((request, pause_us))
        self.ready_us = dict.fromkeys(self.before, -math.inf)
        self.session = sessions(len(requests), [(request, after) for request, after, _ in pairs])
        self.in_session = Counter(self.session)
        begins = [i for i in range(len(requests)) if i not in self.before]
        self.others: dict[int, list[int]] = {}  # with which a session begins beside its first request
        for i in begins:
            self.others.setdefault(self.session[i], []).append(i)
        self.unsent = deque(i for i in begins if self.others[self.session[i]][0] == i)
        self.free, self.in_flight, self.user_us = load.max_concurrency, 0, load.user_us
        self.turns: list[tuple[float, int]] = []
        self.left = len(requests)
        self.given_up: list[tuple[int, int]] = []  # and what each of them waited for
        self.warmups_left = load.warmups
        self.offset = 0.0

    def next_send_us(self, now: float) -> float:
        """When the next request goes out, as far as is known now."""
        turn_us = self.turns[0][0] if self.turns else math.inf
        if not self.unsent or not self.free or (self.unsent[0] >= self.warmups and self.warmups_left):
            return turn_us
        moment_us = max(self.requests[self.unsent[0]].arrival_us + self.offset, now)
        if self.user_us and self.unsent[0] >= self.warmups:
            moment_us = max(moment_us, self.in_flight * self.user_us + self.offset)
        return min(turn_us, moment_us)

    def take(self, now: float) -> int:
        """The request that goes out now."""
        if self.turns and self.turns[0][0] <= now:
            return heapq.heappop(self.turns)[1]
        first = self.unsent.popleft()
        self.free -= 1
        self.in_flight += 1
        for i in self.others[self.session[first]][1:]:
            heapq.heappush(self.turns, (max(self.requests[i].arrival_us + self.offset, now), i))
        return first

    def note_end(self, i: int, now: float, finished: bool) -> None:
        """A request has ended, or was turned away."""
        self.left -= 1
        if i < self.warmups:
            self.warmups_left -= 1
            if not self.warmups_left and self.warmups < len(self.requests):
                self.offset = now - self.requests[self.warmups].arrival_us
        self.leave_session(i)
        if not finished:
            self.give_up(i)
            return
        for turn, pause_us in self.behind.get(i, []):
            self.before[turn].remove(i)
            self.ready_us[turn] = max(self.ready_us[turn], now + pause_us)
            if not self.before[turn] and self.requests[turn].status != "earlier_turn":
                heapq.heappush(self.turns, (self.ready_us[turn], turn))

    def leave_session(self, i: int) -> None:
        """A request of a session is over; with its last one the slot is free."""
        self.in_session[self.session[i]] -= 1
        self.free += not self.in_session[self.session[i]]
        self.in_flight -= not self.in_session[self.session[i]]

    def give_up(self, i: int) -> None:
        """What waits for a request that was turned away is never sent; its engine is that of the request."""
        for turn, _ in self.behind.get(i, []):
            if self.requests[turn].status != "earlier_turn":
                self.requests[turn].status = "earlier_turn"
                self.left -= 1
                self.leave_session(turn)
                self.given_up.append((turn, i))
                self.give_up(turn)


def serve_scenario(
    requests: list[Request],
    load: inputs.Load,
    limits: Any,
    host: Any,
    gpu_time: Callable[[Work], float],
    routing: inputs.Routing,
    engines: int,
    prefills: Prefills | None = None,
    pipeline: Callable[[], Pipeline] | None = None,
    made: list[Engine] | None = None,
    tiers: inputs.Tiers | None = None,
) -> tuple[list[Run], list[int]]:
    """Serve a client's requests with alike engines; returns a run for each of them, and each request's engine.

    With ``prefills`` the engines decode; those that prefill come first. The engine of a turn that never went out is
    that of the turn that was turned away. ``pipeline``: makes the stages of an engine, where it has several.
    ``made``: the engines themselves. ``tiers``: KV tiers of each engine, without transfer times.
    """
    start = requests[0].arrival_us

    def engine_of(own_limits: Any, own_host: Any, own_time: Callable, stages: Callable[[], Pipeline] | None) -> Engine:
        if stages:
            return PipelineEngine(own_limits, stages(), load.hash_tokens, start)
        return Engine(own_limits, own_host, own_time, load.hash_tokens, start, tiers)

    fleet = made or [engine_of(limits, host, gpu_time, pipeline) for _ in range(engines)]
    front = fleet
    if prefills:
        told = (prefills.limits, prefills.host, prefills.gpu_time, prefills.pipeline)
        front = [engine_of(*told) for _ in range(prefills.engines)]
        decoders, fleet = fleet, [*front, *fleet]
        decode_router = DecodeRouter(routing, decoders)
    client = Client(requests, load)
    router = Router(routing, front, load.hash_tokens, client.session)
    moving: set[int] = set()
    number = {id(request): i for i, request in enumerate(requests)}
    replicas = [0] * len(requests)
    now, rounds = start, 0
    while client.left:
        now = max(min(client.next_send_us(now), *(engine.due_us() for engine in fleet)), now)
        for engine in fleet:
            if engine.is_underway and engine.due_us() == now:
                for request in engine.end():
                    if request.prefill_only and request.output_tokens > 1:
                        moving.add(number[id(request)])
                        moment = engine.sent_us(request, prefills.transfer, now)
                        heapq.heappush(client.turns, (moment, number[id(request)]))
                    else:
                        client.note_end(number[id(request)], now, finished=True)
        while client.next_send_us(now) <= now:
            i = client.take(now)
            if i in moving:
                moving.remove(i)
                requests[i].prefill_replica, replicas[i] = replicas[i], len(front) + decode_router.route()
                take_over(requests[i], fleet[replicas[i]], now)
                continue
            replicas[i] = router.route(requests[i])
            requests[i].sent_us = now
            requests[i].prefill_only = prefills is not None
            engine = fleet[replicas[i]]
            handed_on_us = engine.scheduler.handed_on_us
            accepted = engine.scheduler.accept(requests[i], engine.host)
            if accepted and prefills and requests[i].output_tokens > 1:
                requests[i].prefill_only = False
                requests[i].status = decoders[0].scheduler.verdict(requests[i])
                requests[i].prefill_only = True
                accepted = requests[i].status == "finished"
                if not accepted:
                    engine.scheduler.queue.remove(requests[i])
                    engine.scheduler.handed_on_us = handed_on_us
            fleet[replicas[i]].in_flight += accepted
            if not accepted:
                client.note_end(i, now, finished=False)
                for turn, _ in client.given_up:
                    replicas[turn] = replicas[i]
                client.given_up.clear()
        for engine in fleet:
            if not engine.is_underway and engine.due_us() <= now:
                engine.begin(now)
        rounds += 1
        if rounds > MOST_STEPS:
            raise RuntimeError(f"the reference took {MOST_STEPS} rounds and {client.left} requests have not ended")
    for engine in fleet:
        engine.close()
    return [engine.run for engine in fleet], replicas


def take_over(request: Request, engine: Engine, now: float) -> None:
    """Queue a request on a decode engine: the KV of its prompt has come."""
    request.prefill_only = request.decoding = False
    request.cached_tokens, request.received_tokens = 0, request.prompt_tokens
    request.received_us = request.visible_us = now
    engine.scheduler.queue.append(request)
    engine.in_flight += 1
