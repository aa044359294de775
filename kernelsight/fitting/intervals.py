"""Curves of 90 % intervals, calibrated on GPUs or sites that were not fitted (read by :mod:`..kernels.intervals`).

At a knot a half width is the 90 % quantile of the absolute log errors around it.

Four generations cannot certify 90 %. Each fold (one generation held out) counts the same, however many rows it has: an
unseen generation is taken as one more draw among them; what only one fold has measured is widened by LONE_FOLD. Errors
at unmeasured sites of one GPU are exchangeable, and form a single fold (split conformal, Lei et al. 2018, arXiv
1604.04173).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelsight.kernels.intervals import ALL, KNOTS_US, MOST_HALF, knot_place

COVERAGE = 0.9
# a factor of 1.02 at least, that of repeated measurements
LEAST_HALF = 0.02
LONE_FOLD = 1.25
# a curve counts as much as this many rows of the curve of all groups beside its own
PRIOR_ROWS = 50.0


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
    error, knot = np.abs(log_error[finite]), knot_place(np, latency_us[finite])
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


def _curve(error: np.ndarray, knot: np.ndarray, folds: np.ndarray | None, prior: np.ndarray | None) -> np.ndarray:
    """Half widths at the knots, every fold counting the same, drawn to the prior by PRIOR_ROWS rows."""
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
