"""`kernelsight calibrate evaluate`: fits on some GPUs, scores on others, with baselines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight import laboratory
from kernelsight.catalog.gpu_names import plain_gpus
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.kernels.kernel_scores import COLUMNS, score_rows
from kernelsight.files.own import own_json
from kernelsight.fitting.splits import HEADLINE_TRAIN, SITES_OF_A_GOAL, Split
from kernelsight.number_format import number

if TYPE_CHECKING:
    from kernelsight.evaluation.kernels.predict import PointBudget


def run(arguments: argparse.Namespace) -> None:
    """Evaluate the kernel model, and print the report as JSON or its scores as a table or CSV."""
    from kernelsight.present.output import check_ending

    target = check_ending(arguments.output)
    if arguments.test_versions or arguments.train:
        versions = laboratory.part("cli.evaluate_versions", "--test-versions")
        show(*versions.evaluate_versions(arguments), arguments.format, target)
    else:
        _evaluate_gpus(arguments, target)


def _evaluate_gpus(arguments: argparse.Namespace, target: Path | None) -> None:
    """Fit on some GPUs and score on others."""
    from kernelsight.cli.calibrate.import_sweeps import sweep_paths
    from kernelsight.evaluation.kernels.predict import row_of_split
    from kernelsight.present.output import note

    split = split_of(arguments)
    options = {"sweeps": list(map(str, sweep_paths(arguments.sweep))), "final": arguments.final}
    options["families"] = list(names_of(arguments.families)) or None
    report = _report(row_of_split(split, points_of(arguments), **options), target)
    if laboratory.is_here() and laboratory.part("kernels.baselines", "a baseline").systems_folder() is None:
        note("aiconfigurator-core is not installed: baselines use the peak rates of the table gpus.")
    if split.budget:
        note(f"families with fewer than {SITES_OF_A_GOAL} sites are reported, but not part of this tier's goals.")
    show(report, score_rows(report), COLUMNS, arguments.format, target)
    if arguments.format != "json":
        for rejected in report["rejected"]:
            note(f"rejected {number(rejected['n'])}: {rejected['reason']}")


def _report(row: dict[str, Any], target: Path | None) -> dict[str, Any]:
    """Return the report on one row of ``kernel_evaluations``; a .duckdb target stores all its tables."""
    from kernelsight.evaluation.kernels.predict import TABLES
    from kernelsight.session import connect

    with connect() as session:
        session.give("kernel_evaluations", [row])
        report = own_json(session.table(TABLES[0])["report"][0].as_py())
        if target and target.suffix == ".duckdb":
            session.save(target, ["kernel_evaluations", *TABLES])
    return report


def split_of(arguments: Any) -> Split:
    """Return the split selected by the flags; InvalidInput: budget and tier contradict each other."""
    budget, tier = arguments.budget, arguments.tier
    if tier == "cross-generation" and budget:
        raise InvalidInput("--budget cannot be used with --tier cross-generation, which has no test-GPU measurements.")
    if points := points_of(arguments):
        if budget or tier == "cross-generation" or arguments.whole_layers:
            raise InvalidInput(
                "--points measures calls of the test GPU in place of sites; leave out --budget, --whole-layers and "
                "--tier cross-generation."
            )
    elif tier == "target-measured" and not budget:
        budget = 0.05
    train = plain_gpus(arguments.train_gpus) or HEADLINE_TRAIN
    if arguments.test_gpus is None:
        raise InvalidInput("calibrate evaluate needs --test-gpus, the GPUs to score.")
    test = plain_gpus(arguments.test_gpus)
    if not test:
        raise InvalidInput("--test-gpus is empty; name at least one GPU of the sweep.")
    if arguments.whole_layers and not budget:
        raise InvalidInput("--whole-layers says which sites are measured together; give the share of them by --budget.")
    tier = "target-measured" if budget else "points-measured" if points else "cross-generation"
    return Split("asked", train, test, tier, budget or 0.0, arguments.whole_layers)


def points_of(arguments: Any) -> PointBudget | None:
    """Return the budget of points that the flags set, or None; InvalidInput: fewer than one point."""
    from kernelsight.evaluation.kernels.predict import PointBudget

    if arguments.points is not None and arguments.random_points is not None:
        raise InvalidInput("--points plans what to measure and --random-points draws it; give one of them.")
    for how in ("planned", "random"):
        points = arguments.points if how == "planned" else arguments.random_points
        if points is not None and points < 1:
            flag = "--points" if how == "planned" else "--random-points"
            raise InvalidInput(f"{flag} is {points}; give the points of each kernel, such as 3.")
        if points:
            return PointBudget(points, how)
    return None


def names_of(words: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in (words or "").split(",") if word.strip()))


def show(
    report: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    form: str,
    target: Path | None,
) -> None:
    """Print the report or its scores, and write it to a file: .json in full, .csv and .parquet only the scores."""
    import pyarrow as pa

    from kernelsight.present.output import as_json, print_rows, write_table, write_text

    if form == "json":
        print(as_json(report))
    else:
        print_rows(rows, list(columns), form)
    if target and target.suffix == ".json":
        write_text(as_json(report) + "\n", target)
    elif target and target.suffix != ".duckdb":
        write_table(pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows]), target)
