"""Tables of kernel-model evaluations on other GPUs: requested rows to reports and scores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from kernelsight import laboratory
from kernelsight.dataflow.python_nodes import produces
from kernelsight.evaluation.kernels import predict
from kernelsight.evaluation.kernels.evaluate import evaluate
from kernelsight.evaluation.kernels.kernel_scores import score_rows
from kernelsight.fitting.splits import Split
from kernelsight.kernels.families import FAMILIES
from kernelsight.scenario.stated_flags import object_text

TABLES = ("kernel_evaluation_reports", "kernel_scores")


class PointBudget(NamedTuple):
    """Number of points that are measured of each kernel, and how they are chosen: "planned" or "random"."""

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
        predict.fit_and_predict,
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
