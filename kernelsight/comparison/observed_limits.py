"""Engine limits that a log itself shows: max_num_seqs (seats), max_num_batched_tokens, a disabled prefix cache."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kernelsight.comparison.compared_log import ComparedLog
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.occupancy import seats_seen
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.signature_causes import signature
from kernelsight.scenario.scenario_rows import normalise, prefill_flags

# smallest share of prompt tokens that a replay has to find cached before a log without hits means a disabled cache
LEAST_CACHED = 0.03
# every usual budget, tokens a step
BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)
# shorter gaps, ms, are between tokens of one stream chunk, and not between steps
TOGETHER_MS = 0.05
# gaps longer than the median by this factor contain a prefill chunk; fewer such gaps do not determine chunk sizes
WITH_PROMPT, LEAST_GAPS = 1.2, 200
# the longest gaps share one length, that of a full chunk: the 99th percentile over the 90th is at most this
FLAT = 1.12
# an unchunked long prompt would take this many times as long as the longest chunk, and gaps half way to that are fewer
# than this share of the requests
LEAST_LONGER, MOST_WHOLE = 1.6, 0.01


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


def all_gaps(chunk_gaps_ms: pa.ChunkedArray) -> np.ndarray:
    """Return the gaps between stream chunks of all requests, ms; empty where a log has none."""
    values = chunk_gaps_ms.combine_chunks().flatten()
    return values.drop_null().to_numpy(zero_copy_only=False).astype(float)


def budget_seen(gaps_ms: np.ndarray, prompt_tokens: np.ndarray, stated: int, line: tuple[float, float]) -> int | None:
    """Return the step budget, tokens, that gaps between tokens show if it is smaller than stated; else None.

    ``line``: intercept, ms, and slope, ms a token, of the predicted time of an unchunked prompt. Prompts of one length
    have gaps of one length too, but then no unchunked prompt would take longer.
    """
    gaps = gaps_ms[gaps_ms > TOGETHER_MS]
    base_ms, token_ms = line
    if not gaps.size or not token_ms > 0.0 or not np.isfinite(base_ms):
        return None
    median_gap = float(np.median(gaps))
    gaps = gaps[gaps > WITH_PROMPT * median_gap]
    if gaps.size < LEAST_GAPS:
        return None
    p90_gap, p99_gap = np.quantile(gaps, (0.9, 0.99))
    whole_ms = base_ms + token_ms * min(float(np.quantile(prompt_tokens, 0.95)), stated)
    long_gaps = np.count_nonzero(gaps > (p99_gap + whole_ms) / 2.0)
    if p99_gap > FLAT * p90_gap or whole_ms < LEAST_LONGER * p99_gap or long_gaps > MOST_WHOLE * prompt_tokens.size:
        return None
    # a chunk's step contains about half of a decode step: attention and host time, not the reading of weights
    tokens = (p99_gap - median_gap / 2.0) / token_ms
    budget = min(BUDGETS, key=lambda size: abs(np.log(size / tokens)))
    return budget if budget < stated else None
