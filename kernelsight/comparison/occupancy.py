"""Occupancy of a log: requests decoding at once, and the batch limit (seats) that shows while others wait."""

from __future__ import annotations

import numpy as np

from kernelsight.comparison.measured_requests import Measured

# share of busy time at the limit, or one request below it, from which it is a limit
LEAST_SHARE = 0.15
# requests wait for a limit if TTFT is longer than expected by this factor, and by these ms
LEAST_TIMES, LEAST_WAIT_MS = 2.0, 50.0


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
