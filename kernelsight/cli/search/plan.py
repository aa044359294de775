"""`kernelsight search plan`: plans which few shapes to measure to choose implementations well at all others."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import open_session
from kernelsight.cli.search.choose import question
from kernelsight.errors import InvalidInput

SHOWN = ("dtype", "engine", "implementation", "shapes", "measured_as")


def run(arguments: argparse.Namespace) -> None:
    """Plan, write the suite or the list, and print the shapes to measure by implementation."""
    from kernelsight.choices.choices import choice_of_question
    from kernelsight.choices.shapes_to_measure import budget_of, plan, planned_rows, suite_of_plan
    from kernelsight.dataflow.blas import one_blas_thread
    from kernelsight.present.output import as_json, check_ending, note, print_rows, write_table, write_text
    from kernelsight.present.progress import Waiting

    target = check_ending(arguments.output, (".json", ".parquet", ".csv"))
    if target is None:
        raise InvalidInput("search plan needs -o FILE: .json for a suite of `calibrate measure`, .parquet for a list.")
    with open_session(arguments) as session, Waiting("planning"), one_blas_thread():
        choice = choice_of_question(question(arguments), session.table("gpus"))
        rows = planned_rows(choice, plan(choice, budget_of(choice, arguments.budget)).tolist())
    if not rows.height:
        raise InvalidInput(
            f"--budget {arguments.budget:g} of the shapes is measured already; raise it, or use `search choose` now."
        )
    if target.suffix == ".json":
        write_text(as_json(suite_of_plan(choice, rows, target.stem)) + "\n", target)
    else:
        write_table(rows.to_arrow(), target)
    shown = rows.group_by(["dtype", "engine", "implementation", "measured_as"]).len("shapes")
    shown = shown.sort(["dtype", "engine", "implementation"]).select(SHOWN)
    print_rows(shown.to_dicts(), list(SHOWN), arguments.format)
    note(f"{rows['place'].max():,} shapes of {choice.family} to measure on {choice.gpu} next; written to {target}")
    unable = sorted(rows.filter(rows["measured_as"].is_null())["implementation"].unique().to_list())
    if unable:
        note(f"`calibrate measure` cannot run {', '.join(unable)}; measure these with the engine's own collector")
