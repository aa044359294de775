"""Where along a log time was lost: the decode times of overlapping requests, split into windows of time.

A request whose decode took longer than predicted lost that time somewhere between its first and its last token; many
requests that overlap say where. The share of each window that was lost is the smooth solution of these sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed

MOST_WINDOWS, LEAST_WIDTH_S = 320, 0.5
# requests that it rests on, evenly over the log
MOST_REQUESTS = 6000
# standard deviation of a decode time that no cause explains: a share, and seconds
SHARE_SD, SECONDS_SD = 0.03, 0.01
# how much the lost share changes between windows beforehand, per square root of a second
CHANGE_SD = 0.15
# a larger residual in standard deviations counts less
HUBER, ROUNDS = 2.0, 4
MOST_LOST = 0.97


class LostTime(NamedTuple):
    """The share of each window that was lost: -1 means that it went twice as far as predicted.

    ``covered``: seconds of requests in each window, on which it rests; ``start_s``: of the first window.
    """

    start_s: float
    width_s: float
    share: np.ndarray
    covered: np.ndarray

    @property
    def log_factor(self) -> np.ndarray:
        """Logarithm of measured over predicted time in each window."""
        return -np.log1p(-np.minimum(self.share, MOST_LOST))


def lost_time(measured: Measured, base: Replayed) -> LostTime | None:
    """Return the lost time of a log; None where fewer than 30 requests have times that say so."""
    begin = measured.first_s
    real, ours = measured.decode_ms / 1e3, (base.finish_ns - base.first_ns) / 1e9
    if np.isnan(measured.ttft_ms).all():  # E2E alone
        real, ours = measured.e2e_ms / 1e3, base.e2e_ms / 1e3
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(measured.ok & base.served & np.isfinite(begin) & (real > 0.0) & (ours > 0.0))
    if rows.size < 30:
        return None
    rows = rows[:: -(-rows.size // MOST_REQUESTS)]
    begin, real, excess = begin[rows], real[rows], (real - ours)[rows]
    start, end = float(begin.min()), float((begin + real).max())
    width = max((end - start) / MOST_WINDOWS, LEAST_WIDTH_S)
    count = int(np.ceil((end - start) / width)) + 1
    overlap = _overlap(begin - start, begin - start + real, width, count)
    sd = SHARE_SD * real + SECONDS_SD
    # free to move everywhere, and a little towards its neighbours
    rough = np.diff(np.eye(count), axis=0) / (CHANGE_SD * np.sqrt(width))
    prior = rough.T @ rough + np.eye(count) * 1e-3
    weight = 1.0 / sd**2
    lost_share = np.zeros(count)
    for _ in range(ROUNDS):
        scaled = (overlap * weight[:, None]).T
        lost_share = np.linalg.solve(scaled @ overlap + prior, scaled @ excess)
        deviation = np.abs(excess - overlap @ lost_share) / sd
        spread = max(float(np.median(deviation)) * 1.4826, 1.0)
        weight = np.minimum(1.0, HUBER * spread / np.maximum(deviation, 1e-9)) / (sd * spread) ** 2
    return LostTime(start, width, lost_share, overlap.sum(axis=0))


def _overlap(begin: np.ndarray, end: np.ndarray, width: float, count: int) -> np.ndarray:
    """Return the seconds of each request in each window, shape [requests, windows]."""
    edges = np.arange(count + 1) * width
    inside = np.minimum(end[:, None], edges[None, 1:]) - np.maximum(begin[:, None], edges[None, :-1])
    return np.maximum(inside, 0.0)
