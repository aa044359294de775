"""How fast the engine went along a log, for what it had to do: measured over predicted time of a step, by window.

In the replay a window's time per token is a + b running + c (time per token) (prompt tokens a second): decoding
sequences, and the steps that their prompts take. An engine slower by a factor takes as much longer for all three, so
that the factor follows from the measured time per token, whatever queue or batch grew out of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.comparison.lost_time import MOST_REQUESTS, LostTime
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.occupancy import active_seconds
from kernelsight.comparison.replay import Replayed

# a window with less time of requests in it, in windows, says nothing
LEAST_COVERED = 0.5


class Speed(NamedTuple):
    """Logarithm of the factor by which steps took longer than predicted, by window; NaN where nothing ran.

    ``start_s``: of each window; ``running``: requests that were decoding, measured.
    """

    start_s: np.ndarray
    width_s: float
    log_factor: np.ndarray
    running: np.ndarray


def speed_of(measured: Measured, base: Replayed, lost: LostTime) -> Speed:
    """Return the speed of an engine along a log."""
    count = lost.share.size
    edges = lost.start_s + lost.width_s * np.arange(count + 1)
    real = running_in(measured.first_s, measured.last_s, edges)
    done = base.served
    ours = running_in(base.first_ns[done] / 1e9, base.finish_ns[done] / 1e9, edges)
    prompts = measured.prompt_tokens - np.nan_to_num(base.cached_tokens)
    read, ours_read = (
        np.histogram(at_s, edges, weights=weights)[0] / lost.width_s
        for at_s, weights in ((measured.first_s, prompts), (base.first_ns[done] / 1e9, prompts[done]))
    )
    predicted = _time_per_token(measured, base, edges)
    usable = (ours > LEAST_COVERED) & (predicted > 0.0)
    smooth = np.ones(5) / 5.0
    read, ours_read = np.convolve(read, smooth, "same"), np.convolve(ours_read, smooth, "same")
    form = np.column_stack([np.ones(count), ours, predicted * ours_read])[usable]
    a, b, c = _nonnegative(form, predicted[usable])
    took = predicted * np.exp(lost.log_factor)
    expected = a + b * real + c * took * read
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.log(took / expected)
    # after the last request was sent fewer and fewer run: that is no load that was predicted
    drains = edges[:-1] > measured.sent_s.max() - lost.width_s
    factor[(real < LEAST_COVERED) | (predicted <= 0.0) | drains | ~np.isfinite(factor)] = np.nan
    return Speed(edges[:-1], lost.width_s, factor, real)


def running_in(begin: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean number of spans that are active in each window."""
    nonempty = np.isfinite(begin) & np.isfinite(end) & (end > begin)
    width = edges[1] - edges[0]
    return np.diff(active_seconds(begin[nonempty], end[nonempty], edges)) / width


def _time_per_token(measured: Measured, base: Replayed, edges: np.ndarray) -> np.ndarray:
    """Return the mean predicted time per token of the requests that decoded in each window, where they did, seconds."""
    first_s, last_s = measured.first_s, measured.last_s
    rows = np.flatnonzero(base.served & measured.ok & (measured.output_tokens > 1) & (last_s > first_s))
    rows = rows[:: max(-(-rows.size // MOST_REQUESTS), 1)]
    tpot = (base.finish_ns - base.first_ns)[rows] / 1e9 / (measured.output_tokens[rows] - 1.0)
    width = edges[1] - edges[0]
    inside = np.minimum(last_s[rows, None], edges[None, 1:]) - np.maximum(first_s[rows, None], edges[None, :-1])
    inside = np.maximum(inside, 0.0) / width
    total = inside.sum(axis=0)
    return np.divide(tpot @ inside, total, out=np.zeros(total.size), where=total > 1e-9)


def _nonnegative(form: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return least squares whose slopes are not negative: those that would be are 0."""
    from scipy.optimize import nnls

    return nnls(form, values)[0] if len(values) >= 3 else np.array([1.0, 0.0, 0.0])
