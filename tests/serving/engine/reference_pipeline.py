"""Pipeline stages in plain Python: when each batch is in which stage, and what the stages do with their time.

Written from the semantics alone. Where these leave a choice open:

- As many batches are in flight as there are stages. When the oldest comes back, batches are formed, one after another,
  until that many are in flight or nobody has a token to compute; the next look is when the oldest comes back again, or,
  with nothing in flight, when a request is seen. Asynchronous: a batch sees what was visible when the one before it was
  formed.
- The host prepares one batch after another: exposed time but for the gaps between kernels, and its own work where
  that does not overlap; overlapped, this work runs beside the first stage.
- A batch enters a stage when it has left the one before it and its forerunner has left this one. In the first stage it
  begins when the host begins to prepare it, or when the stage is free, if that is later, but not before it is prepared
  where the stage was free before that: a stage that waits for the host works on the batch.
- A stage looks at each running request where it has a scheduler, takes its share of the gaps, and the longer of GPU and
  launches. Its share goes by layers; the first stage has the embedding beside them, the last one the logits, and all
  but the first wait for a transfer, of equal length.
- A stage without a batch is idle, from the first arrival until the last batch has left the last stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.serving.engine.reference_scheduler import Work, host_for, launches_of, requests_us


class Parts(NamedTuple):
    """What of a batch's GPU time is not the layers', microseconds."""

    embedding_us: float
    transfer_us: float
    logits_us: float
    drafts_us: float = 0.0  # part of the logits' time here


class Passage(NamedTuple):
    """One batch: from when it is worked on until it comes back, microseconds."""

    start_us: float
    end_us: float
    host_us: float
    gpu_us: float

    def later(self, us: float) -> Passage:
        """The same passage that ends later: adapters are loaded."""
        return self._replace(end_us=self.end_us + us)


class Pipeline:
    """The stages of one engine."""

    def __init__(
        self, layers: tuple[int, ...], host: Any, gpu_time: Callable[[Work], float], parts: Callable[[Work], Parts]
    ) -> None:
        self.shares = [count / sum(layers) for count in layers]
        self.host, self.gpu_time, self.parts = host, gpu_time, parts
        self.prepared_us = 0.0
        self.left_us: list[float] = []
        self.idle_us = 0.0

    def open(self, now: float) -> None:
        """The first request arrives."""
        self.left_us = [now] * len(self.shares)

    def hold(self, until: float) -> None:
        """The last stage is idle until its batch ends."""
        self.idle_us += until - self.left_us[-1]
        self.left_us[-1] = until

    def close(self, now: float) -> float:
        """Idle time of all stages, until ``now`` or the end of the last batch."""
        return self.idle_us + sum(max(now, *self.left_us) - left for left in self.left_us)

    def stage_gpu_us(self, work: Work) -> list[float]:
        """GPU time of a batch in each stage."""
        parts = self.parts(work)
        layers_us = self.gpu_time(work) - parts.embedding_us - parts.transfer_us - parts.logits_us
        times = [layers_us * share for share in self.shares]
        times[0] += parts.embedding_us
        for s in range(1, len(times)):
            times[s] += parts.transfer_us / (len(times) - 1)
        times[-1] += parts.logits_us
        return times

    def send(self, work: Work, now: float, running: int) -> Passage:
        """Send a batch that is formed now through the stages; ``running``: requests that run, in it or in another."""
        host = host_for(work, self.host)
        own_us = host.base_us + host.per_token_us * work.tokens
        own_us += host.per_request_us * (len(work.chunks) + len(work.contexts))
        launches_us = launches_of(work, host)
        begin = max(now, self.prepared_us)
        always_us = host.exposed_us - host.gap_us
        always_us += requests_us(work, host)
        self.prepared_us = begin + always_us + (0.0 if host.overlapped else own_us)
        ready = max(self.prepared_us, self.left_us[0])
        start = moment = min(ready, max(begin, self.left_us[0]))
        host_us = 0.0
        for s, (share, gpu_us) in enumerate(zip(self.shares, self.stage_gpu_us(work), strict=True)):
            moment = max(moment, self.left_us[s])
            self.idle_us += moment - self.left_us[s]
            beside_us = launches_us * share + (own_us if host.overlapped and s == 0 else 0.0)
            exposed_us = host.gap_us * share + max(beside_us - gpu_us, 0.0) + (ready - start if s == 0 else 0.0)
            exposed_us += host.per_active_us * running if len(self.shares) > 1 else 0.0
            drafts_us = self.parts(work).drafts_us
            if drafts_us and s == len(self.shares) - 1:  # the GPU waits for launches that take longer
                exposed_us += max(host.drafts_us - drafts_us, 0.0)
            host_us += exposed_us
            moment += exposed_us + gpu_us
            self.left_us[s] = moment
        return Passage(start, moment, host_us, self.gpu_time(work))
