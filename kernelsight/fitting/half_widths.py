"""Half widths of 90 % prediction intervals over latency, from errors on held-out GPU generations or sites.

A curve has the half width at each knot of latency: the 90 % quantile of the absolute log errors around it. Read by
:mod:`kernelsight.kernels.intervals`.

Four generations cannot certify 90 %. Each fold (one generation held out) has the same weight, however many rows it has:
an unseen generation is taken as one more draw among them. A few folds hold little evidence, so that a curve is shrunk
to the usual one of all families (USUAL_HALF), which counts as USUAL_FOLDS more folds. Errors at unmeasured sites of one
GPU are exchangeable, and form a single fold (split conformal, Lei et al. 2018, arXiv 1604.04173).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelsight.kernels.intervals import ALL, KNOTS_US, MOST_HALF, knot_place

COVERAGE = 0.9
# a factor of at least 1.02, the spread of repeated measurements
LEAST_HALF = 0.02
# half widths that are usual across generations, by the end of a group's name: nine errors in ten of a family's cells
# on A100, L40S, H100 and H200, each generation fitted without itself, stay below 0.40 where the kernel was seen
# (geometric mean; standard deviation of its logarithm 0.27 between generations and 0.26 between cells); of kernels
# that no other generation ran 0.6 to 0.8, and the wider ones are missed by more
USUAL_HALF = {"seen": 0.4, "unseen": 0.8}
USUAL_FOLDS = 4
# rows that the curve of all groups counts for in the curve of one group
PRIOR_ROWS = 50.0


def fit_intervals(
    log_error: np.ndarray, latency_us: np.ndarray, groups: Sequence[str], folds: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the half widths (knots,) at KNOTS_US by group, and of all rows together under ``"*"``.

    With ``folds``, groups have the names of ``group_of``, and ``"*|seen"`` and ``"*|unseen"`` are all rows of kernels
    that other generations ran, or did not.

    ``log_error``: log(measured / predicted); ``latency_us``: predicted; ``folds``: the fold that each row was held out
    with, None where rows are exchangeable. Rows without a finite error are dropped.
    """
    finite = np.isfinite(log_error) & (latency_us > 0)
    error, knot = np.abs(log_error[finite]), knot_place(np, latency_us[finite])
    groups = np.asarray(groups)[finite]
    folds = None if folds is None else np.asarray(folds)[finite]
    if not error.size:
        return {ALL: np.full(len(KNOTS_US), MOST_HALF)}
    all_rows = _curve(error, knot, folds, None)
    if folds is None:
        members = ((name, groups == name) for name in np.unique(groups).tolist())
        return {ALL: all_rows, **{name: _curve(error[rows], knot[rows], None, all_rows) for name, rows in members}}
    seen_of_row = np.array([name.rpartition("|")[2] for name in groups.tolist()])
    curves = {ALL: _shrunk(all_rows, "unseen", np.unique(folds).size)}
    for seen in USUAL_HALF:
        is_member = seen_of_row == seen
        rows = is_member if is_member.any() else np.ones(error.size, dtype=bool)
        curve = _curve(error[rows], knot[rows], folds[rows], None)
        curves[f"{ALL}|{seen}"] = _shrunk(curve, seen, np.unique(folds[rows]).size)
    for name in np.unique(groups).tolist():
        rows = groups == name
        curve = _curve(error[rows], knot[rows], folds[rows], all_rows)
        curves[name] = _shrunk(curve, name.rpartition("|")[2], np.unique(folds[rows]).size)
    return curves


def _shrunk(curve: np.ndarray, seen: str, folds: int) -> np.ndarray:
    """Shrink the curve of a number of folds, in logarithms, to the usual half width of seen or unseen kernels."""
    usual = USUAL_HALF.get(seen, USUAL_HALF["unseen"])
    return np.exp((folds * np.log(curve) + USUAL_FOLDS * np.log(usual)) / (folds + USUAL_FOLDS))


def curve_of(log_error: np.ndarray, latency_us: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the half widths (knots,) at KNOTS_US of one group of rows, every fold with the same weight."""
    return _curve(np.abs(log_error), knot_place(np, latency_us), folds, None)


def _curve(error: np.ndarray, knot: np.ndarray, folds: np.ndarray | None, prior: np.ndarray | None) -> np.ndarray:
    """Return the half widths at the knots, folds of the same weight, shrunk to a ``prior`` of PRIOR_ROWS rows."""
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
            # where few rows are near a knot, it is shrunk to the quantile of all rows
            quantiles[number] = (rows * _quantile(error, weight) + PRIOR_ROWS * overall) / (rows + PRIOR_ROWS)
    if prior is None:
        return quantiles
    return (error.size * quantiles + PRIOR_ROWS * prior) / (error.size + PRIOR_ROWS)


def _quantile(error: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted COVERAGE quantile with the finite-sample correction of conformal intervals: one row more."""
    order = np.argsort(error, kind="stable")
    cumulative = np.cumsum(weight[order])
    wanted = COVERAGE * (cumulative[-1] + 1.0)
    return float(error[order][min(np.searchsorted(cumulative, wanted), error.size - 1)])
