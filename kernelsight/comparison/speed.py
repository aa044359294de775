"""Speed of the engine over a log, at equal load: measured over expected time of a step, by window.

In the replay a window's time per token is a + b running + c (time per token) (prompt tokens a second): decoding
sequences, and the steps that prompts take. An engine that is slower by a factor takes longer by it for all three terms,
so the factor follows from the measured time per token, whatever queue or batch it led to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.comparison.lost_time import MOST_REQUESTS, LostTime
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.observed_limits import active_seconds
from kernelsight.comparison.replay import Replayed

# a window with a smaller mean number of decoding requests is skipped
LEAST_COVERED = 0.5


class Speed(NamedTuple):
    """Logarithm of measured over expected step time by window, shape [windows]; NaN where nothing ran.

    ``start_s``: of each window; ``width_s``: of all; ``running``: mean measured number of decoding requests.
    """

    start_s: np.ndarray
    width_s: float
    log_factor: np.ndarray
    running: np.ndarray


def speed_of(measured: Measured, base: Replayed, lost: LostTime) -> Speed:
    """Return the speed of the engine by window of ``lost``, the lost time of the log against its replay ``base``."""
    count = lost.share.size
    edges = lost.start_s + lost.width_s * np.arange(count + 1)
    measured_running = running_in(measured.first_s, measured.last_s, edges)
    served = base.served
    predicted_running = running_in(base.first_ns[served] / 1e9, base.finish_ns[served] / 1e9, edges)
    prompts = measured.prompt_tokens - np.nan_to_num(base.cached_tokens)
    measured_prompt_rate, predicted_prompt_rate = (
        np.histogram(at_s, edges, weights=weights)[0] / lost.width_s
        for at_s, weights in ((measured.first_s, prompts), (base.first_ns[served] / 1e9, prompts[served]))
    )
    predicted_s = _time_per_token(measured, base, edges)
    usable = (predicted_running > LEAST_COVERED) & (predicted_s > 0.0)
    window = np.ones(5) / 5.0
    measured_prompt_rate, predicted_prompt_rate = (
        np.convolve(measured_prompt_rate, window, "same"),
        np.convolve(predicted_prompt_rate, window, "same"),
    )
    features = np.column_stack([np.ones(count), predicted_running, predicted_s * predicted_prompt_rate])[usable]
    a, b, c = _nonnegative(features, predicted_s[usable])
    measured_s = predicted_s * np.exp(lost.log_factor)
    expected_s = a + b * measured_running + c * measured_s * measured_prompt_rate
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.log(measured_s / expected_s)
    # after the last request was sent the batch drains, which the fit does not describe
    is_draining = edges[:-1] > measured.sent_s.max() - lost.width_s
    factor[(measured_running < LEAST_COVERED) | (predicted_s <= 0.0) | is_draining | ~np.isfinite(factor)] = np.nan
    return Speed(edges[:-1], lost.width_s, factor, measured_running)


def running_in(begin: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean number of spans [begin, end) that are active in each window; ``edges``: of equal windows, s."""
    nonempty = np.isfinite(begin) & np.isfinite(end) & (end > begin)
    width = edges[1] - edges[0]
    return np.diff(active_seconds(begin[nonempty], end[nonempty], edges)) / width


def _time_per_token(measured: Measured, base: Replayed, edges: np.ndarray) -> np.ndarray:
    """Return the mean predicted TPOT of the requests that decoded in each window, s; 0 where none did."""
    first_s, last_s = measured.first_s, measured.last_s
    rows = np.flatnonzero(base.served & measured.ok & (measured.output_tokens > 1) & (last_s > first_s))
    rows = rows[:: max(-(-rows.size // MOST_REQUESTS), 1)]
    tpot_s = (base.finish_ns - base.first_ns)[rows] / 1e9 / (measured.output_tokens[rows] - 1.0)
    width = edges[1] - edges[0]
    overlap_share = np.minimum(last_s[rows, None], edges[None, 1:]) - np.maximum(first_s[rows, None], edges[None, :-1])
    overlap_share = np.maximum(overlap_share, 0.0) / width
    total = overlap_share.sum(axis=0)
    return np.divide(tpot_s @ overlap_share, total, out=np.zeros(total.size), where=total > 1e-9)


def _nonnegative(features: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return nonnegative least-squares weights of three features; (1, 0, 0) with fewer than three values."""
    from scipy.optimize import nnls

    return nnls(features, values)[0] if len(values) >= 3 else np.array([1.0, 0.0, 0.0])
