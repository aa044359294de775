"""A scheduler in plain Python, one step and one token at a time: what the compiled loop must agree with.

Written from the semantics alone (token budget, cap of running requests, chunked prefill, KV units, preemption,
asynchronous scheduling, open and closed loop), for clarity and not for speed; KV memory and its prefix cache have a
module of their own (``reference_memory``), and so have the policies of single engines (``reference_policy``). Where the
semantics leave a choice open:

- The newest running request is the victim of a preemption. Preempted requests go to the front of the queue and are
  recomputed: their prompt and what they have generated, but for what the prefix cache still has of the prompt. Nothing
  is admitted in a step that preempted.
- By priority: the queue and the victims go by (priority, when sent, number). A victim that has tokens in the step gives
  them and their blocks back; a request that is its own victim leaves those behind it their turn.
- ``max_long_partial_prefills``: a request with more known tokens than ``long_prefill_token_threshold`` is passed over
  while so many prompts are under way that have more tokens than that to compute.
- A step with asynchronous scheduling sees the requests that were visible when the step before it began; after an idle
  time it sees those that are visible now. A request is visible ``request_us``
  and ``per_prompt_token_us`` for each token of its prompt after it is sent, and not before those sent before it.
- Closed loop: at most ``max_concurrency`` requests in flight. The next one is sent when one ends (at the end of that
  step), or at its arrival if a slot is free by then. With ``user_us`` slot number n is there from n times that on.
- prompt + output > ``max_model_len``, or without chunking a prompt > budget, is rejected as too long; a request that
  could never fit the KV units is rejected for memory. Rejected requests free their slot at once.
- Without chunking a prompt is computed whole or waits; only a recomputed one that has outgrown the budget is cut, and
  only where it has the step for itself.
- ``prefill_first``: a step takes prompts only, while one is under way or the head of the queue can be admitted. Where
  the prompt under way gave its KV units back, the step decodes instead.
- A step takes exposed host time + max(hidden host time, GPU time).
- ``fewest_generated`` (SGLang): where the next tokens of all decoding requests do not fit, those with the fewest
  generated tokens are preempted first, and queue behind all that have come; where prompts run short, the newest.
- ``batch_wait_us`` (TensorRT-LLM, with asynchronous scheduling): a look for new requests lasts so long, beside the step
  before; after an idle time the step waits for it, whatever look was not over when the engine came to rest.
- Without ``chunks_overlap`` a prompt whose last chunk is in a batch that has not come back has none in another one.
- ``drafts``: a decoding request has one token and so many proposed ones in a step, fewer where the budget or
  ``max_model_len`` ends. Of the proposed ones those up to the first that is not accepted are its own, with one more;
  those beyond its last token are lost. KV units of those that were not accepted stay with the request.
- Adapters (``reference_adapters``): a request without a slot for its own is passed over, or holds back those behind it.
- What waits is what was sent, was not rejected, and neither runs nor has ended.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelsight.serving.engine import records
from tests.serving.engine.reference_adapters import Adapters
from tests.serving.engine.reference_memory import CachedMemory, CountedMemory
from tests.serving.engine.reference_policy import BatchWait, Door, Polling, Reserve
from tests.serving.engine.reference_tiers import TieredMemory

MOST_STEPS = 100_000
BITS = 2**64


def accepted_of(number: int, known: int, drafts: int, acceptance: float | tuple[float, ...]) -> int:
    """Return how many proposed tokens are accepted: SplitMix64 of the request's and the token's number decides."""
    for place in range(drafts):
        mixed = (number * 0xD1342543DE82EF95 + (known + place) * 0x9E3779B97F4A7C15) % BITS
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % BITS
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % BITS
        rate = acceptance[place] if isinstance(acceptance, tuple) else acceptance
        if ((mixed ^ (mixed >> 31)) >> 11) / 2**53 >= rate:
            return place
    return drafts


@dataclass(eq=False)  # two requests of the same sizes are still two
class Request:
    """One request: what was asked, where it stands, and when things happened (microseconds, -1: never)."""

    arrival_us: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()
    priority: int = 0
    number: int = 0
    adapter: int = -1  # none
    status: str = "finished"
    sent_us: float = -1.0
    scheduled_us: float = -1.0
    finish_us: float = -1.0
    visible_us: float = math.inf
    cached_tokens: int = 0  # now in the cache
    hit_tokens: int = 0  # found there at the first admission
    token_times_us: list[float] = field(default_factory=list)
    decoding: bool = False
    preemptions: int = 0
    requeued_us: float = 0.0  # in the queue again after preemptions
    recomputed_us: float = 0.0  # from an admission after a preemption to the next token or preemption
    since_us: float = 0.0  # when it was last preempted, or admitted after that
    recomputes: bool = False
    prefill_only: bool = False  # its engine gives the first token, another one the others
    received_tokens: int = 0  # waiting: tokens whose KV was transferred
    received_us: float = -1.0  # then
    prefill_replica: int = -1
    returns_us: float = -math.inf  # when the batch with its last chunk comes back, a part of its prompt
    loaded_us: float = 0.0  # running, and waiting for its load from a KV tier until then; 0: it does not
    tier_tokens: int = 0  # found in KV tiers at the first admission

    @property
    def asked_tokens(self) -> int:
        """Tokens that the engine generates which has it."""
        return 1 if self.prefill_only else self.output_tokens

    @property
    def rank(self) -> tuple[int, float, int]:
        """Place in order of priority."""
        return self.priority, self.sent_us, self.number

    @property
    def known_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + len(self.token_times_us)

    @property
    def missing_tokens(self) -> int:
        """Known tokens that are neither in the cache nor in flight."""
        return self.known_tokens - self.cached_tokens

    @property
    def is_prompt(self) -> bool:
        """Running, with known tokens to compute, of its prompt or after a preemption."""
        return not self.decoding and self.missing_tokens > 0


@dataclass
class Work:
    """What one step computes: new tokens of each prompt chunk after cached ones, contexts of decodes, samples.

    ``proposed``: tokens of decodes beyond one each; ``ended``: lengths of the prompts that end; ``adapters``: that it
    pays for.
    """

    chunks: list[tuple[int, int]]
    contexts: list[int]
    sampled: int
    proposed: int = 0
    ended: tuple[int, ...] = ()
    adapters: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts, recomputed ones included."""
        return sum(new for new, _ in self.chunks)

    @property
    def decode_tokens(self) -> int:
        """Tokens of decodes, proposed ones included."""
        return len(self.contexts) + self.proposed

    @property
    def tokens(self) -> int:
        """All tokens of the step."""
        return self.prompt_tokens + self.decode_tokens

    @property
    def phase(self) -> str:
        """``prefill``, ``decode`` or ``mixed``."""
        if not self.contexts:
            return "prefill"
        return "mixed" if self.chunks else "decode"


@dataclass
class Step:
    """One engine iteration; times in microseconds."""

    start_us: float
    end_us: float
    work: Work
    running: int
    waiting: int
    units: int
    gpu_us: float
    host_us: float = -1.0  # exposed; stated where the step waits for pipeline stages as well
    waited_us: float = 0.0  # for transfers of KV tiers


@dataclass
class Run:
    """What a simulation gave: requests in order of arrival, steps in order of time."""

    requests: list[Request]
    steps: list[Step]
    idle_us: float
    proposed: int = 0  # drafts
    accepted: int = 0


class Client:
    """Sends the requests in order, each into a free slot; a slot remembers since when it is free."""

    def __init__(self, requests: Sequence[Request], max_concurrency: int, user_us: float = 0.0) -> None:
        self.unsent, self.count = deque(requests), len(requests)
        first = requests[: max_concurrency if user_us == 0.0 else 0]
        self.together = sum(request.arrival_us == requests[0].arrival_us for request in first)
        self.slots = [number * user_us or -math.inf for number in range(min(max_concurrency, len(requests)))]

    def next_send_us(self) -> float:
        """When the next request goes out, as far as is known now."""
        if not self.unsent or not self.slots:
            return math.inf
        return max(self.unsent[0].arrival_us, self.slots[0])

    def others(self) -> int:
        """How many of the requests that go out at once at the start come after the last that was sent."""
        return max(self.together - (self.count - len(self.unsent)), 0)

    def send(self, now: float, accept: Callable[[Request], bool]) -> None:
        """Send what goes out by ``now``; a request that is not accepted gives its slot back."""
        while self.next_send_us() <= now:
            sent_us = self.next_send_us()
            heapq.heappop(self.slots)
            request = self.unsent.popleft()
            request.sent_us = sent_us
            if not accept(request):
                self.free_slot(sent_us)

    def free_slot(self, now: float) -> None:
        """A request ended."""
        heapq.heappush(self.slots, now)


class Scheduler:
    """Queue, running requests and KV memory of one replica, under ``limits`` (the fields of the loop's Limits)."""

    def __init__(self, limits: Any, hash_tokens: int, tiers: Any = None) -> None:
        self.limits = limits
        caching = limits.prefix_caching and hash_tokens > 0
        self.memory = CachedMemory(limits, hash_tokens) if caching else CountedMemory(limits)
        if caching and tiers is not None:
            self.memory = TieredMemory(limits, hash_tokens, tiers)
        self.load_ahead = caching and tiers is not None and tiers.load_ahead and not limits.prefill_first
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.now_us = self.seen_us = self.handed_on_us = self.busy_us = 0.0
        self.polling, self.door, self.wait = Polling(limits), Door(limits), BatchWait(limits)
        self.reserve = Reserve(limits, self.memory)
        self.adapters = Adapters(limits)
        self.proposed = self.accepted = 0
        self.prompts_left = False  # requests that were seen, and not admitted

    # --- the queue

    def verdict(self, request: Request) -> str:
        """Why the request could never be served; "finished" where it can."""
        whole = request.prompt_tokens + request.asked_tokens
        too_long = whole > self.limits.max_model_len
        if not self.limits.chunked and request.prompt_tokens > self.limits.max_num_batched_tokens:
            too_long = True
        if too_long:
            return "too_long"
        most = min(whole - 1 + self.limits.drafts, self.limits.max_model_len - 1)
        return "no_memory" if self.memory.units_of(most) > self.limits.capacity_units else "finished"

    def accept(self, request: Request, host: Any, others: int) -> bool:
        """Queue a request, or reject it for good; ``others``: how many of those sent at once come after it."""
        request.status = self.verdict(request)
        if request.status == "finished":
            alone_us = request.sent_us + host.request_us + host.per_prompt_token_us * request.prompt_tokens
            serial_us = host.serial_us + host.serial_token_us * request.prompt_tokens
            self.busy_us = max(request.sent_us, self.busy_us) + serial_us
            others_us = others * host.serial_us
            self.handed_on_us = request.visible_us = max(alone_us, self.busy_us + others_us, self.handed_on_us)
            self.queue.append(request)
        return request.status == "finished"

    def head(self, horizon: float) -> Request | None:
        """The request that would be admitted next, of those that are visible at ``horizon``."""
        for request in self.in_order():
            if request.visible_us > horizon or not self.may_be_next(request):
                continue
            if self.adapters.may_run(request.adapter):
                return request
            if self.limits.adapter_head_waits:
                return None
        return None

    def next_visible_us(self) -> float:
        """When an engine without requests that it can see gets one: the head of the queue, by priority the first."""
        return min(r.visible_us for r in self.queue) if self.limits.by_priority else self.queue[0].visible_us

    def in_order(self) -> list[Request]:
        """The queue in the order of the policy."""
        return sorted(self.queue, key=lambda r: r.rank) if self.limits.by_priority else list(self.queue)

    def may_be_next(self, request: Request) -> bool:
        """False for a long prompt that has to let shorter ones pass."""
        most, long = self.limits.max_long_partial_prefills, self.limits.long_prefill_token_threshold
        if not most or request.known_tokens - request.received_tokens <= long:
            return True
        return sum(not r.decoding and r.missing_tokens > long for r in self.running) < most

    # --- one step

    def schedule(self, now: float, horizon: float) -> dict[int, int]:
        """Return the tokens that each running request gets in this step, by the id of the request."""
        self.now_us, self.seen_us = now, horizon
        self.door.begin_step(self.running, horizon)
        if self.wait.holds(self.running, self.waiting(horizon)):
            granted, _ = self.schedule_running(prompts=False)
            return granted or self.schedule_running()[0]
        prompts_only = self.limits.prefill_first and self.wants_prompts(horizon)
        granted, preempted = self.schedule_running(decodes=not prompts_only)
        if not preempted and (prompts_only or not self.limits.prefill_first):
            self.admit(granted, now, horizon)
            self.prompts_left = self.head(horizon) is not None
        if prompts_only and not granted:
            granted, _ = self.schedule_running()
        return granted

    def waiting(self, horizon: float) -> list[Request]:
        """The requests that a batch wait counts: none, where the first could not be admitted beside the decodes."""
        horizon = self.door.seen_until(horizon)
        first = self.head(horizon)
        if self.door.is_shut(self.running) or self.door.is_at_cap(self.running) or first is None:
            return []
        decodes = sum(r.decoding for r in self.running)
        budget = self.limits.max_num_batched_tokens - decodes * (1 + self.limits.drafts)
        tokens = self.chunk_of(first, budget)
        cut = tokens < self.chunk_of(first, first.missing_tokens)
        room = self.reserve.room(self.running)
        if tokens == 0 or (cut and not self.limits.chunked) or not self.fits(first, tokens, room):
            return []
        most = self.limits.max_num_seqs - len(self.running)
        return [r for r in self.in_order() if r.visible_us <= horizon][:most]

    def candidate(self, horizon: float) -> Request | None:
        """The request that is next, where the engine looks at the queue at all; a static batch is formed without."""
        request = None if self.door.is_shut(self.running) else self.head(self.door.seen_until(horizon))
        if request is None or self.door.is_at_cap(self.running):
            self.door.close()
            return None
        return request

    def fits(self, request: Request, tokens: int, room: int) -> bool:
        """Whether KV units for the request are free, as many as the policy wants, and out of what is not reserved."""
        whole = request.received_tokens + tokens
        return self.memory.fits(request, whole) and self.reserve.is_left(request, tokens, room, self.running)

    def has_room(self, request: Request, tokens: int, room: int) -> bool:
        """The same, where the engine means to admit it: a refusal is remembered."""
        if self.fits(request, tokens, room):
            return True
        self.door.note_no_room(self.running)
        return False

    def wants_prompts(self, horizon: float) -> bool:
        """Whether a prefill-first engine takes prompts in this step."""
        if any(r.is_prompt for r in self.running):
            return True
        request = self.candidate(horizon)
        if request is None:
            return False
        tokens = self.chunk_of(request, self.limits.max_num_batched_tokens)
        return self.has_room(request, tokens, self.reserve.room(self.running))

    def chunk_of(self, request: Request, budget: int) -> int:
        """Tokens that the request gets out of this budget."""
        tokens = request.missing_tokens
        if request.decoding:
            return min(1 + self.limits.drafts, self.limits.max_model_len - 1 - request.cached_tokens, budget)
        if request not in self.running:
            tokens -= request.received_tokens + self.memory.hit_tokens(request) + self.memory.load_tokens(request)
            if self.load_ahead and self.memory.load_tokens(request):
                return 0
        if self.limits.long_prefill_token_threshold:
            tokens = min(tokens, self.limits.long_prefill_token_threshold)
        return min(tokens, budget)

    def schedule_running(self, prompts: bool = True, decodes: bool = True) -> tuple[dict[int, int], bool]:
        """Give the running requests their tokens, oldest first; returns them, and whether a request was preempted.

        ``prompts``, ``decodes``: which of them get tokens in this step.
        """
        granted: dict[int, int] = {}
        preempted = False
        if self.limits.fewest_generated and decodes and not self.limits.by_priority:
            preempted = self.retract()
        for request in list(self.running):
            budget = self.limits.max_num_batched_tokens - sum(granted.values())
            if request not in self.running or budget == 0 or not (decodes if request.decoding else prompts):
                continue
            if request.missing_tokens <= 0 or self.is_loading(request):
                continue
            if not self.limits.chunks_overlap and not request.decoding and request.returns_us > self.now_us:
                continue
            tokens = self.chunk_of(request, budget)
            while request in self.running and not self.memory.fits(request, self.more(request, tokens)):
                preempted = True
                if len(self.running) == 1:
                    self.memory.keep_own_only(request)
                    break
                victim = max(self.running, key=lambda r: r.rank) if self.limits.by_priority else self.running[-1]
                granted.pop(id(victim), None)
                self.preempt(victim)
            if request in self.running:
                self.memory.grow(request, self.more(request, tokens))
                granted[id(request)] = tokens
        return granted, preempted

    def is_loading(self, request: Request) -> bool:
        """Whether the request still waits for its load; one that has ended is noted."""
        if request.loaded_us <= self.seen_us:
            request.loaded_us = 0.0
        return request.loaded_us > 0.0

    def first_load_us(self) -> float:
        """When the first load ends that a request waits for."""
        return min((r.loaded_us for r in self.running if r.loaded_us), default=math.inf)

    def more(self, request: Request, tokens: int) -> int:
        """Tokens that a running request's memory has to grow by for its next ``tokens``."""
        return max(request.cached_tokens + tokens - self.memory.tokens[id(request)], 0)

    def retract(self) -> bool:
        """Preempt decoding requests until the others have units for their next tokens; whether any went.

        The fewest generated tokens first, then the longest prompt, then the newest; one stays.
        """
        preempted = False
        while True:
            decoding = [r for r in self.running if r.decoding]
            tokens, units_of = self.memory.tokens, self.memory.units_of
            after = {id(r): tokens[id(r)] + self.more(r, 1 + self.limits.drafts) for r in decoding}
            needed = sum(units_of(after[id(r)]) - units_of(tokens[id(r)]) for r in decoding)
            if len(decoding) < 2 or needed <= self.limits.capacity_units - self.memory.used:
                return preempted
            newest_first = reversed(decoding)
            self.preempt(min(newest_first, key=lambda r: (len(r.token_times_us), -r.prompt_tokens)))
            preempted = True

    def preempt(self, victim: Request) -> None:
        """Put a running request back to the front of the queue (or its end), with nothing in the cache."""
        self.running.remove(victim)
        self.memory.leave(victim)
        self.adapters.leave(victim.adapter, self.now_us)
        victim.cached_tokens = 0
        victim.loaded_us = 0.0
        victim.decoding = False
        victim.preemptions += 1
        if victim.recomputes:
            victim.recomputed_us += self.now_us - victim.since_us
        victim.recomputes, victim.since_us = False, self.now_us
        victim.visible_us = -math.inf
        place = 0
        if self.limits.fewest_generated and not self.limits.by_priority:
            # behind all that have been received
            place = next((i for i, r in enumerate(self.queue) if r.visible_us > self.seen_us), len(self.queue))
        self.queue.insert(place, victim)
        self.reserve.note_preemption(self.running)

    def admit(self, granted: dict[int, int], now: float, horizon: float) -> None:
        """Admit from the queue, in order, while budget, cap and KV units allow."""
        room = self.reserve.room(self.running)
        while (budget := self.limits.max_num_batched_tokens - sum(granted.values())) > 0:
            request = self.candidate(horizon)
            if request is None:
                return
            tokens = self.chunk_of(request, budget)
            cut = tokens < self.chunk_of(request, request.missing_tokens)
            if cut and not self.limits.chunked and granted:
                return
            if not self.may_stay_partial(request, tokens, granted) or not self.has_room(request, tokens, room):
                return
            room -= self.reserve.needed(request, tokens)
            self.queue.remove(request)
            self.running.append(request)
            self.adapters.enter(request.adapter)
            received, request.received_tokens = request.received_tokens, 0
            loaded = self.memory.load_tokens(request)
            request.cached_tokens = received + self.memory.hit_tokens(request) + loaded
            if request.scheduled_us < 0:
                request.tier_tokens = loaded
            ends_us = self.memory.enter(request, now)
            if loaded and self.load_ahead:
                request.loaded_us = max(ends_us, now)
            self.memory.grow(request, received + tokens)
            granted[id(request)] = tokens
            self.door.joined += 1
            if self.limits.capacity_policy == records.MAX_UTILIZATION:
                room = self.reserve.room(self.running)
            if received:
                request.decoding = True
            elif request.scheduled_us < 0:
                request.scheduled_us, request.hit_tokens = now, request.cached_tokens
            else:
                request.requeued_us += now - request.since_us
                request.recomputes, request.since_us = True, now

    def may_stay_partial(self, request: Request, tokens: int, granted: dict[int, int]) -> bool:
        """Whether this chunk ends the prompt, or leaves no more prompts in part than there may be at once."""
        most = self.limits.max_num_partial_prefills
        found = self.memory.hit_tokens(request) + self.memory.load_tokens(request)
        if not most or tokens + request.received_tokens == request.missing_tokens - found:
            return True
        return sum(granted.get(id(r), 0) < r.missing_tokens for r in self.running if not r.decoding) < most

    def work(self, granted: dict[int, int]) -> Work:
        """Say what the step computes."""
        chunks, contexts, sampled, proposed, ended = [], [], 0, 0, []
        for request in self.running:
            tokens = granted.get(id(request), 0)
            if tokens and request.decoding:
                contexts.append(request.cached_tokens)
                sampled += tokens
                proposed += tokens - 1
            elif tokens:
                chunks.append((tokens, request.cached_tokens))
                if tokens == request.missing_tokens:
                    sampled += 1
                    ended.append(request.known_tokens)
        work = Work(chunks, contexts, sampled, proposed, tuple(ended))
        if self.limits.max_loras:
            work.adapters = self.adapters.in_step(work.tokens, bool(chunks))
        return work

    def launch(self, granted: dict[int, int], returns_us: float) -> list[tuple[Request, int, int]]:
        """Count the step's tokens as computed; returns who gets one from it, what they know until then, and drafts.

        ``returns_us``: when the step ends.
        """
        decodes = any(r.decoding and granted.get(id(r), 0) for r in self.running)
        self.reserve.decode_steps += decodes
        self.polling.note_step(any(not r.decoding and granted.get(id(r), 0) for r in self.running))
        sampled = []
        for request in self.running:
            tokens = granted.get(id(request), 0)
            drafts = tokens - 1 if request.decoding else 0
            request.cached_tokens += tokens
            if tokens and request.is_prompt:
                request.returns_us = returns_us
            if tokens and request.missing_tokens == -drafts:
                sampled.append((request, request.known_tokens, drafts))
                request.decoding = False
        return sampled

    def land(self, sampled: list[tuple[Request, int, int]], now: float) -> list[Request]:
        """The tokens of a step come back; returns the requests that ended with it.

        Who was preempted in flight gets a token all the same, and may end in the queue; who was computed again since
        has two answers in flight, of which the first counts, without drafts.
        """
        ended = []
        for request, known, drafts in sampled:
            if request.known_tokens != known:
                continue
            accepted = accepted_of(request.number, known, min(drafts, self.limits.draft_depth), self.limits.acceptance)
            if request.cached_tokens == known:
                accepted = 0  # computed again since, and in flight once more: one token follows from that
            self.proposed += drafts
            self.accepted += accepted
            if request.missing_tokens == -drafts:
                request.cached_tokens -= drafts - accepted
            left = request.asked_tokens - len(request.token_times_us)
            request.token_times_us += [now] * min(1 + accepted, left)
            if request.recomputes:
                request.recomputed_us += now - request.since_us
                request.recomputes = False
            if len(request.token_times_us) == request.asked_tokens:
                request.finish_us = now
                ended.append(request)
            elif request in self.running and request.missing_tokens == 1:
                request.decoding = True
        for request in ended:
            if request in self.running:
                self.running.remove(request)
                self.memory.leave(request)
                self.adapters.leave(request.adapter, now)
            else:
                self.queue.remove(request)
                request.requeued_us += now - request.since_us
        return ended

    def advance(self, granted: dict[int, int], now: float) -> list[Request]:
        """Put the step's tokens into the cache; returns the requests that ended with it."""
        return self.land(self.launch(granted, now), now)


def step_time(work: Work, gpu_us: float, host: Any) -> float:
    """Time of a step under the host's constants (the fields of the loop's Host), microseconds."""
    host = host_for(work, host)
    cpu_us = host.base_us + host.per_request_us * (len(work.chunks) + len(work.contexts))
    cpu_us += host.per_token_us * work.tokens
    launches_us = launches_of(work, host)
    hidden_us = launches_us + (cpu_us if host.overlapped else 0.0)
    exposed_us = host.exposed_us + requests_us(work, host)
    exposed_us += 0.0 if host.overlapped else cpu_us
    return exposed_us + max(hidden_us, gpu_us)


def host_for(work: Any, host: Any) -> Any:
    """The host's constants for a step: without adapters it launches less."""
    less = {"exposed_us": "gap", "gap_us": "gap", "eager_launches_us": "eager", "captured_launches_us": "captured"}
    if work.adapters:
        return host
    return host._replace(
        **{name: getattr(host, name) - getattr(host, f"adapter_{part}_us") for name, part in less.items()}
    )


def requests_us(work: Any, host: Any) -> float:
    """Time of a step's requests that the GPU waits for: of the n-th it waits less, as the step is longer."""
    number = len(work.chunks) + len(work.contexts)
    return host.exposed_per_request_us * number / (1.0 + number / host.exposed_requests_half)


def launches_of(work: Any, host: Any) -> float:
    """Time of a step's launches: a graph holds decode steps, and pieces of steps with prompts, up to its size."""
    largest = host.prompt_graph_max_tokens if work.chunks else host.graph_max_tokens
    if work.tokens > largest:
        return host.eager_launches_us
    return host.piecewise_launches_us if work.chunks else host.captured_launches_us


def serve(
    requests: Sequence[Request],
    limits: Any,
    host: Any,
    gpu_time: Callable[[Work], float],
    hash_tokens: int = 0,
    max_concurrency: int = 2**63 - 1,
    tiers: Any = None,
    user_us: float = 0.0,
) -> Run:
    """Serve requests, which are in order of arrival, until all ended; ``gpu_time`` says what a step costs.

    ``hash_tokens``: prompt tokens that one of the requests' hashes stands for; 0 where there are none. ``tiers``: KV
    tiers behind the prefix cache. A request that loads from them beside the steps of others runs from then on, without
    tokens until its load has ended; else the first step with it waits for the load.
    Raises RuntimeError after MOST_STEPS steps.
    """
    client = Client(requests, max_concurrency, user_us)
    scheduler = Scheduler(limits, hash_tokens, tiers)

    def accept(request: Request) -> bool:
        return scheduler.accept(request, host, client.others())

    clock = horizon = requests[0].arrival_us
    if limits.batch_wait_us:
        horizon = -math.inf
    run = Run(list(requests), [], 0.0)
    client.send(clock, accept)
    while scheduler.running or scheduler.queue or client.unsent:
        if all(r.loaded_us for r in scheduler.running) and scheduler.head(horizon) is None:
            load_us = scheduler.first_load_us()
            if not scheduler.running:
                scheduler.reserve.rest()
            while not scheduler.queue and client.unsent and client.next_send_us() <= load_us:
                client.send(client.next_send_us(), accept)
            if not scheduler.queue and not scheduler.running:
                break
            wake = min(load_us, scheduler.next_visible_us() if scheduler.queue else math.inf)
            wake = max(clock, wake) + limits.batch_wait_us
            run.idle_us += wake - clock
            clock = horizon = wake
            client.send(clock, accept)
        granted = scheduler.schedule(clock, scheduler.polling.received_until(bool(scheduler.running), horizon))
        work = scheduler.work(granted)
        if not work.tokens and scheduler.first_load_us() < math.inf:
            wake = max(scheduler.first_load_us(), clock)
            run.idle_us += wake - clock
            clock = horizon = wake
            client.send(clock, accept)
            continue
        gpu_us = gpu_time(work)
        end = clock + step_time(work, gpu_us, host)
        waited_us = max(scheduler.memory.end_writes(clock) - end, 0.0) if work.prompt_tokens else 0.0
        waited_us += scheduler.adapters.waited_us()
        end += waited_us
        units = scheduler.memory.used
        run.steps.append(Step(clock, end, work, len(scheduler.running), len(scheduler.queue), units, gpu_us))
        run.steps[-1].waited_us = waited_us
        for _ in scheduler.advance(granted, end):
            client.free_slot(end)
        client.send(end, accept)
        horizon = clock + limits.batch_wait_us if limits.asynchronous else end
        clock = end
        if len(run.steps) > MOST_STEPS:
            raise RuntimeError(f"the reference scheduler took {MOST_STEPS} steps and {len(client.unsent)} are unsent")
    return run
