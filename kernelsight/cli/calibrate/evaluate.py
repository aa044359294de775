"""`kernelsight calibrate evaluate`: fits on some GPUs, scores on others, with baselines; or scores newer versions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import add_output, add_sweeps
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.kernels.scores import COLUMNS, score_rows
from kernelsight.fitting.splits import HEADLINE_TRAIN, SITES_OF_A_GOAL, Split
from kernelsight.number_format import number

if TYPE_CHECKING:
    from kernelsight.evaluation.kernels.few_shot import PointBudget


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_sweeps(verb, "GPUs to fit on (default: a100_sxm,l40s,h100_sxm,h200_sxm)")
    verb.add_argument("--test-gpus", metavar="C", help="GPUs to predict and score (with --test-versions: default all)")
    verb.add_argument(
        "--tier",
        choices=("cross-generation", "target-measured"),
        help="kernel latency model to score (default: cross-generation; target-measured with --budget or --points)",
    )
    verb.add_argument(
        "--budget",
        type=float,
        metavar="SHARE",
        help="share of the test GPU's sites (distinct kernel shapes) used as measurements",
    )
    points = verb.add_mutually_exclusive_group()
    points.add_argument(
        "--points",
        type=int,
        metavar="K",
        help="measure K planned points of each kernel of the test GPU instead of a share of its sites, and score the "
        "other calls",
    )
    points.add_argument("--random-points", type=int, metavar="K", help="the same with points drawn at random")
    verb.add_argument(
        "--whole-layers",
        action="store_true",
        help="with --budget: measure or hold out a layer of experts at all of its parallel splits together",
    )
    verb.add_argument(
        "--test-versions",
        metavar="V",
        help="score engine versions that the sweeps of --train lack: new (all of them) or engine:version,...",
    )
    verb.add_argument("--train", nargs="+", metavar="S", help="sweeps of the older versions, for --test-versions")
    verb.add_argument("--pack", metavar="FILE", help="kernel model to score with --test-versions (default: as shipped)")
    verb.add_argument("--final", action="store_true", help="also score the GPUs held out for the final evaluation")
    add_output(
        verb, "also write the report (.json), its scores (.csv, .parquet), or the evaluation with its tables (.duckdb)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Evaluate the kernel model, and print the report as JSON or its scores as a table or CSV."""
    from kernelsight.present.output import check_ending

    target = check_ending(arguments.output)
    if arguments.test_versions or arguments.train:
        _evaluate_versions(arguments, target)
    else:
        _evaluate_gpus(arguments, target)


def _evaluate_gpus(arguments: argparse.Namespace, target: Path | None) -> None:
    """Fit on some GPUs and score on others."""
    from kernelsight.evaluation.kernels.baselines import systems_folder
    from kernelsight.evaluation.kernels.evaluations import row_of_split
    from kernelsight.present.output import note

    split = split_of(arguments)
    options = {"sweeps": list(arguments.sweep), "final": arguments.final}
    options["families"] = list(_names(arguments.families)) or None
    report = _report("kernel_evaluations", row_of_split(split, points_of(arguments), **options), target)
    if systems_folder() is None:
        note("aiconfigurator-core is not installed: baselines use the peak rates of the table gpus.")
    if split.budget:
        note(f"families with fewer than {SITES_OF_A_GOAL} sites are reported, but not part of this tier's goals.")
    show(report, score_rows(report), COLUMNS, arguments.format, target)
    if arguments.format != "json":
        for rejected in report["rejected"]:
            note(f"rejected {number(rejected['n'])}: {rejected['reason']}")


def _evaluate_versions(arguments: argparse.Namespace, target: Path | None) -> None:
    """Score a fitted kernel model on newer engine versions."""
    from kernelsight.evaluation.kernels.versions import COLUMNS as VERSION_COLUMNS
    from kernelsight.evaluation.kernels.versions import NEW
    from kernelsight.present.output import note

    if not arguments.test_versions or not arguments.train:
        raise InvalidInput("--test-versions and --train belong together: versions to score, and sweeps without them.")
    split_arguments = (arguments.tier, arguments.budget, arguments.train_gpus, arguments.final, arguments.whole_layers)
    if any(split_arguments) or points_of(arguments):
        raise InvalidInput(
            "--test-versions scores a fitted model; "
            "leave out --tier, --budget, --points, --whole-layers, --train-gpus and --final."
        )
    versions = "" if arguments.test_versions == NEW else arguments.test_versions
    row = {"evaluation_id": "asked", "sweeps": list(arguments.sweep), "train_sweeps": list(arguments.train)}
    row |= {"versions": list(_names(versions)) or None, "pack": arguments.pack}
    row |= {"gpus": list(_names(arguments.test_gpus)) or None, "families": list(_names(arguments.families)) or None}
    report = _report("version_evaluations", row, target)
    show(report, report["rows"], VERSION_COLUMNS, arguments.format, target)
    if arguments.format != "json":
        note(f"engine_version_used: {', '.join(report['engine_version_used'])}")


def _report(question: str, row: dict[str, Any], target: Path | None) -> dict[str, Any]:
    """Return the report on one row of ``question``, a table of evaluations; a .duckdb target stores all its tables."""
    from kernelsight.evaluation.kernels.evaluations import TABLES
    from kernelsight.session import connect

    reports, scores = TABLES[question]
    with connect() as session:
        session.give(question, [row])
        report = json.loads(session.table(reports)["report"][0].as_py())
        if target and target.suffix == ".duckdb":
            session.save(target, [question, reports, scores])
    return report


def split_of(arguments: Any) -> Split:
    """Return the split selected by the flags; InvalidInput: budget and tier contradict each other."""
    budget, tier = arguments.budget, arguments.tier
    if budget is not None and not 0.0 < budget < 1.0:
        raise InvalidInput(f"--budget is {budget:g}; give a share of the sites between 0 and 1, such as 0.05.")
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
    train = _names(arguments.train_gpus) or HEADLINE_TRAIN
    if arguments.test_gpus is None:
        raise InvalidInput("calibrate evaluate needs --test-gpus, the GPUs to score, or --test-versions.")
    test = _names(arguments.test_gpus)
    if not test:
        raise InvalidInput("--test-gpus is empty; name at least one GPU of the sweep.")
    if arguments.whole_layers and not budget:
        raise InvalidInput("--whole-layers says which sites are measured together; give the share of them by --budget.")
    tier = "target-measured" if budget else "points-measured" if points else "cross-generation"
    return Split("asked", train, test, tier, budget or 0.0, arguments.whole_layers)


def points_of(arguments: Any) -> PointBudget | None:
    """Return the budget of points that the flags set, or None; InvalidInput: fewer than one point."""
    from kernelsight.evaluation.kernels.few_shot import PointBudget

    for how in ("planned", "random"):
        points = arguments.points if how == "planned" else arguments.random_points
        if points is not None and points < 1:
            flag = "--points" if how == "planned" else "--random-points"
            raise InvalidInput(f"{flag} is {points}; give the points of each kernel, such as 3.")
        if points:
            return PointBudget(points, how)
    return None


def _names(words: str | None) -> tuple[str, ...]:
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
