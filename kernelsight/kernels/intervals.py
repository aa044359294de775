"""How far off a prediction may be: factors of 90 % intervals, from curves that :mod:`..fitting.intervals` fits.

half(latency) = log of the factor, one curve a group of rows (a dtype, with its kernel seen or not; or a kernel of a
measured GPU), straight between KNOTS_US in log latency: short kernels scatter otherwise than long ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KNOTS_US = (4.0, 16.0, 64.0, 256.0, 1024.0)
# a factor of 20 at most
MOST_HALF = 3.0
# of a vendor whose kernels nobody measured: a factor of 4, which covers 91 to 100 % of AMD's products and experts
# (aiter) when general constants answer for them
UNMEASURED_HALF = 1.386
# what an engine's newer versions add to the errors of its kernels on a measured GPU, joined by squares: the least with
# which both the first and the later new versions on H100 and B200 are covered to 90 % (docs/accuracy/kernels.md)
DRIFT_HALF = 0.08
# a GPU this near to one of those that were fitted, octaves, is as the generations are that were held out
NEAR_OCTAVES = 1.0
# growth of the half width by octave beyond: with it, 92 % of the kernels of an L40S (3.5 octaves) lie in the intervals
# of a fit without it, 88 % without growth, 95 % with twice as much; fitted without any GDDR board, the errors of
# attention that nine in ten stay below are 1.6 times those of a fit with another board, of other kernels 0.7 to 1.1
BY_OCTAVE = 0.1
ALL = "*"
# points of a kernel on a GPU without a sweep, of which intervals are learnt
POINTS = (0, 1, 3, 5, 10)
_OCTAVES_BETWEEN = float(np.log2(KNOTS_US[1] / KNOTS_US[0]))


def group_of(dtype: str, seen: bool) -> str:
    """Return the name of the rows that share a width: number formats, and whether the fit knew their kernel."""
    return f"{dtype}|{'seen' if seen else 'unseen'}"


def points_group(points: int) -> str:
    """Return the name of the rows that share a width after a few points of their kernel: the most of POINTS below.

    >>> points_group(0), points_group(4), points_group(70)
    ('0 points', '3 points', '10 points')
    """
    return f"{max(count for count in POINTS if count <= points)} points"


def half_widths_for(curves: Mapping[str, np.ndarray], groups: Sequence[str]) -> np.ndarray:
    """Return (groups, knots): each group's half widths; where it has none of its own, those of all rows alike seen."""
    widest = np.full(len(KNOTS_US), MOST_HALF)
    names = [(group, f"{ALL}|{group.rpartition('|')[2]}", ALL) for group in groups]
    curve_of_group = [next((curves[name] for name in own if name in curves), widest) for own in names]
    return np.array(curve_of_group).reshape(len(groups), -1)


def measured_half_widths(
    own: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], kernel: str, group: str
) -> np.ndarray:
    """Return the half widths (knots,) of a kernel that an engine runs on a measured GPU, in a version of its own.

    ``own``: curves of the GPU's sweep by kernel; one that the sweep did not hold is as uncertain as on another GPU:
    ``others``, curves of held-out generations by ``group``.
    """
    if kernel not in own and others:
        return half_widths_for(others, [group])[0]
    return np.hypot(half_widths_for(own, [kernel])[0], DRIFT_HALF)


def growth(octaves: float) -> float:
    """Return by how much intervals widen on a GPU that lies ``octaves`` from the nearest one that was fitted.

    >>> growth(0.5), growth(3.0)
    (1.0, 1.2)
    """
    return 1.0 + BY_OCTAVE * max(octaves - NEAR_OCTAVES, 0.0)


def spread(xp: Any, latency_us: Any, halves: Any) -> Any:
    """Return the factor f of each row: its 90 % interval is [latency / f, latency x f].

    ``halves``: (knots,), or (rows, knots).

    >>> spread(np, np.array([32.0]), np.log(np.array([2.0, 2.0, 8.0, 8.0, 8.0]))).round(3).tolist()
    [4.0]
    """
    knot_of_latency = knot_place(xp, latency_us)
    # hat functions: the weight of each knot, without a branch or a gather
    half = 0.0
    for knot in range(len(KNOTS_US)):
        half = half + halves[..., knot] * xp.maximum(1.0 - xp.abs(knot_of_latency - knot), 0.0)
    return xp.exp(xp.minimum(half, MOST_HALF))


def knot_place(xp: Any, latency_us: Any) -> Any:
    """Return the position of a latency among the knots: 0 at the first and below, whole at a knot."""
    octaves = xp.log2(xp.maximum(latency_us, KNOTS_US[0]) / KNOTS_US[0])
    return xp.clip(octaves / _OCTAVES_BETWEEN, 0.0, len(KNOTS_US) - 1.0)
