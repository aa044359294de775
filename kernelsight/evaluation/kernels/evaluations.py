"""Tables of kernel-model evaluations on other GPUs or newer engine versions: requested rows to reports and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.rows import as_table
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.kernels import predict
from kernelsight.evaluation.kernels.baselines import systems_folder
from kernelsight.evaluation.kernels.evaluate import evaluate
from kernelsight.evaluation.kernels.few_shot import PointBudget, rows_after_points
from kernelsight.evaluation.kernels.scores import score_rows
from kernelsight.evaluation.kernels.versions import new_versions, scored_versions, version_scores
from kernelsight.fitting.splits import Split
from kernelsight.fitting.sweep_files import check_sweeps
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.pack import default_pack, read_pack
from kernelsight.scenario.stated_flags import object_text

# tables of reports and scores by table of requested evaluations
TABLES = {
    "kernel_evaluations": ("kernel_evaluation_reports", "kernel_scores"),
    "version_evaluations": ("version_evaluation_reports", "version_scores"),
}


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


def evaluation_tables(evaluations: pa.Table) -> dict[str, pa.Table]:
    """Return ``kernel_evaluation_reports`` and ``kernel_scores`` of rows of ``kernel_evaluations``.

    InvalidInput, UnknownName: an evaluation that cannot be made, as ``evaluate`` says.
    """
    return _tables("kernel_evaluations", evaluations, _gpu_report, score_rows)


def version_tables(evaluations: pa.Table) -> dict[str, pa.Table]:
    """Return ``version_evaluation_reports`` and ``version_scores`` of rows of ``version_evaluations``.

    InvalidInput, UnknownName: as ``evaluation_tables``.
    """
    return _tables("version_evaluations", evaluations, _version_report, itemgetter("rows"))


def _tables(
    question: str,
    evaluations: pa.Table,
    report_of: Callable[[Mapping[str, Any]], dict[str, Any]],
    scores_of: Callable[[Mapping[str, Any]], list[dict[str, Any]]],
) -> dict[str, pa.Table]:
    """Return the tables of reports and scores of the requested evaluations, one report per row."""
    reports, scores = [], []
    for row in evaluations.to_pylist():
        key = {"evaluation_id": row["evaluation_id"]}
        report = report_of(row)
        reports.append(key | {"report": object_text(report)})
        scores += [key | score for score in scores_of(report)]
    names = TABLES[question]
    return {name: as_table(contracts()[name], rows) for name, rows in zip(names, (reports, scores), strict=True)}


def _version_report(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of one row of ``version_evaluations``; InvalidInput: no measured GPU has such rows."""
    sweeps, older = ([Path(name) for name in row[column]] for column in ("sweeps", "train_sweeps"))
    check_sweeps([*sweeps, *older])
    pack = read_pack(Path(row["pack"])) if row["pack"] else default_pack()
    chosen = {name: row[column] or () for name, column in (("versions_chosen", "versions"), ("gpus", "gpus"))}
    scored = list(scored_versions(older, sweeps, pack, **chosen, families=row["families"] or ()))
    if not scored:
        raise InvalidInput("no measured GPU has rows of those versions; give other --test-gpus or --families.")
    used = [":".join(pair) for pair in new_versions(older, sweeps, chosen["versions_chosen"])]
    return {"engine_version_used": used, "rows": version_scores(scored)}


def _gpu_report(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of one row of ``kernel_evaluations``."""
    gpus = tuple(row["train_gpus"]), tuple(row["test_gpus"])
    split = Split(row["evaluation_id"], *gpus, row["tier"], row["budget"] or 0.0, bool(row["whole_layers"]))
    points = PointBudget(row["points"], row["point_choice"] or "planned") if row["points"] else None
    result, _ = evaluate(
        [Path(name) for name in row["sweeps"]],
        split,
        predict.fit_and_predict,
        modelled=FAMILIES,
        families=row["families"],
        final=bool(row["final"]),
        systems=systems_folder(),
        score_rows=partial(rows_after_points, points) if points else None,
    )
    return result
