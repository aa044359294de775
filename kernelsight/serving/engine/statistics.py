"""Statistics of a scenario's requests, in one pass over their outcome: counts, sums of times, samples for quantiles."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import entry, inlined
from kernelsight.serving.engine import client_metrics
from kernelsight.serving.engine.records import FINISHED
from kernelsight.serving.engine.served import REAL, WHOLE

NANOSECONDS = 1e3  # per microsecond
STATUS, CACHED, TIERS = map(WHOLE.index, ("status", "cached_tokens", "tier_tokens"))
SENT, SCHEDULED, FIRST_TOKEN, FINISH, REQUEUED, RECOMPUTED, RECEIVED = map(
    REAL.index,
    ("sent_us", "scheduled_us", "first_token_us", "finish_us", "requeued_us", "recomputed_us", "received_us"),
)
# columns of the counts of a scenario; SEVERAL: requests with more than one output token
COUNTS = 15
(
    REQUESTS,
    ASKED_TOKENS,
    CACHED_TOKENS,
    COMPLETED,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    SEVERAL,
    GOOD,
    FIRST_SENT_NS,
    LAST_FINISH_NS,
    TOO_LONG,
    NO_MEMORY,
    EARLIER_TURN,
    TRANSFERRED,
    TIER_TOKENS,
) = range(COUNTS)
# latencies of which each request's value is kept, ms; these are the first of the times that are added up, ns
SAMPLES = ("ttft", "e2e", "queue", "tpot")
TTFT, E2E, QUEUE, TPOT, PREFILL, DECODE, PREEMPTED, KV_TRANSFER, FRONT_END = range(9)
TIMES = 9
# a sum of times has two halves, because millions of long waits exceed 64 bits: sums[time, 0] x 2^30 + sums[time, 1]
HALF_BITS = 30
LOW_HALF = (1 << HALF_BITS) - 1
NEVER = np.iinfo(np.int64).max

_ttft_ms, _tpot_ms, _e2e_ms = map(inlined, (client_metrics.ttft_ms, client_metrics.tpot_ms, client_metrics.e2e_ms))
_queue_ms, _prefill_ms = map(inlined, (client_metrics.queue_ms, client_metrics.prefill_ms))
_decode_ms = inlined(client_metrics.decode_ms)


@inlined
def nanoseconds(moment_us: float) -> int:
    """Return a time in whole nanoseconds; -1: it never happened."""
    return -1 if moment_us < 0.0 else int(np.rint(moment_us * NANOSECONDS))


@inlined
def add_time(sums: np.ndarray, time: int, span_ms: float) -> None:
    """Add a time in whole nanoseconds, halves rounded up, as SQL does."""
    exact_ns = span_ms * 1e6
    whole_ns = np.floor(exact_ns)
    rounded_ns = int(whole_ns) + (1 if exact_ns - whole_ns >= 0.5 else 0)
    sums[time, 0] += rounded_ns >> HALF_BITS
    sums[time, 1] += rounded_ns & LOW_HALF


@entry
def count_requests(
    whole: np.ndarray,
    real: np.ndarray,
    prompt_tokens: np.ndarray,
    output_tokens: np.ndarray,
    warmup: np.ndarray,
    most_ms: np.ndarray,
    request_us: float,
    per_prompt_token_us: float,
    counts: np.ndarray,
    sums: np.ndarray,
    samples: np.ndarray,
) -> None:
    """Add up requests of one scenario, all or those that have ended so far; warm-ups do not count.

    ``whole``, ``real``: their columns, shape [columns, at least the requests]; ``warmup``: shape [requests].
    ``most_ms``: objectives for TTFT, E2E and TPOT (infinite: none). ``request_us``, ``per_prompt_token_us``: time in
    the front end. Updated in place: ``counts``, shape [COUNTS], and ``sums``, [TIMES, 2], both zeros at first;
    ``samples``, [SAMPLES, at least all requests].
    """
    if counts[REQUESTS] == 0:
        counts[FIRST_SENT_NS], counts[LAST_FINISH_NS] = NEVER, -1
    for i in range(warmup.size):
        if warmup[i]:
            continue
        sent_ns, finish_ns = nanoseconds(real[SENT, i]), nanoseconds(real[FINISH, i])
        counts[REQUESTS] += 1
        counts[ASKED_TOKENS] += prompt_tokens[i]
        counts[CACHED_TOKENS] += whole[CACHED, i]
        counts[TIER_TOKENS] += whole[TIERS, i]
        counts[FIRST_SENT_NS] = min(counts[FIRST_SENT_NS], sent_ns)
        counts[LAST_FINISH_NS] = max(counts[LAST_FINISH_NS], finish_ns)
        if whole[STATUS, i] != FINISHED:
            counts[TOO_LONG + whole[STATUS, i] - 1] += 1
            continue
        scheduled_ns, first_ns = nanoseconds(real[SCHEDULED, i]), nanoseconds(real[FIRST_TOKEN, i])
        done = counts[COMPLETED]
        ttft_ms, e2e_ms = _ttft_ms(sent_ns, first_ns), _e2e_ms(sent_ns, finish_ns)
        front_ns = int(np.rint((request_us + per_prompt_token_us * prompt_tokens[i]) * NANOSECONDS))
        front_ns = min(front_ns, scheduled_ns - sent_ns)
        queue_ms = _queue_ms(sent_ns, scheduled_ns, front_ns)
        samples[TTFT, done], samples[E2E, done], samples[QUEUE, done] = ttft_ms, e2e_ms, queue_ms
        good = ttft_ms <= most_ms[TTFT] and e2e_ms <= most_ms[E2E]
        if output_tokens[i] > 1:
            tpot_ms = _tpot_ms(first_ns, finish_ns, output_tokens[i])
            samples[TPOT, counts[SEVERAL]] = tpot_ms
            add_time(sums, TPOT, tpot_ms)
            good = good and tpot_ms <= most_ms[2]
            counts[SEVERAL] += 1
        add_time(sums, TTFT, ttft_ms)
        add_time(sums, E2E, e2e_ms)
        add_time(sums, QUEUE, queue_ms)
        add_time(sums, FRONT_END, front_ns / 1e6)
        add_time(sums, PREFILL, _prefill_ms(scheduled_ns, first_ns))
        add_time(sums, DECODE, _decode_ms(first_ns, finish_ns))
        add_time(sums, PREEMPTED, nanoseconds(real[REQUEUED, i]) / 1e6 + nanoseconds(real[RECOMPUTED, i]) / 1e6)
        received_ns = nanoseconds(real[RECEIVED, i])
        if received_ns >= 0:
            add_time(sums, KV_TRANSFER, (received_ns - first_ns) / 1e6)
            counts[TRANSFERRED] += 1
        counts[COMPLETED] += 1
        counts[PROMPT_TOKENS] += prompt_tokens[i]
        counts[OUTPUT_TOKENS] += output_tokens[i]
        counts[GOOD] += good


@entry
def take_gaps(histogram: np.ndarray, bins: np.ndarray, gaps: np.ndarray) -> int:
    """Move the non-empty bins of an ITL histogram to ``bins`` and ``gaps``, in order; return their number."""
    kept = 0
    for number in range(histogram.size):
        if histogram[number] > 0:
            bins[kept], gaps[kept] = number, histogram[number]
            histogram[number] = 0
            kept += 1
    return kept
