"""Lost time by window of a log, from how much longer than predicted overlapping requests decoded.

A request whose decode took longer than predicted lost that time somewhere between its first and its last token; many
overlapping requests localise it. The lost share of each window is the smooth, robust least-squares solution.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed

MOST_WINDOWS, LEAST_WIDTH_S = 320, 0.5
# requests that are fitted, evenly over the log
MOST_REQUESTS = 6000
# noise of a decode time: standard deviation as a share, plus seconds
SHARE_SD, SECONDS_SD = 0.03, 0.01
# prior standard deviation of the change of the lost share between windows, per square root of a second
CHANGE_SD = 0.15
# Huber threshold in standard deviations; iterations of reweighted least squares
HUBER, ROUNDS = 2.0, 4
MOST_LOST = 0.97


class LostTime(NamedTuple):
    """Lost share of each window of a log: 0.5 means half as fast as predicted, -1 twice as fast.

    ``start_s``: start of the first window; ``width_s``: of every window; ``share``: shape [windows].
    """

    start_s: float
    width_s: float
    share: np.ndarray

    @property
    def log_factor(self) -> np.ndarray:
        """Logarithm of measured over predicted time in each window, shape [windows]."""
        return -np.log1p(-np.minimum(self.share, MOST_LOST))


def lost_time(measured: Measured, base: Replayed) -> LostTime | None:
    """Return the lost time of a log against its replay; None with fewer than 30 requests that have such times."""
    begin = measured.first_s
    measured_s, predicted_s = measured.decode_ms / 1e3, (base.finish_ns - base.first_ns) / 1e9
    if np.isnan(measured.ttft_ms).all():  # E2E alone
        measured_s, predicted_s = measured.e2e_ms / 1e3, base.e2e_ms / 1e3
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(measured.ok & base.served & np.isfinite(begin) & (measured_s > 0.0) & (predicted_s > 0.0))
    if rows.size < 30:
        return None
    rows = rows[:: -(-rows.size // MOST_REQUESTS)]
    begin, measured_s, excess = begin[rows], measured_s[rows], (measured_s - predicted_s)[rows]
    start, end = float(begin.min()), float((begin + measured_s).max())
    width = max((end - start) / MOST_WINDOWS, LEAST_WIDTH_S)
    count = int(np.ceil((end - start) / width)) + 1
    overlap = _overlap(begin - start, begin - start + measured_s, width, count)
    sd = SHARE_SD * measured_s + SECONDS_SD
    # prior: a wide one on each share, and a narrow one on the difference between neighbours
    smoothness = np.diff(np.eye(count), axis=0) / (CHANGE_SD * np.sqrt(width))
    prior = smoothness.T @ smoothness + np.eye(count) * 1e-3
    weight = 1.0 / sd**2
    lost_share = np.zeros(count)
    for _ in range(ROUNDS):
        scaled = (overlap * weight[:, None]).T
        lost_share = np.linalg.solve(scaled @ overlap + prior, scaled @ excess)
        deviation = np.abs(excess - overlap @ lost_share) / sd
        spread = max(float(np.median(deviation)) * 1.4826, 1.0)
        weight = np.minimum(1.0, HUBER * spread / np.maximum(deviation, 1e-9)) / (sd * spread) ** 2
    return LostTime(start, width, lost_share)


def _overlap(begin: np.ndarray, end: np.ndarray, width: float, count: int) -> np.ndarray:
    """Return the seconds of each request in each window, shape [requests, windows]."""
    edges = np.arange(count + 1) * width
    overlap_s = np.minimum(end[:, None], edges[None, 1:]) - np.maximum(begin[:, None], edges[None, :-1])
    return np.maximum(overlap_s, 0.0)
