"""Ranks that step together in plain Python: data-parallel attention over shared experts.

Written from the semantics alone. Where these leave a choice open:

- A step begins when all ranks have ended the last one, and one of them has something to do: it runs requests, or sees
  one. The others run beside it, with what they have; a rank that runs nothing takes what it sees by now.
- Each rank is an engine of one batch at a time, with its own host. Experts take the same time on every rank that has a
  batch, by the tokens of all: by the size of the CUDA graph that holds the largest batch, where one does, by the mean
  (rounded up) otherwise. The step ends for all when the last rank is done; who was done before that is idle.
- Balance: a step without prompts, where every rank decodes and not every rank has a prompt to compute and room for it
  (a prompt under way, or one in the queue that could be admitted beside the decodes). After as many such steps as the
  time-out says, the ranks compute what they have. Where all have prompts they first wait for the batching wait.
- Interval: steps are counted from 0 on since no rank ran a request. In one that the interval does not divide, a rank
  that decodes takes no prompts, unless its last step that took prompts, and preempted nobody, left requests it saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.serving.engine.reference_engine import PipelineEngine
from tests.serving.engine.reference_pipeline import Pipeline
from tests.serving.engine.reference_scheduler import Step, Work


class RankEngine(PipelineEngine):
    """One rank."""

    group: Ranks

    def begin(self, now: float) -> None:
        """Begin a step of all ranks."""
        self.group.begin(now)

    def sees_nothing(self, now: float) -> bool:
        """Whether the rank has nothing to do in a step that begins now."""
        if self.scheduler.running or self.scheduler.head(self.horizon):
            return False
        visible = [r.visible_us for r in self.scheduler.queue]
        return not visible or min(visible) + self.limits.batch_wait_us > now

    def form(self, now: float) -> Work:
        """Schedule the rank's part of a step."""
        scheduler = self.scheduler
        self.granted_now: dict[int, int] = {}
        if self.sees_nothing(now):
            self.horizon = now + self.limits.batch_wait_us
            return Work([], [], 0)
        if not scheduler.running and scheduler.head(self.horizon) is None:
            scheduler.reserve.rest()
            self.horizon = now
        received = scheduler.polling.received_until(bool(scheduler.running), self.horizon)
        self.granted_now = scheduler.schedule(now, received)
        self.clock, self.horizon = now, now + self.limits.batch_wait_us
        return scheduler.work(self.granted_now)

    def has_prompt(self, now: float) -> bool:
        """Whether the rank has a prompt to compute, and room for it."""
        scheduler = self.scheduler
        scheduler.now_us = now
        horizon = self.horizon if scheduler.running else now
        decoding = sum(r.decoding for r in scheduler.running)
        waits = any(r.is_prompt for r in scheduler.running) or bool(scheduler.waiting(horizon))
        return waits and decoding < self.limits.max_num_seqs


class Ranks:
    """The ranks of one replica; ``surface``: its step costs, of which experts and the sizes of graphs are read."""

    def __init__(self, engines: list[RankEngine], surface: Any, host: Any) -> None:
        self.engines, self.surface, self.host = engines, surface, host
        self.experts: list[tuple[str, int]] = []
        self.unbalanced = self.balanced = self.steps = 0
        for engine in engines:
            engine.group = self

    def begin(self, now: float) -> None:
        """Begin a step of all ranks."""
        held = self.engines[0].limits.balance and self.holds(now)
        works = []
        self.steps = self.steps + 1 if any(engine.scheduler.running for engine in self.engines) else 0
        off_turn = self.steps % self.engines[0].limits.prefill_schedule_interval > 0
        for engine in self.engines:
            scheduler = engine.scheduler
            waits = off_turn and not scheduler.prompts_left and any(r.decoding for r in scheduler.running)
            scheduler.wait.held = held or waits
            works.append(engine.form(now))
        most = self.host.prompt_graph_max_tokens if any(work.chunks for work in works) else self.host.graph_max_tokens
        largest = max(work.tokens for work in works)
        mean = -(-sum(work.tokens for work in works) // len(works))
        shared = largest if self.host.ranks_padded else mean
        if largest <= most:
            shared = int(self.surface.padded_tokens[largest])
        passages = []
        for engine, work in zip(self.engines, works, strict=True):
            if work.tokens:
                pipeline = engine.pipeline
                alone = pipeline.gpu_time
                pipeline.gpu_time = lambda work, alone=alone: alone(work) + self.surface.experts_us[shared]
                passage = pipeline.send(work, now, len(engine.scheduler.running))
                passages.append((engine, work, passage, passage.end_us + engine.scheduler.adapters.waited_us()))
                pipeline.gpu_time = alone
                self.experts.append((work.phase, shared))
        end = max((end_us for *_, end_us in passages), default=now)
        for engine in self.engines:
            engine.clock = end
            if not engine.limits.asynchronous:
                engine.horizon = end
        for engine, work, passage, _ in passages:
            pipeline, scheduler = engine.pipeline, engine.scheduler
            pipeline.idle_us += end - passage.end_us
            pipeline.left_us[0] = end
            counts = (len(scheduler.running), engine.in_flight - len(scheduler.running), scheduler.memory.used)
            times = (passage.gpu_us, passage.host_us)
            engine.run.steps.append(Step(passage.start_us, end, work, *counts, *times))
            engine.batches.append((end, scheduler.launch(engine.granted_now, end)))
            engine.waits = True

    def holds(self, now: float) -> bool:
        """Whether prompts wait in a step that begins now; counts the steps."""
        limits = self.engines[0].limits
        decodes = all(any(r.decoding for r in engine.scheduler.running) for engine in self.engines)
        prompts = [engine.has_prompt(now) for engine in self.engines]
        if all(prompts):
            self.unbalanced = 0
            if not decodes:
                return False
            self.balanced += 1
            if self.balanced <= limits.attention_dp_batching_wait_iters:
                return True
            self.balanced = 0
            return False
        self.unbalanced += 1
        if decodes and self.unbalanced < limits.attention_dp_timeout_iters:
            return True
        self.unbalanced = 0
        return False


def ranks_of(
    limits: Any, pipelines: Sequence[Pipeline], surface: Any, hash_tokens: int, start: float, ranks: int
) -> tuple[list[RankEngine], list[Ranks]]:
    """Return engines, ``ranks`` of which step together, one group after the other; and the groups."""
    engines = [RankEngine(limits, pipeline, hash_tokens, start) for pipeline in pipelines]
    cuts = range(0, len(engines), ranks)
    return engines, [Ranks(engines[i : i + ranks], surface, pipelines[0].host) for i in cuts]
