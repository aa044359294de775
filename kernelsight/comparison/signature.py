"""Signature of a miss: TTFT per request, TTFT per prompt token and TPOT, measured less replayed, which identify causes.

Each cause has a signature: a slow tokenizer makes TTFT longer with every prompt token and leaves TPOT as it is, a small
step budget makes TTFT longer and TPOT shorter, host time adds as much to every step, a slower GPU scales both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed

GROUPS = 6
LEAST_IN_GROUP = 5
# allowed model error: ms a request before its first token, microseconds a prompt token, a share of TPOT
REQUEST_MS, PROMPT_TOKEN_US, TPOT_SHARE = 20.0, 8.0, 0.03
# requests that queue longer in the replay are left out, ms: the queue hides their own time
LONG_QUEUE_MS = 60.0


class Signature(NamedTuple):
    """Measured less predicted: intercept of TTFT, ms, its slope by prompt token, us, and TPOT, ms; NaN: not measured.

    ``predicted``: the same three figures of the replay.
    """

    request_ms: float
    prompt_token_us: float
    tpot_ms: float
    predicted: tuple[float, float, float]

    @property
    def misfit(self) -> float:
        """Sum of squares of the three figures, in units of the allowed model error."""
        allowed = (REQUEST_MS, PROMPT_TOKEN_US, TPOT_SHARE * self.predicted[2])
        return sum((value / size) ** 2 for value, size in zip(self[:3], allowed, strict=True) if np.isfinite(value))


def signature(measured: Measured, replayed: Replayed, chosen: np.ndarray) -> Signature:
    """Return the signature of measured less replayed times; ``chosen``: mask of requests, shape [requests]."""
    usable = chosen & measured.ok & replayed.served
    decode_ms, predicted_decode_ms = measured.decode_ms, (replayed.finish_ns - replayed.first_ns) / 1e6
    has_tokens = usable & (measured.output_tokens > 3) & np.isfinite(decode_ms)
    intervals = np.maximum(measured.output_tokens - 1.0, 1.0)
    tpot_ms, predicted_tpot_ms = (
        _median((values / intervals)[has_tokens]) for values in (decode_ms - predicted_decode_ms, predicted_decode_ms)
    )
    has_ttft = usable & np.isfinite(measured.ttft_ms)
    # a queue that the replay has too hides the time of the request itself
    is_short_queue = has_ttft & (replayed.queue_ms < LONG_QUEUE_MS)
    request, prompt = _line(measured.prompt_tokens, measured.ttft_ms - replayed.ttft_ms, is_short_queue)
    trend = _line(measured.prompt_tokens, replayed.ttft_ms, is_short_queue)
    return Signature(request, 1e3 * prompt, tpot_ms, (trend[0], 1e3 * trend[1], predicted_tpot_ms))


def _line(tokens: np.ndarray, values: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of ``values`` by tokens, through the medians of GROUPS quantile groups; NaN: too few.

    ``rows``: mask of requests. Without three groups of different lengths the slope is 0.
    """
    if np.count_nonzero(rows) < GROUPS * LEAST_IN_GROUP:
        return np.nan, np.nan
    tokens, values = tokens[rows], values[rows]
    edges = np.unique(np.quantile(tokens, np.linspace(0.0, 1.0, GROUPS + 1)))
    if edges.size < 3:
        return _median(values), 0.0
    group = np.clip(np.searchsorted(edges, tokens, side="right") - 1, 0, edges.size - 2)
    full_groups = [number for number in range(edges.size - 1) if np.count_nonzero(group == number) >= LEAST_IN_GROUP]
    points = np.array(
        [[np.median(tokens[group == number]), np.median(values[group == number])] for number in full_groups]
    )
    if len(points) < 3:
        return _median(values), 0.0
    slope, intercept = np.polyfit(points[:, 0], points[:, 1], 1)
    return float(intercept), float(slope)


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else np.nan
