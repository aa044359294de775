"""Fit and predict of the kernel model, by family: training rows to predictions of test rows, which are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.half_widths import fit_intervals
from kernelsight.fitting.held_out import growths, held_out_errors
from kernelsight.fitting.measured import correct, fit_measured, has_correction, kernels_of, rows_of
from kernelsight.fitting.vendors import by_vendor, vendor_latency_model
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.intervals import group_of, half_widths_for, spread
from kernelsight.kernels.kernel_constants import rows_of_part
from kernelsight.kernels.latency_model import LatencyModel
from kernelsight.kernels.pack import default_pack, pack_table


def fit_and_predict(
    train: Mapping[str, pa.Table], test: Mapping[str, pa.Table], tier: str
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (latency_us, p05_us, p95_us) of the test rows of each family, fitted on the training rows alone.

    ``tier``: with target-measured, training rows of a test GPU correct that GPU's predictions. Each vendor is fitted
    separately; NaN for rows of a vendor without training rows.
    """
    gpus = facts("gpus")
    predictions = {}
    for family, rows in test.items():
        columns = [np.full(rows.num_rows, np.nan) for _ in range(3)]
        training_rows_of = by_vendor(train[family], gpus)
        for vendor, is_vendor in by_vendor(rows, gpus).items():
            if vendor not in training_rows_of:
                continue
            fitted_rows = train[family].filter(pa.array(training_rows_of[vendor]))
            pack_constants = rows_of_part(default_pack(), family, "constant").to_pylist() if vendor else []
            latency_model = vendor_latency_model(
                family, FAMILIES[family].latency_model, vendor, fitted_rows.num_rows, pack_constants
            )
            predicted = _fitted(family, latency_model, fitted_rows, rows.filter(pa.array(is_vendor)), tier)
            for column, values in zip(columns, predicted, strict=True):
                column[is_vendor] = values
        predictions[family] = (columns[0], columns[1], columns[2])
    return predictions


def _fitted(
    family: str, latency_model: LatencyModel, fitted_rows: pa.Table, rows: pa.Table, tier: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (latency_us, p05_us, p95_us) of ``rows`` of one vendor, fitted on others of it; see above."""
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    constants = pack_table(fit_family(family, latency_model, fitted_rows, *tables, "evaluation"))
    measured = tier == "target-measured"
    latency = predict_family(family, latency_model, rows, constants, *tables, measured=measured)
    factor = np.empty(latency.size)
    measured_gpus = set(pc.unique(fitted_rows["gpu"]).to_pylist()) if measured and has_correction(family) else set()
    is_unmeasured = np.asarray(pc.invert(pc.is_in(rows["gpu"], pa.array(sorted(measured_gpus), pa.string()))))
    if is_unmeasured.any():
        factor[is_unmeasured] = _held_out_factor(
            family, latency_model, fitted_rows, rows.filter(pa.array(is_unmeasured)), latency[is_unmeasured], tables
        )
    for gpu in sorted(measured_gpus & set(pc.unique(rows["gpu"]).to_pylist())):
        gpu_fit = fit_measured(family, latency_model, fitted_rows, gpu, constants, *tables)
        is_gpu = np.asarray(pc.equal(rows["gpu"], gpu))
        gpu_rows = rows.filter(pa.array(is_gpu))
        latency[is_gpu] = correct(
            family, latency_model, gpu_rows, latency[is_gpu], rows_of(family, gpu, gpu_fit), *tables
        )
        curves = fit_intervals(gpu_fit.fit.unseen_error, gpu_fit.latency_us, gpu_fit.kernels)
        factor[is_gpu] = _factor(curves, kernels_of(gpu_rows), latency[is_gpu])
    return latency, latency / factor, latency * factor


def _held_out_factor(
    family: str,
    latency_model: LatencyModel,
    fitted_rows: pa.Table,
    rows: pa.Table,
    latency_us: np.ndarray,
    tables: tuple[pa.Table, ...],
) -> np.ndarray:
    """Return factors of p05 and p95 for rows of GPUs that were not fitted on, from errors with generations held out."""
    errors = held_out_errors(family, latency_model, fitted_rows, *tables)
    curves = fit_intervals(errors.log_error, errors.latency_us, errors.groups, errors.folds)
    fitted_kernels = set(pc.unique(fitted_rows["implementation"]).to_pylist())
    dtypes_and_kernels = zip(rows["dtype"].to_pylist(), rows["implementation"].to_pylist(), strict=True)
    wider = growths(family, rows, fitted_rows, *tables[1:])
    return _factor(
        curves, [group_of(dtype, kernel in fitted_kernels) for dtype, kernel in dtypes_and_kernels], latency_us, wider
    )


def _factor(
    curves: Mapping[str, np.ndarray], groups: Sequence[str], latency_us: np.ndarray, wider: Any = 1.0
) -> np.ndarray:
    """Return factors of p05 and p95 for each row; ``curves``: half widths by group, ``wider``: factor on these."""
    names, group_of_row = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    halves = half_widths_for(curves, names.tolist())[group_of_row]
    return spread(np, latency_us, halves * np.reshape(wider, (-1, 1)))
