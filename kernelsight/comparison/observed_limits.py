"""Engine limits that a log itself shows: max_num_seqs (seats), max_num_batched_tokens, a disabled prefix cache.

Seats show in its occupancy, the requests that decode at once while others wait.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kernelsight.comparison.compared_log import ComparedLog
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.signature_causes import signature
from kernelsight.scenario.scenario_rows import normalise, prefill_flags

# share of busy time at the limit, or one request below it, from which it is a limit
LEAST_SHARE = 0.15
# requests wait for a limit if TTFT is longer than expected by this factor, and by these ms
LEAST_TIMES, LEAST_WAIT_MS = 2.0, 50.0
# fewer waiting requests do not determine the seats that they wait for
LEAST_WAITING = 20


def levels(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of active spans [begin, end) after each of their moments, and the seconds until the next.

    >>> levels(np.array([0.0, 1.0]), np.array([2.0, 4.0]))
    (array([1, 2, 1, 0]), array([1., 1., 2., 0.]))
    """
    moments = np.concatenate([begin, end])
    order = np.argsort(moments, kind="stable")
    change = np.concatenate([np.ones(begin.size, int), -np.ones(end.size, int)])[order]
    return np.cumsum(change), np.diff(moments[order], append=moments[order][-1:])


def active_seconds(begin: np.ndarray, end: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Return the total seconds of all spans until each moment: sum of max(at - begin, 0) - max(at - end, 0).

    >>> active_seconds(np.array([0.0, 1.0]), np.array([2.0, 4.0]), np.array([1.0, 3.0])).tolist()
    [1.0, 4.0]
    """

    def since(moments: np.ndarray) -> np.ndarray:
        ordered = np.sort(moments)
        count = np.searchsorted(ordered, at_s)
        return at_s * count - np.concatenate([[0.0], np.cumsum(ordered)])[count]

    return since(begin) - since(end)


def decoding(measured: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Return the spans (first token, last token) of requests that decoded, by the log's own times, s."""
    first_s = measured.sent_s + measured.ttft_ms / 1e3
    last_s = measured.sent_s + measured.e2e_ms / 1e3
    decodes = np.isfinite(first_s) & np.isfinite(last_s) & (last_s > first_s)
    return first_s[decodes], last_s[decodes]


def most_running(begin: np.ndarray, end: np.ndarray) -> int:
    """Return the largest number of concurrent spans that is reached for a thousandth of the time at least."""
    if not begin.size:
        return 0
    number, seconds = levels(begin, end)
    order = np.argsort(-number, kind="stable")
    reached = np.cumsum(seconds[order]) >= 1e-3 * seconds.sum()
    return int(number[order][np.argmax(reached)])


def seats_seen(measured: Measured, expected_ms: np.ndarray) -> int | None:
    """Return the number of seats (max_num_seqs) that a log shows: a level that is held and never exceeded; else None.

    Requests have to wait for it: their TTFT exceeds ``expected_ms``, TTFTs without such a wait, ms, NaN for none.
    """
    begin, end = decoding(measured)
    if begin.size < 30:
        return None
    running_max = most_running(begin, end)
    number, seconds = levels(begin, end)
    share_at_most = float(seconds[number >= running_max - 1].sum() / max(seconds[number > 0].sum(), 1e-9))
    ttfts_ms = [ttft_ms[np.isfinite(ttft_ms)] for ttft_ms in (measured.ttft_ms[measured.ok], expected_ms)]
    if not all(ttft_ms.size for ttft_ms in ttfts_ms):
        return None
    measured_ms, expected_median_ms = (float(np.median(ttft_ms)) for ttft_ms in ttfts_ms)
    excess_ms = np.quantile(ttfts_ms[0], 0.9) - np.quantile(ttfts_ms[1], 0.9)
    is_waiting = (
        measured_ms > LEAST_TIMES * expected_median_ms or excess_ms > 10 * LEAST_WAIT_MS
    ) and excess_ms > LEAST_WAIT_MS
    # a closed-loop client also holds a level, without a queue before it
    return (
        running_max if is_waiting and share_at_most >= LEAST_SHARE and float(number.max()) <= running_max + 1 else None
    )


def seats_while_waiting(measured: Measured, expected_ms: np.ndarray) -> int | None:
    """Return the median number of requests in a seat while another waits for its first token; None: too few wait.

    ``expected_ms``: TTFT of each request without such a wait, NaN for none. Noise of times moves it little, unlike
    ``seats_seen``, but an engine without a limit has such a median too: a replay has to confirm it.
    """
    first_s, last_s = measured.sent_s + measured.ttft_ms / 1e3, measured.last_s
    with np.errstate(invalid="ignore"):
        waits = measured.ok & (measured.ttft_ms > LEAST_TIMES * expected_ms + LEAST_WAIT_MS)
    seated = measured.ok & np.isfinite(first_s) & np.isfinite(last_s)
    if waits.sum() < LEAST_WAITING:
        return None
    # a request has its seat from when it is computed, which takes as long as that of one that does not wait
    begin_s = first_s - np.minimum(measured.ttft_ms, np.nanquantile(expected_ms, 0.25)) / 1e3
    middle_s = (measured.sent_s + begin_s)[waits] / 2.0
    began, ended = (np.searchsorted(np.sort(moments[seated]), middle_s) for moments in (begin_s, last_s))
    return int(np.median(began - ended))


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


def seats_to_confirm(log: ComparedLog, base: Replayed) -> list[int]:
    """Return values of max_num_seqs, smaller than stated, that waits or metrics of the server suggest for replays."""
    engines = log.settings["dp"] * log.settings["replicas"]
    suggested = {seats_while_waiting(log.measured, np.where(log.measured.ok, base.ttft_ms, np.nan))}
    windows = log.tables["production_windows"].select(["running", "waiting"]).to_pylist()
    if any(row["waiting"] for row in windows):
        suggested.add(round(max(row["running"] or 0.0 for row in windows)))
    each = {max(round(seats / engines), 1) for seats in suggested if seats}
    return sorted(seats for seats in each if seats < log.settings["max_num_seqs"])


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
