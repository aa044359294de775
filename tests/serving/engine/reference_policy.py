"""Policies of single engines for the reference scheduler, in plain Python, written from their semantics.

- Polling (SGLang): the engine looks for new requests when the steps since it last looked weigh
  ``scheduler_recv_interval``: one for a decode step, 1000 for a step with prompts. While nothing runs it always looks.
- Static batches: a batch takes, in order, what is visible when the last batch has ended, up to ``max_num_seqs``, over
  as many steps as the token budget needs. It is formed when nobody is left, the next one does not fit, or it is full.
- Batch wait (TensorRT-LLM): where requests decode and prompts could be computed (under way, or in the queue, whose
  head could be admitted beside the decodes), all prompts are held back until decodes and prompts have
  ``batch_wait_tokens`` tokens, or for ``batch_wait_timeout_iters`` steps. All that is visible in the queue counts, up
  to the cap of running requests, whatever a prefix cache has of it. Where the last decode gives way for want of memory
  the step takes the prompts.
- Capacity policies. ``max_utilization``: a request needs the KV units of its first chunk. ``guaranteed_no_evict``
  (TensorRT-LLM): it needs those of prompt and answer, out of what running requests will not take. ``new_token_ratio``
  (SGLang): answers count for at most 4096 tokens, those of running requests for a share of what is left; while nothing
  runs any request that fits is taken; after a refusal nobody is admitted until the batch is smaller. The share begins
  at 0.7 x ``schedule_conservativeness`` and falls to 0.14 of that over 600 decode steps; a preemption sets it so that
  every request that still runs could go on for 20 tokens (the decode step that preempted does not count).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelsight.serving.engine import records


class Polling:
    """When an engine looks for new requests."""

    def __init__(self, limits: Any) -> None:
        self.interval = limits.scheduler_recv_interval
        self.weight = 0
        self.received_us = -math.inf

    def note_step(self, prompts: bool) -> None:
        """A step ended."""
        self.weight += 1000 if prompts else 1

    def received_until(self, busy: bool, horizon: float) -> float:
        """Until when requests were received."""
        if self.interval <= 1 or not busy or self.weight >= self.interval:
            self.weight = 0
            self.received_us = horizon
        return self.received_us


class Door:
    """Whether anybody is admitted: static batches, and batches that were found full."""

    def __init__(self, limits: Any) -> None:
        self.limits = limits
        self.forming = False
        self.formed_us = -math.inf
        self.joined = 0
        self.refused_beside: int | None = None  # running requests

    def begin_step(self, running: Sequence[Any], horizon: float) -> None:
        """A step is to be scheduled."""
        if not running:
            self.forming, self.formed_us, self.joined = True, horizon, 0
        if self.refused_beside is not None and len(running) < self.refused_beside:
            self.refused_beside = None

    def is_shut(self, running: Sequence[Any]) -> bool:
        """Nobody is admitted, whoever waits."""
        full = self.refused_beside is not None and len(running) >= self.refused_beside
        return full or (self.limits.static and not self.forming)

    def is_at_cap(self, running: Sequence[Any]) -> bool:
        """No further request by number."""
        taken = max(len(running), self.joined) if self.limits.static else len(running)
        return taken >= self.limits.max_num_seqs

    def seen_until(self, horizon: float) -> float:
        """Requests that became visible by then may be admitted."""
        return min(self.formed_us, horizon) if self.limits.static else horizon

    def close(self) -> None:
        """A static batch takes nobody any more."""
        self.forming = False

    def note_no_room(self, running: Sequence[Any]) -> None:
        """The next request did not fit."""
        self.close()
        if self.limits.capacity_policy == records.NEW_TOKEN_RATIO:
            self.refused_beside = len(running)


class BatchWait:
    """Whether prompts are held back in a step."""

    def __init__(self, limits: Any) -> None:
        self.limits = limits
        self.waited = 0
        self.held = False  # by the ranks that step together

    def holds(self, running: Sequence[Any], waiting: Sequence[Any]) -> bool:
        """Whether the prompts wait, those under way and those of ``waiting``; counts the steps."""
        if self.held:
            return True
        decodes = [r for r in running if r.decoding]
        prompts = [r.missing_tokens for r in [*running, *waiting] if r.is_prompt]
        if not self.limits.batch_wait_timeout_iters or not decodes or not prompts:
            return False
        enough = len(decodes) * (1 + self.limits.drafts) + sum(prompts) >= self.limits.batch_wait_tokens
        if enough or self.waited >= self.limits.batch_wait_timeout_iters:
            self.waited = 0
            return False
        self.waited += 1
        return True


class Reserve:
    """What is reserved for running requests, and what an admission needs."""

    def __init__(self, limits: Any, memory: Any) -> None:
        self.limits = limits
        self.memory = memory
        self.decode_steps = 0
        self.first = min(0.7 * limits.schedule_conservativeness, 1.0)
        self.rest()

    def rest(self) -> None:
        """Nothing runs, nothing waits."""
        self.set_at, self.since = self.first, self.decode_steps

    def note_preemption(self, running: Sequence[Any]) -> None:
        """A request was preempted; ``running``: those that still run."""
        generated = sum(len(r.token_times_us) for r in running)
        asked = sum(r.asked_tokens for r in running)
        self.set_at = min((generated + 20 * len(running)) / (asked + 1.0), 1.0)
        self.since = self.decode_steps + 1

    @property
    def ratio(self) -> float:
        """The share of the rest of their answers that running requests are expected to give."""
        steps = self.decode_steps - self.since
        least = self.first * 0.14
        return max(self.set_at - steps * ((self.first - least) / 600), least) if steps > 0 else self.set_at

    def end_of(self, request: Any, ratio: float) -> int:
        """Tokens in the cache up to which a request's units are reserved; the last token never enters the cache."""
        last = request.prompt_tokens + request.asked_tokens - 1
        if self.limits.capacity_policy == records.GUARANTEED_NO_EVICT:
            return min(last + self.limits.drafts, self.limits.max_model_len - 1)
        left = min(request.asked_tokens - len(request.token_times_us), 4096)
        tokens = min(request.known_tokens + int(ratio * left), last)
        return min(tokens + self.limits.drafts, self.limits.max_model_len - 1)

    def room(self, running: Sequence[Any]) -> int:
        """Units that are neither in use nor reserved."""
        units = self.limits.capacity_units - self.memory.used
        if self.limits.capacity_policy != records.MAX_UTILIZATION:
            for request in running:
                tokens = self.memory.tokens[id(request)]
                end = max(self.end_of(request, self.ratio), tokens)
                units -= self.memory.units_of(end) - self.memory.units_of(tokens)
        return units

    def needed(self, request: Any, tokens: int) -> int:
        """Units that are reserved for a request that is admitted with ``tokens`` in its first step."""
        hit = self.memory.hit_tokens(request)
        end = hit + request.received_tokens + tokens
        if self.limits.capacity_policy != records.MAX_UTILIZATION:
            end = max(self.end_of(request, 1.0), end)
        if self.limits.whole_prompts:
            end = max(request.known_tokens, end)
        return self.memory.units_of(end) - self.memory.hit_units(request) + self.memory.unkept_hits(request)

    def is_left(self, request: Any, tokens: int, room: int, running: Sequence[Any]) -> bool:
        """Whether the room is enough; an engine that estimates takes one request in any case."""
        estimates = self.limits.capacity_policy == records.NEW_TOKEN_RATIO
        return (estimates and not running) or self.needed(request, tokens) <= room
