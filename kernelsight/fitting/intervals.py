"""Curves of 90 % intervals, calibrated on GPUs or sites that were not fitted (read by :mod:`..kernels.intervals`).

At a knot a half width is the 90 % quantile of the absolute log errors around it.

Four generations cannot certify 90 %. Each fold (one generation held out) counts the same, however many rows it has: an
unseen generation is taken as one more draw among them. A few folds say little of their own, so that a curve is drawn to
what is usual among all families (USUAL_HALF), as if these were USUAL_FOLDS more of its folds. Errors at unmeasured
sites of one GPU are exchangeable, and form a single fold (split conformal, Lei et al. 2018, arXiv 1604.04173).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelsight.kernels.intervals import ALL, KNOTS_US, MOST_HALF, knot_place

COVERAGE = 0.9
# a factor of 1.02 at least, that of repeated measurements
LEAST_HALF = 0.02
# half widths that are usual across generations, by the end of a group's name: nine errors in ten of a family's cells
# on A100, L40S, H100 and H200, each generation fitted without itself, stay below 0.40 where the kernel was seen
# (geometric mean; standard deviation of its logarithm 0.27 between generations and 0.26 between cells); of kernels
# that no other generation ran 0.6 to 0.8, and the wider ones are missed by more
USUAL_HALF = {"seen": 0.4, "unseen": 0.8}
USUAL_FOLDS = 4
# a curve counts as much as this many rows of the curve of all groups beside its own
PRIOR_ROWS = 50.0


def fit_intervals(
    log_error: np.ndarray, latency_us: np.ndarray, groups: Sequence[str], folds: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the half widths at KNOTS_US of each group, and of all rows together under ``"*"``.

    With ``folds``, groups are named as ``group_of`` names them, and ``"*|seen"`` and ``"*|unseen"`` are all rows of
    that kind.

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
    if folds is None:
        own = ((name, groups == name) for name in np.unique(groups).tolist())
        return {ALL: everything, **{name: _curve(error[of], knot[of], None, everything) for name, of in own}}
    kinds = np.array([name.rpartition("|")[2] for name in groups.tolist()])
    curves = {ALL: _usual(everything, "unseen", np.unique(folds).size)}
    for kind in USUAL_HALF:
        alike = kinds == kind
        of = alike if alike.any() else np.ones(error.size, dtype=bool)
        curves[f"{ALL}|{kind}"] = _usual(_curve(error[of], knot[of], folds[of], None), kind, np.unique(folds[of]).size)
    for name in np.unique(groups).tolist():
        of = groups == name
        curve = _curve(error[of], knot[of], folds[of], everything)
        curves[name] = _usual(curve, name.rpartition("|")[2], np.unique(folds[of]).size)
    return curves


def _usual(curve: np.ndarray, kind: str, folds: int) -> np.ndarray:
    """Return a curve of so many folds, drawn in logarithms to what is usual for kernels that were seen, or not."""
    usual = USUAL_HALF.get(kind, USUAL_HALF["unseen"])
    return np.exp((folds * np.log(curve) + USUAL_FOLDS * np.log(usual)) / (folds + USUAL_FOLDS))


def curve_of(log_error: np.ndarray, latency_us: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the half widths at KNOTS_US of rows that share a width, every fold counting the same."""
    return _curve(np.abs(log_error), knot_place(np, latency_us), folds, None)


def _curve(error: np.ndarray, knot: np.ndarray, folds: np.ndarray | None, prior: np.ndarray | None) -> np.ndarray:
    """Half widths at the knots, every fold counting the same, drawn to the prior by PRIOR_ROWS rows."""
    weight = np.ones(error.size)
    if folds is not None:
        names, fold = np.unique(folds, return_inverse=True)
        weight = (error.size / names.size / np.bincount(fold))[fold]
    return np.clip(_quantiles(error, knot, weight, prior), LEAST_HALF, MOST_HALF)


def _quantiles(error: np.ndarray, knot: np.ndarray, counts: np.ndarray, prior: np.ndarray | None) -> np.ndarray:
    overall = _quantile(error, counts)
    quantiles = np.full(len(KNOTS_US), overall)
    for number in range(len(KNOTS_US)):
        weight = counts * np.maximum(1.0 - np.abs(knot - number), 0.0)
        rows = weight.sum()
        if rows > 0:
            # where few rows lie near a knot, all rows of the curve speak for it
            quantiles[number] = (rows * _quantile(error, weight) + PRIOR_ROWS * overall) / (rows + PRIOR_ROWS)
    if prior is None:
        return quantiles
    return (error.size * quantiles + PRIOR_ROWS * prior) / (error.size + PRIOR_ROWS)


def _quantile(error: np.ndarray, weight: np.ndarray) -> float:
    """Weighted COVERAGE quantile, raised by one row as a finite sample asks for."""
    order = np.argsort(error, kind="stable")
    ladder = np.cumsum(weight[order])
    wanted = COVERAGE * (ladder[-1] + 1.0)
    return float(error[order][min(np.searchsorted(ladder, wanted), error.size - 1)])
