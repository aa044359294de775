"""`kernelsight search run`: searches the fastest configuration of one kernel on one GPU, and prints the rounds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kernelsight.cli.command_line import asked
from kernelsight.cli.options import open_session
from kernelsight.cli.search.forecast import answers_file, gpu_row, llm_settings
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.number_format import number, percent
from kernelsight.scenario.flag import options_of

SHOWN = (
    *("round", "measured", "failed", "best_us", "believed_regret", "expected_better", "regret", "gpu_s"),
    *("best_candidate",),
)


def run(arguments: argparse.Namespace) -> None:
    """Search, save the run, and print the best candidate and the rounds."""
    from kernelsight.present.output import answer_json, check_ending, note, print_page, print_rows
    from kernelsight.present.pages.search import search_page
    from kernelsight.present.progress import Waiting
    from kernelsight.present.show import HTML, show
    from kernelsight.searching.llm.forecaster import failures
    from kernelsight.searching.scenarios import scenario_rows
    from kernelsight.searching.search import give_search, save_search, search
    from kernelsight.searching.space_files import chosen_space, read_spaces
    from kernelsight.session import connect

    target = check_ending(arguments.output, (".duckdb", HTML))
    saved = None if target is None or target.suffix == HTML else target
    if arguments.resume and saved is None:
        raise InvalidInput("--resume needs -o FILE.duckdb, beside which the journal of the search lies.")
    tables = read_spaces(arguments.space)
    scenario = scenario_rows([_scenario(arguments, chosen_space(tables, arguments.kernel))])[0]
    answers: dict[tuple[str, int], dict] = {}
    sources = _forecasts(arguments, tables, scenario, answers), _proposer(arguments, tables, scenario)
    measurer = _measurer(arguments)
    with Waiting("searching"):
        try:
            results = search(tables, scenario, measurer, saved, arguments.resume, *sources)
        except RunFailed as error:
            failure = getattr(measurer, "last_failure", None)
            raise RunFailed(f"{error} The last failure: {failure}." if failure else str(error)) from None
    _export(arguments, tables, scenario, results)
    with connect() as session:
        if saved:
            save_search(session, tables, scenario, results, saved)
        elif target:
            give_search(session, tables, scenario, results)
            show(lambda: search_page(session), "csv", target)
    summary, rounds = results["search_summary"].to_pylist()[0], results["search_rounds"].to_pylist()
    if arguments.format == "json":
        print(answer_json(summary | {"scenario": scenario, "rounds": rounds}))
    else:
        if arguments.format == "table":
            print_page([_sentence(summary, scenario), ""])
        print_rows(rounds, list(SHOWN), arguments.format)
    if summary["notes"]:
        note(summary["notes"])
    if unread := getattr(measurer, "unread", None):
        note(f"{len(unread):,} outputs were no latency, and count as runtime_failed; the first: {unread[0]}")
    for row in failures(answers):
        note(f"{row['answers']:,} answers of the language model could not be used: {row['reason']}")


def _forecasts(arguments: argparse.Namespace, tables: Any, scenario: dict[str, Any], all_answers: dict) -> Any:
    """Return a function that forecasts the candidates of a target, by a file or a language model; None without either.

    ``all_answers``: filled with the answers of the language model.
    """
    if arguments.forecasts is not None:
        from kernelsight.searching.space_files import read_forecasts

        if arguments.forecaster == "llm":
            raise InvalidInput("--forecasts and --forecaster llm exclude each other; use one.")
        table = read_forecasts(Path(arguments.forecasts))
        return lambda target: table
    if arguments.forecaster != "llm":
        return None
    from kernelsight.searching.llm.forecaster import llm_forecaster
    from kernelsight.searching.targets import model_forecasts

    # a resumed search must get the same answers as the search that was killed
    settings = llm_settings(arguments)._replace(again=not arguments.resume)
    if arguments.resume and not arguments.llm_cache:
        raise InvalidInput("--resume with --forecaster llm needs the --llm-cache FILE of the search that was killed.")
    with open_session(arguments) as session:
        gpu = gpu_row(session, arguments.gpu)
    file = answers_file(arguments)

    def forecasts(target: Any) -> Any:
        with file as answers:
            rows = model_forecasts(
                target, tables, scenario, llm_forecaster(settings, gpu, answers), arguments.llm_candidates
            )
        all_answers.update(answers)
        return rows

    return forecasts


def _proposer(arguments: argparse.Namespace, tables: Any, scenario: dict[str, Any]) -> Any:
    """Return a function that builds the proposer of --propose for a target; None without it."""
    if arguments.propose is None:
        return None
    from kernelsight.searching.evolution import EVOLUTION, MODEL, from_evolution, from_model
    from kernelsight.searching.proposers import Proposer, candidates_of, proposer_of

    if arguments.proposer == "neighbours":
        raise InvalidInput("--propose and --proposer neighbours exclude each other; use one.")
    how, is_measured = arguments.propose, arguments.measure != "replay"
    text = _source_to_vary(arguments) if how in (EVOLUTION, MODEL) else None
    if how == MODEL:
        settings = llm_settings(arguments)._replace(again=not arguments.resume)
        with open_session(arguments) as session:
            gpu = gpu_row(session, arguments.gpu)

    def proposer(arrays: Any, target: Any) -> Any:
        candidates = candidates_of(arrays, target, tables.kernel_candidates)
        if how not in (EVOLUTION, MODEL):
            return proposer_of(how, candidates, target, arguments.proposals, arguments.time_limit, is_measured)
        source = (
            from_evolution(candidates, scenario, text)
            if how == EVOLUTION
            else from_model(candidates, settings, gpu, text or "", lambda: answers_file(arguments))
        )
        return Proposer(source, candidates, target, arguments.proposals, is_measured)

    return proposer


def _source_to_vary(arguments: argparse.Namespace) -> str | None:
    """Return the source that evolution or a model varies; None: evolution varies parameters alone.

    InvalidInput: there is none for a model, or no expected result that would show that a variant is wrong.
    """
    from kernelsight.searching.cupy_measurer import read_launch

    launch = read_launch(Path(arguments.launch)) if arguments.launch and arguments.measure != "replay" else None
    text = None if launch is None else launch.source
    if arguments.propose == "llm" and text is None:
        raise InvalidInput(
            "--propose llm rewrites a source, and measures it; name the source in --launch FILE, and use --measure "
            "cupy or a command that takes {source}."
        )
    if launch is not None and text is not None and launch.expected is None and arguments.measure == "cupy":
        raise InvalidInput(
            f"--propose {arguments.propose} makes new sources, which may be wrong; name the right result as expected "
            "in --launch FILE."
        )
    return text


def _export(arguments: argparse.Namespace, tables: Any, scenario: dict[str, Any], results: dict[str, Any]) -> None:
    """Write the experience of a search as --export names it."""
    from kernelsight.present.output import check_ending
    from kernelsight.searching.experience import of_search, write_experience

    file = check_ending(arguments.export, (".jsonl",), "--export")
    if file is None:
        return
    rows = [table.to_pylist() for table in (tables.kernel_candidates, results.get("kernel_candidates")) if table]
    candidates = {row["candidate_id"]: row for each in rows for row in each if row["space"] == scenario["space"]}
    with open_session(arguments) as session:
        gpu = gpu_row(session, arguments.gpu)
    write_experience(list(of_search(results, candidates, scenario, gpu, arguments.llm_neighbours)), file)


def _scenario(arguments: argparse.Namespace, space: str) -> dict[str, Any]:
    """Return the row of ``search_scenarios`` of parsed arguments."""
    values = asked(arguments, "search_scenarios")
    row = {flag.column: values[flag.name] for flag in options_of("search_scenarios")["search"] if flag.name in values}
    row |= {"space": space} | ({"proposer": "given"} if arguments.propose is not None else {})
    if arguments.minutes is not None:
        row["budget_s"] = arguments.minutes * 60.0
    if arguments.sources is not None:
        row["source_gpus"] = [name.strip() for name in arguments.sources.split(",") if name.strip()]
    return row


def _measurer(arguments: argparse.Namespace) -> Any:
    """Return the measurer of --measure; None: replay."""
    if arguments.measure == "replay":
        return None
    if arguments.measure == "cupy":
        from kernelsight.searching.cupy_measurer import measure_with_cupy, read_launch

        if not arguments.launch:
            raise InvalidInput("--measure cupy needs --launch FILE, a JSON file that says how to launch the kernel.")
        launch = read_launch(Path(arguments.launch))
        return lambda candidates: measure_with_cupy(candidates, launch)
    from kernelsight.searching.measurers import CommandMeasurer, check_parameters

    check_parameters(arguments.measure)
    return CommandMeasurer(arguments.measure, arguments.time_limit)


def _sentence(summary: dict[str, Any], scenario: dict[str, Any]) -> str:
    text = (
        f"Best of {scenario['space']} on {scenario['gpu']} after {summary['measured']} measurements: "
        f"{number(summary['best_us'])} us with {summary['best_candidate']}"
    )
    if summary["regret"] is not None:
        text += f"; {percent(summary['regret'], 1)} above the fastest that the file holds"
    return f"{text}."
