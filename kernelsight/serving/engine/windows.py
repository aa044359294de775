"""Sums of an engine's steps in windows of time: KV use, cache hits and batch size, without keeping the steps.

A fixed number of windows covers the time so far. A step beyond the last window doubles the width of all windows by
merging pairs: sums stay exact, and memory constant for any number of steps.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, entry
from kernelsight.serving.engine.served import Windows
from kernelsight.serving.engine.steps import (
    DECODES,
    END,
    ENERGY,
    FOUND,
    LOOKED_UP,
    PREEMPTED,
    PROMPTS,
    RUNNING,
    START,
    UNITS,
)

WINDOWS = 128
# a power of two of a second, so that wider windows are a round number of seconds
NARROWEST_US = 1e6 / 512.0
# columns of sums: time in steps, and its products with KV units in use and running requests; counts by the window in
# which a step starts; joules of kernels, split by the step's time in each window
BUSY, UNITS_US, RUNNING_US, STEPS, PROMPTS_IN, DECODES_IN, FOUND_IN, LOOKED_UP_IN, PREEMPTED_IN, ENERGY_IN = range(10)
SUMS = 10
PEAK_UNITS, PEAK_RUNNING = range(2)


@compiled
def merge_pairs(sums: np.ndarray, peaks: np.ndarray) -> None:
    """Merge pairs of windows: the sum of sums, the larger of peaks."""
    half = sums.shape[0] // 2
    for k in range(half):
        for column in range(sums.shape[1]):
            sums[k, column] = sums[2 * k, column] + sums[2 * k + 1, column]
        for column in range(peaks.shape[1]):
            peaks[k, column] = max(peaks[2 * k, column], peaks[2 * k + 1, column])
    sums[half:] = 0.0
    peaks[half:] = 0.0


@entry
def add_steps(rows: np.ndarray, sums: np.ndarray, peaks: np.ndarray, origin_us: float, width_us: float) -> float:
    """Add step rows, in order of time, to the windows from ``origin_us`` on; return their width, doubled as needed."""
    for i in range(rows.shape[0]):
        row = rows[i]
        while row[END] > origin_us + width_us * sums.shape[0]:
            merge_pairs(sums, peaks)
            width_us *= 2.0
        k = min(int((row[START] - origin_us) / width_us), sums.shape[0] - 1)
        first = sums[k]
        first[STEPS] += 1.0
        first[PROMPTS_IN] += row[PROMPTS]
        first[DECODES_IN] += row[DECODES]
        first[FOUND_IN] += row[FOUND]
        first[LOOKED_UP_IN] += row[LOOKED_UP]
        first[PREEMPTED_IN] += row[PREEMPTED]
        at = row[START]
        while at < row[END]:
            until = row[END] if k == sums.shape[0] - 1 else min(row[END], origin_us + (k + 1) * width_us)
            if until > at:
                sums[k, BUSY] += until - at
                sums[k, UNITS_US] += (until - at) * row[UNITS]
                sums[k, RUNNING_US] += (until - at) * row[RUNNING]
                sums[k, ENERGY_IN] += (until - at) / (row[END] - row[START]) * row[ENERGY]
                peaks[k, PEAK_UNITS] = max(peaks[k, PEAK_UNITS], row[UNITS])
                peaks[k, PEAK_RUNNING] = max(peaks[k, PEAK_RUNNING], row[RUNNING])
                at = until
            k += 1
    return width_us


def fresh() -> tuple[np.ndarray, np.ndarray]:
    """Return (sums, peaks) of empty windows."""
    return np.zeros((WINDOWS, SUMS)), np.zeros((WINDOWS, 2))


def windows_of(
    sums: np.ndarray,
    peaks: np.ndarray,
    origin_us: float,
    width_us: float,
    last_us: float,
    came_us: np.ndarray,
    left_us: np.ndarray,
) -> Windows:
    """Return the windows up to the end of the last step, with the requests in flight.

    ``came_us``, ``left_us``: when accepted requests arrived and left, shape [requests] each.
    """
    count = min(max(int(np.ceil((last_us - origin_us) / width_us)), 1), WINDOWS)
    edges = origin_us + width_us * np.arange(count + 1)
    edges[-1] = max(last_us, edges[-2])
    in_flight = np.diff(_elapsed(came_us, edges) - _elapsed(left_us, edges))
    return Windows(edges, sums[:count], peaks[:count, PEAK_UNITS], peaks[:count, PEAK_RUNNING], in_flight)


def _elapsed(moments_us: np.ndarray, edges_us: np.ndarray) -> np.ndarray:
    """Return, at each edge, the sum of the times since all earlier ``moments_us``."""
    # arrivals are sorted, and finishes nearly so: a merge sort of runs is fast
    ordered = np.sort(moments_us, kind="stable")
    ordered -= edges_us[0]
    passed = np.searchsorted(ordered, edges_us - edges_us[0])
    np.cumsum(ordered, out=ordered)  # in place: millions of moments take memory
    upto = np.where(passed > 0, ordered[np.maximum(passed, 1) - 1], 0.0) if ordered.size else 0.0
    return passed * (edges_us - edges_us[0]) - upto
