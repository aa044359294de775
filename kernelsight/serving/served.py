"""What a simulation gives back, from Python: what became of requests, which knots were paid, counts and times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Outcome(NamedTuple):
    """What became of each request; times in microseconds, -1 where it never happened."""

    status: np.ndarray
    replica: np.ndarray
    prefill_replica: np.ndarray
    received_us: np.ndarray
    sent_us: np.ndarray
    scheduled_us: np.ndarray
    first_token_us: np.ndarray
    finish_us: np.ndarray
    preemptions: np.ndarray
    cached_tokens: np.ndarray
    requeued_us: np.ndarray
    recomputed_us: np.ndarray


class Uses(NamedTuple):
    """How often each knot was paid, by phase: counts over the dense tables (padded), weights over the grids."""

    tokens: np.ndarray
    sampled: np.ndarray
    decode: np.ndarray
    window: np.ndarray
    prefill: np.ndarray


class Totals(NamedTuple):
    """Counts and times of one replica, microseconds."""

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


class Windows(NamedTuple):
    """Sums over windows of time, from the first arrival on; K windows, the last one ends with the last step.

    ``sums``: (K, see ``windows``), times in microseconds; ``peak_units`` and ``peak_running``: (K,), the largest.
    """

    edges_us: np.ndarray  # (K + 1,)
    sums: np.ndarray
    peak_units: np.ndarray
    peak_running: np.ndarray
    in_flight_us: np.ndarray  # (K,) requests that were sent and did not end, times how long


class Served(NamedTuple):
    """All that a simulation of one replica gives back; ``steps`` has no row unless it was asked for."""

    out: Outcome
    uses: Uses
    histogram: np.ndarray
    totals: Totals
    steps: np.ndarray
    windows: Windows | None = None
    draft_uses: Uses | None = None


class ServedScenario(NamedTuple):
    """All that a simulation of one scenario gives back: uses by pool of engines, totals and steps by engine.

    ``draft_uses``: of the models that propose tokens, by pool; None where a pool has none.
    """

    out: Outcome
    uses: list[Uses] | None
    histogram: np.ndarray
    totals: list[Totals]
    steps: list[np.ndarray]
    windows: list[Windows] | None = None
    draft_uses: list[Uses | None] | None = None
