"""Request records in blocks: filled before they are sent, their memory released when all of a block have ended.

A record is 300 bytes, of which a dozen numbers are read in the end: allocating a million of them would take longer than
simulating them. Requests that wait for others, or move between engines, are all filled at the start.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from kernelsight.serving.compilation.compiled import entry
from kernelsight.serving.engine.inputs import Load
from kernelsight.serving.engine.records import FINISHED, MOST_TOKENS, NOBODY, REQUEST
from kernelsight.serving.engine.served import Outcome, empty_outcome
from kernelsight.serving.engine.tally import Tally


@entry
def fill_requests(
    requests: np.ndarray, arrival_us: np.ndarray, prompt_tokens: np.ndarray, output_tokens: np.ndarray
) -> None:
    """Fill zeroed REQUEST records: inputs, and the fields of an unsent request that are not zero."""
    for i in range(requests.size):
        request = requests[i]
        request.arrival_us = arrival_us[i]
        request.prompt = request.known = min(prompt_tokens[i], MOST_TOKENS)
        request.target = request.prompt + min(output_tokens[i], MOST_TOKENS)
        request.status = FINISHED
        request.sent_us = request.scheduled_us = request.first_token_us = request.finish_us = -1.0
        request.resumed_us = request.received_us = -1.0
        request.leaves_at = request.fills_at = request.first_of = request.prefill_replica = NOBODY
        request.adapter = NOBODY


@entry
def read_requests(requests: np.ndarray, whole: np.ndarray, real: np.ndarray) -> None:
    """Copy the fields of ``WHOLE`` and ``REAL``, in their order, to the rows of two arrays."""
    for i in range(requests.size):
        request = requests[i]
        whole[0, i], whole[1, i] = request.status, request.replica
        whole[2, i], whole[3, i] = request.preemptions, request.cached_tokens
        whole[4, i], real[6, i] = request.prefill_replica, request.received_us
        whole[5, i], real[7, i] = request.tier_tokens, request.load_us
        real[0, i], real[1, i] = request.sent_us, request.scheduled_us
        real[2, i], real[3, i] = request.first_token_us, request.finish_us
        real[4, i], real[5, i] = request.requeued_us, request.recomputed_us


def outcome_of(requests: np.ndarray) -> Outcome:
    """Return the outcome of each request, as columns."""
    out = empty_outcome(requests.size)
    read_requests(requests, *out)
    return out


BLOCK = 32_768  # requests
# fewest blocks at which the first may be released while the last is simulated
LEAST_BLOCKS = 3
# huge pages take a tenth of the time to allocate
LARGE_PAGE = 2 * 2**20


class RequestBlocks:
    """The records of a load's requests, shape [requests], and the outcome of those that have ended.

    With a ``tally`` requests that have ended are added up, and no outcome of single requests is kept.
    """

    def __init__(self, load: Load, at_once: bool, tally: Tally | None = None) -> None:
        self._load, self._count = load, load.arrival_us.size
        self._memory: mmap.mmap | None = None
        if not at_once and self._count >= LEAST_BLOCKS * BLOCK and hasattr(mmap, "MADV_DONTNEED"):
            self._memory = mmap.mmap(-1, self._count * REQUEST.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    self._memory.madvise(mmap.MADV_HUGEPAGE)
            self.records = np.frombuffer(self._memory, REQUEST)
        else:
            self.records = np.zeros(self._count, REQUEST)
        self.filled = self._ended = 0
        self._out: Outcome | None = None
        self._tally, self._block = tally, empty_outcome(BLOCK if tally else 0)
        self._fill(self._count if self._memory is None else BLOCK)

    def _fill(self, stop: int) -> None:
        rows, load = slice(self.filled, min(stop, self._count)), self._load
        fill_requests(self.records[rows], load.arrival_us[rows], load.prompt_tokens[rows], load.output_tokens[rows])
        if load.priority.size:
            self.records["priority"][rows] = load.priority[rows]
        if load.adapter.size:
            self.records["adapter"][rows] = load.adapter[rows]
        self.filled = rows.stop

    def turn_over(self, client: np.void) -> bool:
        """Fill the next block where all filled records are sent, and release blocks of requests that have ended.

        Returns False where nothing is to be filled now.
        """
        if client["next"] < self.filled or self.filled == self._count:
            return False
        while self._ended + BLOCK < self.filled and self._have_ended(slice(self._ended, self._ended + BLOCK)):
            self._read(self._ended + BLOCK)
        self._fill(self.filled + BLOCK)
        client["filled"] = self.filled
        return True

    def _have_ended(self, rows: slice) -> bool:
        records = self.records[rows]
        return bool(((records["finish_us"] >= 0.0) | (records["status"] != FINISHED)).all())

    def _read(self, stop: int) -> None:
        """Read the outcome of the next requests that have ended, and release their records."""
        rows = slice(self._ended, stop)
        if self._tally is None:
            self._out = self._out or empty_outcome(self._count)
            for values, ended in zip(self._out, outcome_of(self.records[rows]), strict=True):
                values[:, rows] = ended
        else:
            self._count_in_blocks(rows, self._tally)
        if self._memory is not None:
            first, last = (REQUEST.itemsize * row // LARGE_PAGE * LARGE_PAGE for row in (rows.start, rows.stop))
            if last > first:
                self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._ended = stop

    def _count_in_blocks(self, rows: slice, tally: Tally) -> None:
        """Add up requests that have ended, through a buffer that is reused."""
        for start in range(rows.start, rows.stop, BLOCK):
            part = slice(start, min(start + BLOCK, rows.stop))
            block = self._block if part.stop - start == BLOCK else empty_outcome(part.stop - start)
            read_requests(self.records[part], *block)
            tally.add(part, block)

    def outcome(self) -> Outcome | None:
        """Return the outcome of all requests, which have ended; None with a tally."""
        if self._out is None and self._tally is None:
            return outcome_of(self.records)
        self._read(self._count)
        return self._out
