"""Fits the correction of one measured GPU to the residual of its expression, and applies it to rows of that GPU.

What the network leaves of a small sweep goes to its points (:mod:`kernelsight.kernels.nearby`). Their length and noise
are those with the least leave-one-out error (Rasmussen and Williams 2006, section 5.4.2). A family with more than
MOST_POINTS points has none: its network alone is as good, and a pack stays small. Points are stored in float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.fitting.correction import (
    MOST_STEPS,
    TEACHERS,
    WIDE,
    Fit,
    Student,
    as_stored,
    correction_rows,
    fit_correction,
)
from kernelsight.fitting.expressions import predict_family, read_rows
from kernelsight.fitting.pack_rows import correction_arrays, nearby_rows
from kernelsight.fitting.splits import LAYERS, site_names
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features, names_of
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.latency_model import LatencyModel
from kernelsight.kernels.nearby import Nearby, correlation, nearby_delta, nearby_of
from kernelsight.kernels.network import correction, network_of, scaled

# most rows of other GPUs, whose shapes the student sees, and of the GPU itself
OTHER_ROWS = 30_000
OWN_ROWS = 60_000
# matrix products are predicted by the million: a network of a third of the work, trained four times as long, raises
# their median error on L40S and H100 by 0.1 points; that of attention would rise by 0.3 to 0.5
STUDENTS = {"gemm": Student((40, 20), 48_000)}
# with at most FEW_ROWS rows a share of the network's correction is applied, and points correct the rest: the median
# error at other sites fell by 3 to 10 % of itself in six cells of 120 to 335 rows (H100, H200, L40S), and rose in one
# of 540
FEW_ROWS, SHARE_OF_FEW = 400, 0.75
MOST_POINTS = 3000
# most points of one kernel by which length and noise are chosen
CHOOSING = 800
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
# standard deviation of repeated measurements over that of the residual
NOISES = (0.05, 0.2, 0.5, 1.0)
# fewest layers with which whole layers are held out: rows of one layer say nothing of another
FEWEST_LAYERS = 2


class Measured(NamedTuple):
    """A fitted correction with its rows: the expression's latency in us, log(measured / expression), and the kernel."""

    fit: Fit
    nearby: dict[str, Nearby]
    latency_us: np.ndarray
    log_ratio: np.ndarray
    kernels: list[str]


def fit_measured(
    family: str,
    latency_model: LatencyModel,
    table: pa.Table,
    target: str,
    coefficients: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    effort: float = MOST_STEPS,
) -> Measured:
    """Fit the correction of GPU ``target``, on top of constants, to training rows of it and of other GPUs.

    ``effort``: see :func:`kernelsight.fitting.correction.fit_correction`.
    """
    is_target = np.asarray(pc.equal(table["gpu"], target))
    own, others = _spaced(np.flatnonzero(is_target), OWN_ROWS), _spaced(np.flatnonzero(~is_target), OTHER_ROWS)
    table = table.take(pa.array(np.sort(np.concatenate([own, others]))))
    base = predict_family(family, latency_model, table, coefficients, implementations, gpus, fabrics)
    log_ratio = np.log(table["latency_us"].to_numpy() / base)
    kernels = kernels_of(table)
    row_features = features_of(family, latency_model, table, implementations, gpus, fabrics)
    fit = fit_correction(
        row_features,
        log_ratio,
        kernels,
        table["gpu"].to_pylist(),
        target,
        # predictions are for models without measurements, not for another parallel split of a measured one
        site_names(family, table, whole_layers=True)[1],
        _matter(family),
        effort,
        STUDENTS.get(family, WIDE),
        FEWEST_LAYERS if family in LAYERS else 2 * TEACHERS,
    )
    target_rows = np.flatnonzero(np.asarray(pc.equal(table["gpu"], target)))
    kernels = [kernels[row] for row in target_rows]
    nearby = {}
    if target_rows.size <= FEW_ROWS:
        fit = fit._replace(network=fit.network._replace(strength=SHARE_OF_FEW * fit.network.strength))
    if target_rows.size <= MOST_POINTS:
        network, inputs = as_stored(fit.network), row_features[target_rows]
        residual = log_ratio[target_rows] - correction(np, inputs, nodes_at(kernels, fit.nodes), network)
        nearby = fit_nearby(scaled(inputs, network), residual, kernels)
    return Measured(fit, nearby, base[target_rows], log_ratio[target_rows], kernels)


def fit_nearby(inputs: np.ndarray, residual: np.ndarray, kernels: Sequence[str]) -> dict[str, Nearby]:
    """Fit the points of each kernel; none with more than MOST_POINTS rows in all, or fewer than 3 points of a kernel.

    ``inputs``: (rows, F) scaled features; ``residual``: (rows,), log(measured / predicted); ``kernels``: of each row.
    Deterministic. Repeated rows are one point, at the mean of their residuals.
    """
    if residual.size > MOST_POINTS:
        return {}
    names = np.asarray(kernels)
    fit_of_kernel = {
        name: _fit_kernel(inputs[names == name], residual[names == name]) for name in np.unique(names).tolist()
    }
    return {name: nearby for name, nearby in fit_of_kernel.items() if nearby is not None}


def _fit_kernel(inputs: np.ndarray, residual: np.ndarray) -> Nearby | None:
    points, point_of_row = np.unique(np.asarray(inputs, np.float16).astype(float), axis=0, return_inverse=True)
    count = np.bincount(point_of_row.ravel())
    residual = np.bincount(point_of_row.ravel(), residual) / count
    if residual.size < 3:
        return None
    chosen = np.unique(np.linspace(0, residual.size - 1, min(residual.size, CHOOSING)).round().astype(int))
    tried = [
        (_leave_one_out_error(points[chosen], residual[chosen], count[chosen], length, noise), length, noise)
        for length in LENGTHS
        for noise in NOISES
    ]
    _, length, noise = min(tried)
    weights = np.linalg.solve(_covariance(points, count, length, noise), residual)
    return Nearby(points, weights, length)


def _leave_one_out_error(
    points: np.ndarray, residual: np.ndarray, count: np.ndarray, length: float, noise: float
) -> float:
    """Return the mean absolute error at each point, predicted by the others."""
    inverse = np.linalg.inv(_covariance(points, count, length, noise))
    return float(np.abs(inverse @ residual / np.diag(inverse)).mean())


def _covariance(points: np.ndarray, count: np.ndarray, length: float, noise: float) -> np.ndarray:
    return correlation(points, points, length) + np.diag(noise**2 / count)


def correct(
    family: str,
    latency_model: LatencyModel,
    table: pa.Table,
    latency_us: np.ndarray,
    rows: list[dict],
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
) -> np.ndarray:
    """Return ``latency_us`` of the table's rows, all of one measured GPU, corrected by the fit in pack ``rows``."""
    network, nodes = network_of(row for row in rows if row["part"] == "correction")
    nearby = nearby_of([row for row in rows if row["part"] == "nearby"])
    kernels = kernels_of(table)
    node = nodes_at(kernels, nodes)
    corrected_us = np.empty(latency_us.size)
    row_features = features_of(family, latency_model, table, implementations, gpus, fabrics)
    for first in range(0, corrected_us.size, 65_536):
        block = slice(first, first + 65_536)
        corrected_us[block] = latency_us[block] * np.exp(correction(np, row_features[block], node[block], network))
    return corrected_us * np.exp(nearby_delta(scaled(row_features, network), kernels, nearby))


def rows_of(family: str, target: str, own: Measured) -> list[dict]:
    """Return a GPU's correction, with the points of a small sweep, as ``eta_coefficients`` rows."""
    source = f"fitted to the sweep of {target}"
    return [
        *correction_arrays(correction_rows(family, target, own.fit, source)),
        *nearby_rows(family, target, own.nearby, source),
    ]


def nodes_at(kernels: Sequence[str], nodes: Sequence[str]) -> np.ndarray:
    """Return the index of each kernel among a network's nodes, -1 where the sweep did not run it."""
    node_number = {node: number for number, node in enumerate(nodes)}
    return np.array([node_number.get(kernel, -1) for kernel in kernels], dtype=int)


def features_of(
    family: str,
    latency_model: LatencyModel,
    table: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
) -> np.ndarray:
    """Return the features of training rows that a correction reads, shape (rows, F)."""
    rows = read_rows(latency_model, table, family_facts(family, implementations, gpus), gpus, fabrics)
    return features(np, family, latency_model.view(np, rows.call), rows.gpu)


def kernels_of(table: pa.Table) -> list[str]:
    """Return the kernel of each row, "engine|implementation|dtype"."""
    names = (table[name].to_pylist() for name in ("engine", "implementation", "dtype"))
    return ["|".join(words) for words in zip(*names, strict=True)]


def has_correction(family: str) -> bool:
    """Return whether a family has features, so that a correction can be fitted."""
    return bool(FAMILIES[family].features.sizes)


def _matter(family: str) -> np.ndarray:
    """Return (F,): 1 for features in a call's distance from the sweep, sizes and flags; 0 for rounding to tiles."""
    family_features = FAMILIES[family].features
    count = len(family_features.sizes) + len(family_features.flags)
    return (np.arange(len(names_of(family))) < count).astype(float)


def _spaced(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most ``most`` of the rows, evenly spaced in their order, which is by key."""
    return rows if rows.size <= most else rows[np.linspace(0, rows.size - 1, most).round().astype(int)]
