"""State of the loop: all arrays of a scenario, and the views of them that the rules of one engine read and write.

Rules take whole tuples: compiled code passes only the fields that are used, and builds no tuple in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.serving.compilation.compiled import written_out


class Scenario(NamedTuple):
    """The arrays of one scenario; record types are those of ``records``, times in us."""

    # the client, and what it sends
    clients: np.ndarray  # [1] CLIENT
    requests: np.ndarray  # [requests] REQUEST
    edges: np.ndarray  # [pairs] EDGE: which requests wait for which
    turns: np.ndarray  # [capacity, 2] a heap of (time, request): later turns, and KV transfers that end
    sent: np.ndarray  # [engines, hash blocks] the prefix-aware router's memory
    # prompts as hash blocks, and what is cached of them
    hashes: np.ndarray  # [...] hash blocks of all prompts, as numbers
    entries: np.ndarray  # [...] ENTRY, see ``tier_records.entry_records``
    # an item for each engine; those that the client sends to come first, ranks of a replica one after the other
    engines: np.ndarray  # [engines] ENGINE
    limits: np.ndarray  # [engines] LIMITS
    host: np.ndarray  # [engines, 2] HOST of steps without kernels of adapters, and with them
    heaps: np.ndarray  # [engines, groups, 2 or 3, capacity, 2] see ``heaps``
    groups: np.ndarray  # [engines, groups] GROUP
    stages: np.ndarray  # [engines, largest number of stages] STAGE
    layout: np.ndarray  # [engines, levels] LAYOUT of the model's step costs, by adapters of a step (see ``adapters``)
    draft_layout: np.ndarray  # [engines] LAYOUT of the draft model's
    rows: np.ndarray  # [engines, capacity, COLUMNS] step rows; no capacity: none are kept
    # of all engines
    costs: np.ndarray  # [...] step costs, laid out by ``layout``
    uses: np.ndarray  # [3 phases, ...] how often each was used, added to
    histogram: np.ndarray  # [ITL_BINS] inter-token gaps, added to
    sums: (
        np.ndarray
    )  # [requests, 2 phases, WIDTH] what each request's steps cost by part, see ``waits``; or no requests


class Core(NamedTuple):
    """One engine with what it schedules: requests, the prefix cache, its groups and the batches in flight."""

    engine: np.void
    limits: np.void
    host: np.void
    requests: np.ndarray  # [requests] of all engines
    hashes: np.ndarray
    entries: np.ndarray
    heaps: np.ndarray  # [groups, 2 or 3, capacity, 2]
    groups: np.ndarray  # [groups]
    stages: np.ndarray  # [stages or more]


class StepCosts(NamedTuple):
    """Step costs of one model, us (then joules), and how often each was used."""

    values: np.ndarray  # [...]
    layout: np.void
    uses: np.ndarray  # [3 phases, ...]


class Metrics(NamedTuple):
    """Counters of an engine's steps besides its totals."""

    histogram: np.ndarray  # [ITL_BINS]
    rows: np.ndarray  # [capacity, COLUMNS]
    sums: np.ndarray  # [requests, 2 phases, WIDTH]


class Line(NamedTuple):
    """Times of steps that grow linearly: time of the first step, and growth by step, us."""

    first_us: float
    slope_us: float


class Contexts(NamedTuple):
    """Mean contexts of a decode batch, tokens, and the knots of step costs below them."""

    full: float
    windowed: float  # inside the attention window
    full_knot: int
    window_knot: int
    window_slope: float  # growth of ``windowed`` by step; ``full`` grows by 1


class Step(NamedTuple):
    """One executed step: its tokens, and its times in microseconds."""

    prompt_tokens: int
    decode_tokens: int
    start_us: float
    end_us: float
    gpu_us: float
    host_us: float  # exposed
    wait_us: float  # for loads from tiers, other ranks, or stages


@written_out
def core_of(scenario: Scenario, i: int) -> Core:
    """Return the state that the scheduler of engine ``i`` works on, with the host's times of the last step formed."""
    return Core(
        scenario.engines[i], scenario.limits[i], scenario.host[i, min(scenario.engines[i].level, 1)],
        scenario.requests, scenario.hashes,
        scenario.entries, scenario.heaps[i], scenario.groups[i], scenario.stages[i],
    )  # fmt: skip


@written_out
def costs_of(scenario: Scenario, i: int) -> StepCosts:
    """Return the step costs of the model of engine ``i``, for the adapters of the last step formed."""
    return StepCosts(scenario.costs, scenario.layout[i, scenario.engines[i].level], scenario.uses)


@written_out
def draft_costs_of(scenario: Scenario, i: int) -> StepCosts:
    """Return the step costs of the draft model of engine ``i``; valid where its limits have ``draft_model``."""
    return StepCosts(scenario.costs, scenario.draft_layout[i], scenario.uses)


@written_out
def metrics_of(scenario: Scenario, i: int) -> Metrics:
    """Return the counters of engine ``i``."""
    return Metrics(scenario.histogram, scenario.rows[i], scenario.sums)
