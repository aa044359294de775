"""Fit families on some measured rows and predict others: what an evaluation scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.held_out import growths, held_out_errors
from kernelsight.fitting.intervals import fit_intervals
from kernelsight.fitting.measured import correct, fit_measured, has_correction, kernels_of, rows_of
from kernelsight.fitting.vendors import by_vendor, vendor_form
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.intervals import group_of, half_widths_for, spread
from kernelsight.kernels.latency_model import Form
from kernelsight.kernels.pack import default_pack, pack_table
from kernelsight.kernels.resolve import rows_of_part


def fit_and_predict(
    train: Mapping[str, pa.Table], test: Mapping[str, pa.Table], tier: str
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (latency_us, p05_us, p95_us) of the test rows of each family, fitted on the training rows alone.

    ``tier``: with target-measured, what the training rows hold of a test GPU counts as its own. Each vendor is fitted
    apart; rows of one without training rows have no prediction.
    """
    gpus = facts("gpus")
    predictions = {}
    for family, rows in test.items():
        parts = [np.full(rows.num_rows, np.nan) for _ in range(3)]
        taught_by = by_vendor(train[family], gpus)
        for vendor, mine in by_vendor(rows, gpus).items():
            if vendor not in taught_by:
                continue
            taught = train[family].filter(pa.array(taught_by[vendor]))
            pack_constants = rows_of_part(default_pack(), family, "constant").to_pylist() if vendor else []
            form = vendor_form(family, FAMILIES[family].form, vendor, taught.num_rows, pack_constants)
            answer = _fitted(family, form, taught, rows.filter(pa.array(mine)), tier)
            for part, values in zip(parts, answer, strict=True):
                part[mine] = values
        predictions[family] = (parts[0], parts[1], parts[2])
    return predictions


def _fitted(
    family: str, form: Form, taught: pa.Table, rows: pa.Table, tier: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit a family to the rows of one vendor, and return (latency_us, p05_us, p95_us) of others of it."""
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    constants = pack_table(fit_family(family, form, taught, *tables, "evaluation"))
    measured = tier == "target-measured"
    latency = predict_family(family, form, rows, constants, *tables, measured=measured)
    factor = np.empty(latency.size)
    measured_gpus = set(pc.unique(taught["gpu"]).to_pylist()) if measured and has_correction(family) else set()
    rest = np.asarray(pc.invert(pc.is_in(rows["gpu"], pa.array(sorted(measured_gpus), pa.string()))))
    if rest.any():
        factor[rest] = _held_out_factor(family, form, taught, rows.filter(pa.array(rest)), latency[rest], tables)
    for gpu in sorted(measured_gpus & set(pc.unique(rows["gpu"]).to_pylist())):
        gpu_fit = fit_measured(family, form, taught, gpu, constants, *tables)
        mine = np.asarray(pc.equal(rows["gpu"], gpu))
        of_gpu = rows.filter(pa.array(mine))
        latency[mine] = correct(family, form, of_gpu, latency[mine], rows_of(family, gpu, gpu_fit), *tables)
        curves = fit_intervals(gpu_fit.fit.unseen_error, gpu_fit.latency_us, gpu_fit.kernels)
        factor[mine] = _factor(curves, kernels_of(of_gpu), latency[mine])
    return latency, latency / factor, latency * factor


def _held_out_factor(
    family: str, form: Form, taught: pa.Table, rows: pa.Table, latency_us: np.ndarray, tables: tuple[pa.Table, ...]
) -> np.ndarray:
    errors = held_out_errors(family, form, taught, *tables)
    curves = fit_intervals(errors.log_error, errors.latency_us, errors.groups, errors.folds)
    taught_kernels = set(pc.unique(taught["implementation"]).to_pylist())
    words = zip(rows["dtype"].to_pylist(), rows["implementation"].to_pylist(), strict=True)
    wider = growths(family, rows, taught, *tables[1:])
    return _factor(curves, [group_of(dtype, kernel in taught_kernels) for dtype, kernel in words], latency_us, wider)


def _factor(
    curves: Mapping[str, np.ndarray], groups: Sequence[str], latency_us: np.ndarray, wider: Any = 1.0
) -> np.ndarray:
    names, group_of_row = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    halves = half_widths_for(curves, names.tolist())[group_of_row]
    return spread(np, latency_us, halves * np.reshape(wider, (-1, 1)))
