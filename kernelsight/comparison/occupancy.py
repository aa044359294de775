"""How many requests ran at once, read off a log: a limit shows as a level that is never passed while others wait."""

from __future__ import annotations

import numpy as np

from kernelsight.comparison.measured_requests import Measured

# share of the time that a limit is reached, within one request, while requests wait behind it
LEAST_SHARE = 0.15
# TTFT behind a limit is longer than predicted by this many times, and ms
LEAST_TIMES, LEAST_WAIT_MS = 2.0, 50.0


def levels(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many spans are active at once, and the seconds of each such level.

    >>> levels(np.array([0.0, 1.0]), np.array([2.0, 4.0]))
    (array([1, 2, 1, 0]), array([1., 1., 2., 0.]))
    """
    moments = np.concatenate([begin, end])
    order = np.argsort(moments, kind="stable")
    change = np.concatenate([np.ones(begin.size, int), -np.ones(end.size, int)])[order]
    return np.cumsum(change), np.diff(moments[order], append=moments[order][-1:])


def active_seconds(begin: np.ndarray, end: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Return the seconds of all spans until each moment: sums of max(moment - begin, 0) less those of the ends.

    >>> active_seconds(np.array([0.0, 1.0]), np.array([2.0, 4.0]), np.array([1.0, 3.0])).tolist()
    [1.0, 4.0]
    """

    def since(moments: np.ndarray) -> np.ndarray:
        ordered = np.sort(moments)
        count = np.searchsorted(ordered, at_s)
        return at_s * count - np.concatenate([[0.0], np.cumsum(ordered)])[count]

    return since(begin) - since(end)


def decoding(measured: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Return the spans in which requests decoded, by the log's own times, seconds."""
    first_s = measured.sent_s + measured.ttft_ms / 1e3
    last_s = measured.sent_s + measured.e2e_ms / 1e3
    decodes = np.isfinite(first_s) & np.isfinite(last_s) & (last_s > first_s)
    return first_s[decodes], last_s[decodes]


def most_running(begin: np.ndarray, end: np.ndarray) -> int:
    """Return the highest number of spans at once that lasts: a thousandth of the time."""
    if not begin.size:
        return 0
    number, seconds = levels(begin, end)
    order = np.argsort(-number, kind="stable")
    reached = np.cumsum(seconds[order]) >= 1e-3 * seconds.sum()
    return int(number[order][np.argmax(reached)])


def seats_seen(measured: Measured, expected_ms: np.ndarray) -> int | None:
    """Return the seats that a log shows: a level that is held and never passed while others wait; None for none.

    ``expected_ms``: TTFTs of requests that do not wait for a seat, NaN for none.
    """
    begin, end = decoding(measured)
    if begin.size < 30:
        return None
    most = most_running(begin, end)
    number, seconds = levels(begin, end)
    share_at_most = float(seconds[number >= most - 1].sum() / max(seconds[number > 0].sum(), 1e-9))
    times = [ttft_ms[np.isfinite(ttft_ms)] for ttft_ms in (measured.ttft_ms[measured.ok], expected_ms)]
    if not all(ttft_ms.size for ttft_ms in times):
        return None
    real, ours = (float(np.median(ttft_ms)) for ttft_ms in times)
    late = np.quantile(times[0], 0.9) - np.quantile(times[1], 0.9)
    waits = (real > LEAST_TIMES * ours or late > 10 * LEAST_WAIT_MS) and late > LEAST_WAIT_MS
    # the loop of a client that sends when an answer is there is a level too, without a queue behind it
    return most if waits and share_at_most >= LEAST_SHARE and float(number.max()) <= most + 1 else None
