"""One engine of the reference: its scheduler with a clock, and the step or the batches that it is in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from kernelsight.serving.engine import inputs
from tests.serving.engine.reference_pipeline import Pipeline
from tests.serving.engine.reference_scheduler import Request, Run, Scheduler, Step, Work, step_time


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
        gpu_us, loads_us = self.gpu_time(work), self.scheduler.adapters.waited_us()
        self.run.idle_us += loads_us
        if not work.prompt_tokens:  # decodes begin once their adapters are loaded
            now, loads_us = now + loads_us, 0.0
        self.clock = now + step_time(work, gpu_us, self.host) + loads_us
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
            passage = self.pipeline.send(work, now, len(scheduler.running)).later(scheduler.adapters.waited_us())
            self.pipeline.hold(passage.end_us)
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


def take_over(request: Request, engine: Engine, now: float) -> None:
    """Queue a request on a decode engine: the KV of its prompt has come."""
    request.prefill_only = request.decoding = False
    request.cached_tokens, request.received_tokens = 0, request.prompt_tokens
    request.received_us = request.visible_us = now
    engine.scheduler.queue.append(request)
    engine.in_flight += 1
