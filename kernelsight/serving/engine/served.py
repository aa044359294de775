"""Results of the loop: outcome of requests, uses of knots of step costs, totals and windows of engines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# rows of an outcome: fields of the REQUEST record, whole numbers and times in us
WHOLE = ("status", "replica", "preemptions", "cached_tokens", "prefill_replica", "tier_tokens")
REAL = (
    "sent_us",
    "scheduled_us",
    "first_token_us",
    "finish_us",
    "requeued_us",
    "recomputed_us",
    "received_us",
    "load_us",
)


class Outcome(NamedTuple):
    """Outcome of each request, by the fields of its record; times in microseconds, -1 for what never happened.

    ``whole``: shape [WHOLE, requests]; ``real``: shape [REAL, requests].
    """

    whole: np.ndarray
    real: np.ndarray

    def __getattr__(self, name: str) -> np.ndarray:
        """Return the column of a field."""
        if name in WHOLE:
            return self.whole[WHOLE.index(name)]
        if name in REAL:
            return self.real[REAL.index(name)]
        raise AttributeError(f"an outcome has no {name}; its fields are {', '.join((*WHOLE, *REAL))}")

    def of(self, rows: np.ndarray | slice) -> Outcome:
        """Return the outcome of some requests."""
        return Outcome(self.whole[:, rows], self.real[:, rows])


def empty_outcome(requests: int) -> Outcome:
    """Return an uninitialised outcome for a number of requests."""
    return Outcome(np.empty((len(WHOLE), requests), np.int64), np.empty((len(REAL), requests)))


class Uses(NamedTuple):
    """Uses of step costs, shape [3 phases, ...]: counts over dense tables (padded tokens), weights over knots.

    ``tokens``: shape [3, tokens, levels], without adapters and at each level of them.
    """

    tokens: np.ndarray
    sampled: np.ndarray
    decode: np.ndarray
    window: np.ndarray
    prefill: np.ndarray
    mixed: np.ndarray
    experts: np.ndarray


class Totals(NamedTuple):
    """Counts and times of one engine, us; ``energy_j``: of its kernels on one GPU of each stage, joules.

    ``measured_us``: of its GPU time, kernels that a sweep of the GPU measured.
    """

    steps: int
    gpu_us: float
    host_us: float
    idle_us: float
    first_us: float
    last_us: float
    preemptions: int
    peak_units: int
    gap_sum_us: float
    prompt_tokens: int
    draft_tokens: int
    accepted_tokens: int
    energy_j: float
    measured_us: float


class Windows(NamedTuple):
    """Sums over windows of time, from the first arrival to the end of the last step."""

    edges_us: np.ndarray  # [windows + 1]
    sums: np.ndarray  # [windows, SUMS], times in us; columns: see ``windows``
    peak_units: np.ndarray  # [windows] most KV units in use
    peak_running: np.ndarray  # [windows] most running requests
    in_flight_us: np.ndarray  # [windows] integral of the requests in flight over time


class RequestParts(NamedTuple):
    """Parts of the time of each request, ns, and the steps that it was in; see ``waits``.

    ``nanoseconds``: shape [phases, parts, requests]: of its TTFT, and from its first to its last token; the parts of a
    phase add up to its length. ``steps``: shape [phases, 2, requests]: all steps, and those with prompts.
    """

    nanoseconds: np.ndarray
    steps: np.ndarray


class TierBlocks(NamedTuple):
    """KV blocks of each KV tier of one engine, shape [tiers]: hits at first admissions, read, written and evicted."""

    hit: np.ndarray
    read: np.ndarray
    written: np.ndarray
    evicted: np.ndarray


class Served(NamedTuple):
    """Results of one engine; ``steps`` is empty unless kept; ``out`` is None where a tally added up its requests."""

    out: Outcome | None
    uses: Uses
    histogram: np.ndarray
    totals: Totals
    steps: np.ndarray
    windows: Windows | None = None
    draft_uses: Uses | None = None
    parts: RequestParts | None = None
    tiers: TierBlocks | None = None


class ServedScenario(NamedTuple):
    """Results of one scenario: uses by pool of engines, totals and steps by engine.

    ``draft_uses``: of the draft model, by pool; None for a pool without one.
    """

    out: Outcome
    uses: list[Uses] | None
    histogram: np.ndarray
    totals: list[Totals]
    steps: list[np.ndarray]
    windows: list[Windows] | None = None
    draft_uses: list[Uses | None] | None = None
    parts: RequestParts | None = None
    tiers: list[TierBlocks | None] | None = None
