"""Signature of a miss: how TTFT and TPOT of a log differ from a replay's, in three figures by which causes differ.

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
# what a model may be off by: ms a request before its first token, microseconds a prompt token, a share of TPOT
REQUEST_MS, PROMPT_TOKEN_US, TPOT_SHARE = 20.0, 8.0, 0.03
# a queue longer than this hides what a request itself takes, ms
LONG_QUEUE_MS = 60.0


class Signature(NamedTuple):
    """Measured less predicted: ms a request and microseconds a prompt token of TTFT, ms of TPOT; NaN: not measured.

    ``predicted``: the same three of the replay.
    """

    request_ms: float
    prompt_token_us: float
    tpot_ms: float
    predicted: tuple[float, float, float]

    @property
    def misfit(self) -> float:
        """How far it is off, a sum of squares in what the model may be off by."""
        allowed = (REQUEST_MS, PROMPT_TOKEN_US, TPOT_SHARE * self.predicted[2])
        return sum((value / size) ** 2 for value, size in zip(self[:3], allowed, strict=True) if np.isfinite(value))


def signature(measured: Measured, replayed: Replayed, chosen: np.ndarray) -> Signature:
    """Return the signature of what a replay leaves unexplained, of chosen requests."""
    usable = chosen & measured.ok & replayed.served
    decode, ours = measured.decode_ms, (replayed.finish_ns - replayed.first_ns) / 1e6
    several = usable & (measured.output_tokens > 3) & np.isfinite(decode)
    intervals = np.maximum(measured.output_tokens - 1.0, 1.0)
    tpot, predicted = (_median((values / intervals)[several]) for values in (decode - ours, ours))
    waits = usable & np.isfinite(measured.ttft_ms)
    # a queue that the replay has too hides what each request takes
    short = waits & (replayed.queue_ms < LONG_QUEUE_MS)
    request, prompt = _line(measured.prompt_tokens, measured.ttft_ms - replayed.ttft_ms, short)
    trend = _line(measured.prompt_tokens, replayed.ttft_ms, short)
    return Signature(request, 1e3 * prompt, tpot, (trend[0], 1e3 * trend[1], predicted))


def _line(tokens: np.ndarray, values: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Return the value at no token and the slope, of the medians of six groups by length; NaN for too few."""
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
    slope, at_none = np.polyfit(points[:, 0], points[:, 1], 1)
    return float(at_none), float(slope)


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else np.nan
