"""``kernelsight calibrate evaluate``: fit on some GPUs, score on others, next to baselines; or score newer versions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import add_output, add_sweeps
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.kernels.scores import COLUMNS, score_rows
from kernelsight.fitting.splits import HEADLINE_TRAIN, SITES_OF_A_GOAL, Split

if TYPE_CHECKING:
    from kernelsight.evaluation.kernels.points import Asked


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
    """Evaluate, and print the report as JSON or its scores as a table or CSV."""
    from kernelsight.evaluation.kernels.baselines import systems_folder
    from kernelsight.evaluation.kernels.evaluations import TABLES, row_of_split
    from kernelsight.present.output import check_ending, note
    from kernelsight.session import connect

    target = check_ending(arguments.output)
    if arguments.test_versions or arguments.train:
        _score_versions(arguments, [Path(name) for name in arguments.sweep], target)
        return
    split = split_of(arguments)
    others = {"sweeps": list(arguments.sweep), "final": arguments.final}
    others["families"] = list(_names(arguments.families)) if arguments.families else None
    with connect() as session:
        session.give("kernel_evaluations", [row_of_split(split, points_of(arguments), **others)])
        result = json.loads(session.table("kernel_evaluation_reports")["report"][0].as_py())
        if target and target.suffix == ".duckdb":
            session.save(target, ["kernel_evaluations", *TABLES])
    if systems_folder() is None:
        note("aiconfigurator-core is not installed: baselines use the peak rates of the table gpus.")
    if split.budget:
        note(f"families with fewer than {SITES_OF_A_GOAL} sites are reported, but not part of this tier's goals.")
    show(result, arguments.format, None if target and target.suffix == ".duckdb" else target)


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
    train = _names(arguments.train_gpus or "") or HEADLINE_TRAIN
    if arguments.test_gpus is None:
        raise InvalidInput("calibrate evaluate needs --test-gpus, the GPUs to score, or --test-versions.")
    test = _names(arguments.test_gpus)
    if not test:
        raise InvalidInput("--test-gpus is empty; name at least one GPU of the sweep.")
    if arguments.whole_layers and not budget:
        raise InvalidInput("--whole-layers says which sites are measured together; give the share of them by --budget.")
    tier = "target-measured" if budget else "points-measured" if points else "cross-generation"
    return Split("asked", train, test, tier, budget or 0.0, arguments.whole_layers)


def points_of(arguments: Any) -> Asked | None:
    """Return the points selected by the flags, None where there are none; InvalidInput: fewer than one."""
    from kernelsight.evaluation.kernels.points import Asked

    for how in ("planned", "random"):
        stated = arguments.points if how == "planned" else arguments.random_points
        if stated is not None and stated < 1:
            flag = "--points" if how == "planned" else "--random-points"
            raise InvalidInput(f"{flag} is {stated}; give the points of each kernel, such as 3.")
        if stated:
            return Asked(stated, how)
    return None


def _score_versions(arguments: Any, sweeps: list[Path], target: Path | None) -> None:
    """Score a fitted kernel model on newer engine versions, and print the scores."""
    from kernelsight.evaluation.kernels import versions
    from kernelsight.fitting.sweep_files import check_sweeps
    from kernelsight.kernels.pack import default_pack, read_pack
    from kernelsight.present.output import as_json, note, print_rows, write_table, write_text

    if not arguments.test_versions or not arguments.train:
        raise InvalidInput("--test-versions and --train belong together: versions to score, and sweeps without them.")
    if (
        arguments.tier
        or arguments.budget
        or points_of(arguments)
        or arguments.train_gpus
        or arguments.final
        or arguments.whole_layers
    ):
        raise InvalidInput(
            "--test-versions scores a fitted model; "
            "leave out --tier, --budget, --points, --whole-layers, --train-gpus and --final."
        )
    if target and target.suffix == ".duckdb":
        raise InvalidInput("--test-versions writes .json, .csv or .parquet; give such a file with -o.")
    old = [Path(name) for name in arguments.train]
    check_sweeps([*sweeps, *old])
    asked = () if arguments.test_versions == versions.NEW else _names(arguments.test_versions)
    pack = read_pack(Path(arguments.pack)) if arguments.pack else default_pack()
    gpus, families = (_names(stated or "") for stated in (arguments.test_gpus, arguments.families))
    scored = list(versions.scored_versions(old, sweeps, pack, asked=asked, gpus=gpus, families=families))
    if not scored:
        raise InvalidInput("no measured GPU has rows of those versions; give other --test-gpus or --families.")
    rows = versions.version_scores(scored)
    used = [":".join(pair) for pair in versions.new_versions(old, sweeps, asked)]
    text = as_json({"engine_version_used": used, "rows": rows})
    if arguments.format == "json":
        print(text)
    else:
        print_rows(rows, list(versions.COLUMNS), arguments.format)
        note(f"engine_version_used: {', '.join(used)}")
    if target and target.suffix == ".json":
        write_text(text + "\n", target)
    elif target:
        import pyarrow as pa

        write_table(pa.Table.from_pylist(rows), target)


def _names(words: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))


def show(result: Mapping[str, Any], form: str, target: Path | None) -> None:
    """Print the report, and write it to a file: .json in full, .csv and .parquet only the scores."""
    import pyarrow as pa

    from kernelsight.present.output import as_json, note, print_rows, write_table, write_text

    rows = score_rows(result)
    if form == "json":
        print(as_json(result))
    else:
        print_rows(rows, list(COLUMNS), form)
        for rejected in result["rejected"]:
            note(f"rejected {rejected['n']:,}: {rejected['reason']}")
    if target and target.suffix == ".json":
        write_text(as_json(result) + "\n", target)
    elif target:
        write_table(pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows]), target)
