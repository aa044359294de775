"""Engine limits that a log itself shows: max_num_seqs (seats), max_num_batched_tokens, a disabled prefix cache."""

from __future__ import annotations

import numpy as np

from kernelsight.comparison.compared_log import ComparedLog
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.occupancy import seats_seen
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.signature import signature
from kernelsight.comparison.step_budget import all_gaps, budget_seen
from kernelsight.scenario.scenario_rows import normalise, prefill_flags

# smallest share of prompt tokens that a replay has to find cached before a log without hits means a disabled cache
LEAST_CACHED = 0.03


def seats_limit(log: ComparedLog, base: Replayed) -> int | None:
    """Return the max_num_seqs of each engine that a log shows, if it is smaller than stated; else None."""
    engines = log.settings["dp"] * log.settings["replicas"]
    expected = np.where(log.measured.ok, base.ttft_ms, np.nan)
    seats = seats_seen(log.measured, expected) if log.enough else None
    return max(round(seats / engines), 1) if seats and seats < log.settings["max_num_seqs"] * engines else None


def is_limited(log: ComparedLog, base: Replayed) -> bool:
    """Whether a log shows max_num_seqs or max_num_batched_tokens smaller than stated."""
    return seats_limit(log, base) is not None or budget_limit(log, base) is not None


def budget_limit(log: ComparedLog, base: Replayed) -> int | None:
    """Return the max_num_batched_tokens that gaps between tokens show, if it is smaller than stated; else None."""
    if not log.enough or prefill_flags(normalise(log.question.flags)) is not None:
        return None  # decode engines of a disaggregated deployment compute no prompts
    request_ms, prompt_token_us, _ = signature(log.measured, base, log.measured.ok).predicted
    gaps, line = all_gaps(log.requests["chunk_gaps_ms"]), (request_ms, prompt_token_us / 1e3)
    return budget_seen(gaps, log.measured.prompt_tokens, log.settings["max_num_batched_tokens"], line)


def caches_nothing(measured: Measured, base: Replayed) -> bool:
    """Whether a log reports zero cached tokens everywhere though its replay finds many."""
    comparable = measured.ok & base.served & np.isfinite(measured.cached_tokens)
    if not comparable.any() or measured.cached_tokens[comparable].any():
        return False
    return bool(base.cached_tokens[comparable].sum() >= LEAST_CACHED * measured.prompt_tokens[comparable].sum())
