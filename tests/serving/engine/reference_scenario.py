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

from kernelsight.serving.engine import inputs
from tests.serving.engine.reference_engine import Engine, PipelineEngine, take_over
from tests.serving.engine.reference_pipeline import Pipeline
from tests.serving.engine.reference_router import DecodeRouter, Router
from tests.serving.engine.reference_scheduler import MOST_STEPS, Request, Run, Work


class Prefills(NamedTuple):
    """Engines that compute the prompts for the others."""

    limits: Any
    host: Any
    gpu_time: Callable[[Work], float]
    engines: int
    transfer: inputs.Transfer
    pipeline: Callable[[], Pipeline] | None = None


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
        self.most = load.max_concurrency
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

    def sent_after(self, i: int) -> int:
        """How many of the requests that go out at once after warm-ups come after request ``i``."""
        first = self.requests[self.warmups :][: 0 if self.behind or self.user_us else self.most]
        together = sum(request.arrival_us == first[0].arrival_us for request in first)
        return max(self.warmups + together - 1 - i, 0) if i >= self.warmups else 0

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


class Cluster:
    """All engines with their client and routers; with ``prefills`` those that prefill come first, the others decode."""

    def __init__(
        self, requests: list[Request], load: inputs.Load, routing: inputs.Routing, engines: list[Engine],
        prefills: Prefills | None, front: list[Engine],
    ) -> None:  # fmt: skip
        self.requests, self.prefills, self.front = requests, prefills, front
        self.decoders = engines if prefills else []
        self.engines = [*front, *engines] if prefills else engines
        self.decode_router = DecodeRouter(routing, self.decoders)
        self.client = Client(requests, load)
        self.router = Router(routing, front, load.hash_tokens, self.client.session)
        self.moving: set[int] = set()  # requests whose KV is on its way to a decode engine
        self.number = {id(request): i for i, request in enumerate(requests)}
        self.replicas = [0] * len(requests)

    def next_us(self, now: float) -> float:
        """When anything happens next."""
        return max(min(self.client.next_send_us(now), *(engine.due_us() for engine in self.engines)), now)

    def end_steps(self, now: float) -> None:
        """End the steps that are over: their requests end, or their KV goes to a decode engine."""
        for engine in self.engines:
            if not engine.is_underway or engine.due_us() != now:
                continue
            for request in engine.end():
                number = self.number[id(request)]
                if request.prefill_only and request.output_tokens > 1:
                    self.moving.add(number)
                    heapq.heappush(self.client.turns, (engine.sent_us(request, self.prefills.transfer, now), number))
                else:
                    self.client.note_end(number, now, finished=True)

    def send(self, now: float) -> None:
        """Send what is due, one request after another."""
        while self.client.next_send_us(now) <= now:
            i = self.client.take(now)
            if i in self.moving:
                self.moving.remove(i)
                self.requests[i].prefill_replica = self.replicas[i]
                self.replicas[i] = len(self.front) + self.decode_router.route()
                take_over(self.requests[i], self.engines[self.replicas[i]], now)
            else:
                self.send_new(i, now)

    def send_new(self, i: int, now: float) -> None:
        """Send a request for the first time; those that wait for one that is turned away never go out."""
        self.replicas[i] = self.router.route(self.requests[i])
        self.requests[i].sent_us = now
        self.requests[i].prefill_only = self.prefills is not None
        engine = self.engines[self.replicas[i]]
        if self.is_accepted(self.requests[i], engine):
            engine.in_flight += 1
            return
        self.client.note_end(i, now, finished=False)
        for turn, _ in self.client.given_up:
            self.replicas[turn] = self.replicas[i]
        self.client.given_up.clear()

    def is_accepted(self, request: Request, engine: Engine) -> bool:
        """Queue a request; return whether its engine, and the one that decodes it, can ever serve it."""
        before = engine.scheduler.handed_on_us, engine.scheduler.busy_us
        others = self.client.sent_after(self.number[id(request)]) // len(self.front)
        accepted = engine.scheduler.accept(request, engine.host, others)
        if accepted and self.prefills and request.output_tokens > 1:
            request.prefill_only = False
            request.status = self.decoders[0].scheduler.verdict(request)
            request.prefill_only = True
            accepted = request.status == "finished"
            if not accepted:
                engine.scheduler.queue.remove(request)
                engine.scheduler.handed_on_us, engine.scheduler.busy_us = before
        return accepted

    def begin_steps(self, now: float) -> None:
        """Begin the steps that are due."""
        for engine in self.engines:
            if not engine.is_underway and engine.due_us() <= now:
                engine.begin(now)


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

    own = made or [engine_of(limits, host, gpu_time, pipeline) for _ in range(engines)]
    front = own
    if prefills:
        stated = (prefills.limits, prefills.host, prefills.gpu_time, prefills.pipeline)
        front = [engine_of(*stated) for _ in range(prefills.engines)]
    cluster = Cluster(requests, load, routing, own, prefills, front)
    now, rounds = start, 0
    while cluster.client.left:
        now = cluster.next_us(now)
        cluster.end_steps(now)
        cluster.send(now)
        cluster.begin_steps(now)
        rounds += 1
        if rounds > MOST_STEPS:
            raise RuntimeError(f"the reference took {MOST_STEPS} rounds, {cluster.client.left} requests have not ended")
    for engine in cluster.engines:
        engine.close()
    return [engine.run for engine in cluster.engines], cluster.replicas
