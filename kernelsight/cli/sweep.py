"""`kernelsight sweep`: simulates a grid of scenarios into one result table; resumable, on one machine or under Ray."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.caches.durable import locked
from kernelsight.cli.options import (
    launch_line,
    open_session,
)
from kernelsight.errors import InvalidInput
from kernelsight.present.output import PAGE_ENDINGS, as_json, check_ending, csv_of, note, print_page, write_table
from kernelsight.present.pages.sweep import sweep_page
from kernelsight.present.progress import Waiting
from kernelsight.present.show import HTML, show
from kernelsight.scenario.corrections import give_corrections
from kernelsight.scenario.flags import OF_LAUNCH
from kernelsight.scenario.grid import open_grid, read_grid
from kernelsight.scenario.objectives import parse_objectives, parse_slo
from kernelsight.scenario.prices import priced, read_prices
from kernelsight.scenario.scenario_rows import gpu_assumptions
from kernelsight.sweeps.blocks import Question, sweep_into
from kernelsight.sweeps.executors import import_ray
from kernelsight.sweeps.parts import Parts, is_uri
from kernelsight.sweeps.runs import SWEEP, WhatIf
from kernelsight.sweeps.sweep import Execution, plan_sweep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelsight.session import Session


def run(arguments: Any) -> None:
    """Simulate the grid or search its highest rates; print and write the rows."""
    place = arguments.output if arguments.output and (is_uri(arguments.output) or arguments.output[-1] == "/") else None
    target = None if place else check_ending(arguments.output, PAGE_ENDINGS)
    _check_words(arguments, target)
    slo = parse_slo(arguments.slo or [])
    goodput = parse_objectives(arguments.goodput or [])
    with locked(target) if target else contextlib.nullcontext(), open_session(arguments) as session:
        session.progress = None
        launch_line(arguments, {})
        base = {name: value for name in OF_LAUNCH if (value := getattr(arguments, name)) is not None}
        if place:
            _into_parts(session, Parts(place), base, Question(goodput, slo, {}), arguments)
            return
        rows = read_grid(session, arguments.grid)
        rows = [{**base, **row} for row in rows]
        for sentence in dict.fromkeys(text for row in rows for text in gpu_assumptions(session, row)):
            note(sentence)
        if arguments.prices:
            rows = priced(session, rows, read_prices(session, arguments.prices))
        if arguments.find_rate:
            _find_rates(session, rows, slo, goodput, arguments, target)
            return
        if arguments.resume and target and target.exists() and not _partitions_folder(target).exists():
            _refuse_another_sweep(session, rows, goodput, target)
            note(f"{target} is finished: nothing is left to resume")
            return
        with Waiting("simulating") as waiting:
            execution = _execution(arguments, target, waiting)
            options = {"goodput": goodput, "slo": slo, "execution": execution, "correction": arguments.correction}
            sweep = WhatIf.of(session, rows, **options)
        if target and target.suffix == ".duckdb":
            sweep.save(target)
        elif target and target.suffix != HTML:
            write_table(sweep.summary, target)
        if execution.folder:
            Parts(execution.folder).remove()
        show(lambda: sweep.page(slo), arguments.format, target, lambda: csv_of(sweep.summary))


def _into_parts(session: Session, parts: Parts, base: Mapping[str, Any], question: Question, arguments: Any) -> None:
    """Simulate a grid into a folder or at a URI, and say what lies there."""
    if arguments.correction:
        give_corrections(session, arguments.correction)
    question = question._replace(prices=read_prices(session, arguments.prices))
    with Waiting("simulating") as waiting:
        grid, execution = open_grid(session, arguments.grid, base), _execution(arguments, None, waiting)
        swept = sweep_into(session, grid, parts, question, execution)
    for sentence in swept.assumed:
        note(sentence)
    counts = {"scenarios": swept.rows, "served": swept.served, "faults": swept.rows - swept.served}
    if arguments.format == "json":
        print(as_json(counts | {"parts": str(parts)}))
    else:
        sentence = f"{swept.rows:,} scenarios, {swept.served:,} served, {counts['faults']:,} cannot run"
        print_page([f"{sentence}; they are in {parts}"])


def _refuse_another_sweep(
    session: Session, rows: Sequence[Mapping[str, Any]], goodput: Mapping[str, float], target: Path
) -> None:
    """Raise InvalidInput where a finished file does not hold just the scenarios of a grid."""
    from kernelsight.session import connect

    with session.fork() as fork:
        asked = {row["scenario_id"] for row in plan_sweep(fork, rows, goodput).planned}
    if target.suffix == ".duckdb":
        with connect(target, read_only=True) as saved:
            held = set(saved.table(SWEEP)["scenario_id"].to_pylist()) if SWEEP in saved.available() else set()
    else:
        held = {row["scenario_id"] for row in read_grid(session, str(target)) if row.get("scenario_id")}
    if held != asked:
        raise InvalidInput(
            f"{target} is not the finished file of this grid: of its {len(held):,} scenarios {len(held & asked):,} are "
            f"among the grid's {len(asked):,}; use another -o FILE, or remove --resume to write it anew."
        )


def _find_rates(
    session: Session,
    rows: list[dict[str, Any]],
    slo: dict[str, float],
    goodput: dict[str, float],
    arguments: Any,
    target: Path | None,
) -> None:
    """Search the highest request rate of each row; print and write them."""
    from kernelsight.sweeps.rate_questions import TABLES, ask_rates, rates_of_grid

    with Waiting("searching rates") as waiting:
        options = {"goodput": goodput, "correction": arguments.correction, "report": waiting}
        session_of_rates = ask_rates(session, rows, slo, **options)
        table = rates_of_grid(session_of_rates)
    if target and target.suffix == ".duckdb":
        session_of_rates.give(SWEEP, table)
        session_of_rates.save(target, [SWEEP, *sorted(session_of_rates.given()), *TABLES])
    elif target and target.suffix != HTML:
        write_table(table, target)
    show(lambda: sweep_page(table, {}, slo, arguments.at_rate), arguments.format, target, lambda: csv_of(table))


def _execution(arguments: Any, target: Path | None, report: Waiting) -> Execution:
    """Return how the sweep is run; finished partitions are kept beside the output file."""
    from kernelsight.session import connect

    return Execution(
        folder=_partitions_folder(target) if target else None,
        resume=arguments.resume,
        workers=arguments.workers,
        executor=arguments.executor,
        partition_requests=arguments.partition_requests,
        connect=connect,
        report=report,
        intervals=arguments.intervals,
    )


def _partitions_folder(target: Path) -> Path:
    """Return the folder of finished partitions, beside the output file."""
    return target.with_name(f"{target.name}.parts")


def _check_words(arguments: Any, target: Path | None) -> None:
    """Raise InvalidInput for options that exclude each other."""
    if arguments.resume and arguments.output is None:
        raise InvalidInput("--resume needs -o FILE, the file of the interrupted sweep.")
    if arguments.executor == "ray":
        import_ray()
    if arguments.find_rate and not arguments.slo:
        raise InvalidInput(
            "--find-rate needs --slo, the objectives that the rate must meet, such as --slo ttft_p99:500."
        )
    if arguments.find_rate and arguments.output and target is None:
        raise InvalidInput("--find-rate writes one file; give -o FILE.")
    if arguments.find_rate and arguments.resume:
        raise InvalidInput("--find-rate cannot be resumed; remove --resume.")
    if arguments.at_rate is not None and not arguments.find_rate:
        raise InvalidInput("--at-rate needs --find-rate; without it, set request_rate in the grid.")
