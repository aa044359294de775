"""Statistics of the requests of one engine, added up block by block, where no table has a row for each request."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.inputs import Load
from kernelsight.serving.engine.records import FINISHED
from kernelsight.serving.engine.served import Outcome
from kernelsight.serving.engine.statistics import COUNTS, SAMPLES, TIMES, count_requests


class Tally:
    """Statistics of a load's requests so far (see ``statistics``).

    ``counts``: shape [COUNTS]; ``sums``: [TIMES, 2]; ``samples``: [SAMPLES, requests]; ``counts`` state how many are
    filled. ``warmup``: shape [requests]; ``most_ms``: objectives on TTFT, E2E latency and TPOT; ``front_end_us``: time
    per request, and per prompt token. ``in_windows``: also keep when requests were sent and left, for windows of time.
    """

    def __init__(
        self,
        load: Load,
        warmup: np.ndarray,
        most_ms: np.ndarray,
        front_end_us: tuple[float, float],
        in_windows: bool,
    ) -> None:
        requests, self._warmup = load.arrival_us.size, warmup
        self.counts, self.sums = np.zeros(COUNTS, np.int64), np.zeros((TIMES, 2), np.int64)
        self.samples = np.empty((len(SAMPLES), requests))
        self._load, self._most_ms, self._front_end_us = load, most_ms, front_end_us
        self._stays_us, self._accepted = np.empty((2, requests if in_windows else 0)), 0

    def add(self, rows: slice, out: Outcome) -> None:
        """Add up the next requests, which have ended."""
        inputs = self._load.prompt_tokens[rows], self._load.output_tokens[rows], self._warmup[rows]
        count_requests(*out, *inputs, self._most_ms, *self._front_end_us, self.counts, self.sums, self.samples)
        if self._stays_us.size:
            accepted = out.status == FINISHED
            accepted_after = self._accepted + int(np.count_nonzero(accepted))
            for times_us, moments_us in zip(self._stays_us, (out.sent_us, out.finish_us), strict=True):
                times_us[self._accepted : accepted_after] = moments_us[accepted]
            self._accepted = accepted_after

    def stays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return when accepted requests were sent and when they left, us."""
        sent_us, left_us = self._stays_us[:, : self._accepted]
        return sent_us, left_us
