"""90 % intervals of kernel latencies: factors from curves that :mod:`kernelsight.fitting.half_widths` fits.

A curve is the half width of log latency, linear between KNOTS_US in log latency, because short kernels scatter
differently from long ones. There is one for each group of rows: a dtype, with its kernel fitted or not; or a kernel of
a measured GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KNOTS_US = (4.0, 16.0, 64.0, 256.0, 1024.0)
# largest half width: a factor of 20
MOST_HALF = 3.0
# half width for a vendor whose kernels were not measured: a factor of 4, which covers 91 to 100 % of AMD's products and
# experts (aiter) when general constants predict them
UNMEASURED_HALF = 1.386
# half width that newer engine versions add (root of squares) to the errors of kernels on a measured GPU: the least that
# covers 90 % of both the first and the later new versions on H100 and B200 (docs/accuracy/kernels.md)
DRIFT_HALF = 0.08
# distance to the nearest fitted GPU, octaves, up to which intervals of held-out generations hold without widening
NEAR_OCTAVES = 1.0
# growth of the half width per octave beyond: with it, 92 % of the kernels of an L40S (3.5 octaves) lie in the intervals
# of a fit without it, 88 % without growth, 95 % with twice as much; fitted without any GDDR board, the 90th percentile
# of attention's errors is 1.6 times that of a fit with another board, of other kernels 0.7 to 1.1
BY_OCTAVE = 0.1
ALL = "*"
# calls whose harness is not known, and the group of their curves
HARNESS = "any harness"
# numbers of measured points of a kernel, on a GPU without a sweep, for which intervals are fitted
POINTS = (0, 1, 3, 5, 10)
_OCTAVES_BETWEEN = float(np.log2(KNOTS_US[1] / KNOTS_US[0]))


def group_of(dtype: str, seen: bool) -> str:
    """Return the group of rows that share a curve: number formats, and whether their kernel was fitted.

    >>> group_of("fp8", seen=True)
    'fp8|seen'
    """
    return f"{dtype}|{'seen' if seen else 'unseen'}"


def group_of_harness(dtype: str) -> str:
    """Return the group of what a harness adds to calls of number formats."""
    return f"{dtype}|{HARNESS}"


def points_group(points: int) -> str:
    """Return the group of rows after ``points`` measured points of their kernel: the largest of POINTS up to it.

    >>> points_group(0), points_group(4), points_group(70)
    ('0 points', '3 points', '10 points')
    """
    return f"{max(count for count in POINTS if count <= points)} points"


def half_widths_for(curves: Mapping[str, np.ndarray], groups: Sequence[str]) -> np.ndarray:
    """Return the half widths of each group, (groups, knots).

    A group without a curve takes that of all formats with its kernel fitted or not, then that of all rows.
    """
    widest = np.full(len(KNOTS_US), MOST_HALF)
    names = [(group, f"{ALL}|{group.rpartition('|')[2]}", ALL) for group in groups]
    curve_of_group = [next((curves[name] for name in candidates if name in curves), widest) for candidates in names]
    return np.array(curve_of_group).reshape(len(groups), -1)


def measured_half_widths(
    own: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], kernel: str, group: str
) -> np.ndarray:
    """Return the half widths, (knots,), of a kernel on a measured GPU, in any version of its engine.

    ``own``: curves of the GPU's sweep by kernel; ``others``: curves of held-out generations by ``group``, for a kernel
    that the sweep did not run.
    """
    if kernel not in own and others:
        return half_widths_for(others, [group])[0]
    return np.hypot(half_widths_for(own, [kernel])[0], DRIFT_HALF)


def growth(octaves: float) -> float:
    """Return the factor on half widths of a GPU whose nearest fitted GPU is ``octaves`` away."""
    return 1.0 + BY_OCTAVE * max(octaves - NEAR_OCTAVES, 0.0)


def spread(xp: Any, latency_us: Any, halves: Any) -> Any:
    """Return the factor f of each row, (rows,): its 90 % interval is [latency / f, latency x f].

    ``latency_us``: microseconds, (rows,); ``halves``: half widths, (knots,) or (rows, knots).
    """
    knot_of_latency = knot_place(xp, latency_us)
    # linear interpolation by hat functions, the weight of each knot: no branch, no gather
    half = 0.0
    for knot in range(len(KNOTS_US)):
        half = half + halves[..., knot] * xp.maximum(1.0 - xp.abs(knot_of_latency - knot), 0.0)
    return xp.exp(xp.minimum(half, MOST_HALF))


def knot_place(xp: Any, latency_us: Any) -> Any:
    """Return the position of latencies among the knots, (rows,): 0 at the first and below, whole numbers at knots."""
    octaves = xp.log2(xp.maximum(latency_us, KNOTS_US[0]) / KNOTS_US[0])
    return xp.clip(octaves / _OCTAVES_BETWEEN, 0.0, len(KNOTS_US) - 1.0)
