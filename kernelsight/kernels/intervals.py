"""How far off a prediction may be: factors of 90 % intervals, calibrated on GPUs or sites that were not fitted.

half(latency) = log of the factor, one curve a group of rows (a dtype, with its kernel seen or not; or a kernel of a
measured GPU), straight between KNOTS_US in log latency: short kernels scatter otherwise than long ones. At a knot it is
the 90 % quantile of the absolute log errors around it.

Four generations cannot certify 90 %. Each fold (one generation held out) counts alike, however many rows it has: an
unseen generation is taken as one more draw among them; what only one fold has measured is widened by LONE_FOLD. Errors
at unmeasured sites of one GPU are exchangeable, and form a single fold (split conformal, Lei et al. 2018, arXiv
1604.04173).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KNOTS_US = (4.0, 16.0, 64.0, 256.0, 1024.0)
COVERAGE = 0.9
# a factor of 1.02 at least, that of repeated measurements, and of 20 at most
LEAST_HALF, MOST_HALF = 0.02, 3.0
LONE_FOLD = 1.25
# a curve counts as much as this many rows of the curve of all groups beside its own
PRIOR_ROWS = 50.0
# growth of the half width by octave outside of what was measured
BY_OCTAVE = 0.3
ALL = "*"
_OCTAVES_BETWEEN = float(np.log2(KNOTS_US[1] / KNOTS_US[0]))


def group_of(dtype: str, seen: bool) -> str:
    """Return the name of the rows that share a width: number formats, and whether the fit knew their kernel."""
    return f"{dtype}|{'seen' if seen else 'unseen'}"


def halves_for(curves: Mapping[str, np.ndarray], groups: Sequence[str]) -> np.ndarray:
    """Return (groups, knots): each group's half widths, those of all rows where it has none of its own."""
    widest = np.full(len(KNOTS_US), MOST_HALF)
    return np.array([curves.get(group, curves.get(ALL, widest)) for group in groups]).reshape(len(groups), -1)


def fit_intervals(
    log_error: np.ndarray, latency_us: np.ndarray, groups: Sequence[str], folds: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the half widths at KNOTS_US of each group, and of all rows together under ``"*"``.

    ``log_error``: log(measured / predicted); ``latency_us``: predicted; ``folds``: what was held out together, None
    where rows are exchangeable. Rows without a finite error are left out.

    >>> error = np.tile([-0.1, 0.1], 500)
    >>> fit_intervals(error, np.full(1000, 20.0), ["bf16"] * 1000)["bf16"].round(3).tolist()
    [0.1, 0.1, 0.1, 0.1, 0.1]
    """
    finite = np.isfinite(log_error) & (latency_us > 0)
    error, knot = np.abs(log_error[finite]), _place(np, latency_us[finite])
    groups = np.asarray(groups)[finite]
    folds = None if folds is None else np.asarray(folds)[finite]
    if not error.size:
        return {ALL: np.full(len(KNOTS_US), MOST_HALF)}
    everything = _curve(error, knot, folds, None)
    return {
        ALL: everything,
        **{
            name: _curve(error[of], knot[of], None if folds is None else folds[of], everything)
            for name in np.unique(groups).tolist()
            for of in (groups == name,)
        },
    }


def spread(xp: Any, latency_us: Any, halves: Any, octaves: Any = 0.0) -> Any:
    """Return the factor f of each row: its 90 % interval is [latency / f, latency x f].

    ``halves``: (knots,), or (rows, knots); ``octaves``: how far outside of what was measured a row lies.

    >>> spread(np, np.array([32.0]), np.log(np.array([2.0, 2.0, 8.0, 8.0, 8.0]))).round(3).tolist()
    [4.0]
    """
    place = _place(xp, latency_us)
    # hat functions: the weight of each knot, without a branch or a gather
    half = 0.0
    for knot in range(len(KNOTS_US)):
        half = half + halves[..., knot] * xp.maximum(1.0 - xp.abs(place - knot), 0.0)
    return xp.exp(xp.minimum(half * (1.0 + BY_OCTAVE * octaves), MOST_HALF))


def interval_rows(family: str, halves: Mapping[str, np.ndarray], source: str, **node: Any) -> list[dict]:
    """Return curves as ``eta_coefficients`` rows: the group's name in ``dtype``, its knots by position."""
    return [
        {
            "family": family, "part": "interval", "level": "family", "coefficient": "half", "dtype": group,
            "position": position, "value": float(np.float32(value)), "unit": "log", "source": source, **node,
        }
        for group, curve in halves.items()
        for position, value in enumerate(curve)
    ]  # fmt: skip


def _place(xp: Any, latency_us: Any) -> Any:
    """Position of a latency among the knots: 0 at the first and below, whole at a knot."""
    octaves = xp.log2(xp.maximum(latency_us, KNOTS_US[0]) / KNOTS_US[0])
    return xp.clip(octaves / _OCTAVES_BETWEEN, 0.0, len(KNOTS_US) - 1.0)


def _curve(error: np.ndarray, knot: np.ndarray, folds: np.ndarray | None, prior: np.ndarray | None) -> np.ndarray:
    """Half widths at the knots, every fold counting alike, drawn to the prior by PRIOR_ROWS rows."""
    weight, lone = np.ones(error.size), 1.0
    if folds is not None:
        names, fold = np.unique(folds, return_inverse=True)
        weight = (error.size / names.size / np.bincount(fold))[fold]
        lone = LONE_FOLD if names.size == 1 else 1.0
    return np.clip(_quantiles(error, knot, weight, prior) * lone, LEAST_HALF, MOST_HALF)


def _quantiles(error: np.ndarray, knot: np.ndarray, counts: np.ndarray, prior: np.ndarray | None) -> np.ndarray:
    overall = _quantile(error, counts)
    found = np.full(len(KNOTS_US), overall)
    for number in range(len(KNOTS_US)):
        weight = counts * np.maximum(1.0 - np.abs(knot - number), 0.0)
        rows = weight.sum()
        if rows > 0:
            # where few rows lie near a knot, all rows of the curve speak for it
            found[number] = (rows * _quantile(error, weight) + PRIOR_ROWS * overall) / (rows + PRIOR_ROWS)
    if prior is None:
        return found
    return (error.size * found + PRIOR_ROWS * prior) / (error.size + PRIOR_ROWS)


def _quantile(error: np.ndarray, weight: np.ndarray) -> float:
    """Weighted COVERAGE quantile, raised by one row as a finite sample asks for."""
    order = np.argsort(error, kind="stable")
    ladder = np.cumsum(weight[order])
    wanted = COVERAGE * (ladder[-1] + 1.0)
    return float(error[order][min(np.searchsorted(ladder, wanted), error.size - 1)])
