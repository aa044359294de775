"""Evaluations of the kernel model on other GPUs: fit and predict by family, and the tables of requested rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight import laboratory
from kernelsight.catalog.tables import facts
from kernelsight.dataflow.python_nodes import produces
from kernelsight.evaluation.kernels.evaluate import evaluate
from kernelsight.evaluation.kernels.kernel_scores import score_rows
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.half_widths import fit_intervals
from kernelsight.fitting.held_out import growths, held_out_errors
from kernelsight.fitting.measured import correct, fit_measured, has_correction, kernels_of, rows_of
from kernelsight.fitting.splits import Split
from kernelsight.fitting.vendors import by_vendor, vendor_latency_model
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.intervals import group_of, half_widths_for, spread
from kernelsight.kernels.kernel_constants import rows_of_part
from kernelsight.kernels.latency_model import LatencyModel
from kernelsight.kernels.pack import default_pack, pack_table
from kernelsight.scenario.stated_flags import object_text

TABLES = ("kernel_evaluation_reports", "kernel_scores")


class PointBudget(NamedTuple):
    """Number of points that are measured of each kernel, and how they are chosen: "planned" or "random".

    "family": one call of each family instead, of collectives one of each number of GPUs.
    """

    per_kernel: int
    how: str = "planned"


def row_of_split(split: Split, points: PointBudget | None, **others: Any) -> dict[str, Any]:
    """Return a row of ``kernel_evaluations``; ``others``: its columns sweeps, families and final."""
    return {
        "evaluation_id": split.name,
        "train_gpus": list(split.train_gpus),
        "test_gpus": list(split.test_gpus),
        "tier": split.tier,
        "budget": split.budget or None,
        "whole_layers": split.whole_layers,
        "points": points and points.per_kernel,
        "point_choice": points and points.how,
        **others,
    }


@produces("kernel_evaluation_reports", "kernel_scores")
def evaluation_tables(kernel_evaluations: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Fit kernel models on some GPUs, and score them and baselines on others: reports and scores.

    InvalidInput, UnknownName: an evaluation that cannot be made, as ``evaluate`` says.
    """
    reports, scores = [], []
    for row in kernel_evaluations.to_pylist():
        key = {"evaluation_id": row["evaluation_id"]}
        report = _gpu_report(row)
        reports.append(key | {"report": object_text(report)})
        scores += [key | score for score in score_rows(report)]
    return {"kernel_evaluation_reports": reports, "kernel_scores": scores}


def _gpu_report(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of one row of ``kernel_evaluations``."""
    gpus = tuple(row["train_gpus"]), tuple(row["test_gpus"])
    split = Split(row["evaluation_id"], *gpus, row["tier"], row["budget"] or 0.0, bool(row["whole_layers"]))
    points = PointBudget(row["points"], row["point_choice"] or "planned") if row["points"] else None
    after_points = laboratory.part("kernels.scored_points", "--points").rows_after_points if points else None
    others = laboratory.part("kernels.baselines", "a baseline") if laboratory.is_here() else None
    result, _ = evaluate(
        [Path(name) for name in row["sweeps"]],
        split,
        fit_and_predict,
        modelled=FAMILIES,
        families=row["families"],
        final=bool(row["final"]),
        baselines=others.shipped_baselines() if others else None,
        score_rows=partial(after_points, points) if after_points else None,
    )
    if others:
        floors = laboratory.part("kernels.remeasurement", "a remeasurement")
        result["remeasurement"] = floors.remeasurement_floors([Path(name) for name in row["sweeps"]], gpus[1])
    return result


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
