"""`kernelsight search run`: searches the fastest configuration of one kernel on one GPU, and prints the rounds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kernelsight.cli.options import add_gpus, add_output, open_session
from kernelsight.cli.search.forecast import add_llm, answers_file, gpu_row, llm_settings
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.number_format import number, percent

SHOWN = (
    *("round", "measured", "failed", "best_us", "believed_regret", "expected_better", "regret", "gpu_s"),
    *("best_candidate",),
)


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument("--space", nargs="+", required=True, metavar="FILE", help="Parquet files of `search import`")
    verb.add_argument("--kernel", metavar="NAME", help="search space, where the files hold several")
    verb.add_argument("--gpu", required=True, metavar="G", help="GPU to search for, as named in the files")
    verb.add_argument("--sources", metavar="A,B", help="GPUs to learn from (default: all others of the space)")
    verb.add_argument("--budget", type=float, default=100, metavar="N", help="measurements (default: 100)")
    verb.add_argument("--minutes", type=float, metavar="M", help="time to compile and benchmark (default: unlimited)")
    verb.add_argument("--batch", type=int, default=5, metavar="N", help="measurements per round (default: 5)")
    verb.add_argument(
        "--forecaster",
        choices=("transfer", "gp", "llm"),
        default="transfer",
        help="learn from other GPUs; llm: and from a language model",
    )
    verb.add_argument(
        "--forecasts", metavar="FILE", help="table of forecasts to learn from as from another GPU, such as of a model"
    )
    verb.add_argument(
        "--policy",
        choices=("random", "order", "greedy", "selective"),
        default="selective",
        help="what to measure: at random, in the order of the other GPUs, lowest forecast, largest expected gain",
    )
    _add_proposals(verb)
    _add_measurements(verb)
    verb.add_argument("--anchor", metavar="ID", help="candidate that speed-up bins are relative to")
    verb.add_argument(
        "--stop",
        type=float,
        metavar="N",
        help="stop when fewer candidates than this are expected to be 2 %% faster; from 40 measurements on",
    )
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="seed of random choices (default: 0)")
    verb.add_argument("--resume", action="store_true", help="go on with the journal of a killed search")
    add_llm(verb)
    verb.add_argument(
        "--llm-candidates", type=int, default=64, metavar="N", help="candidates that the model is asked about"
    )
    add_gpus(verb)
    add_output(verb, "save the run: .duckdb")


def _add_proposals(verb: argparse.ArgumentParser) -> None:
    """Add the flags on which candidates a round considers."""
    verb.add_argument(
        "--propose",
        metavar="HOW",
        help="configurations to consider, in order: a .json, .jsonl or .parquet file, or a command that reads as JSON "
        "what was measured and prints configurations",
    )
    verb.add_argument(
        "--proposals", type=int, default=20, metavar="N", help="proposals that a round takes from --propose"
    )
    verb.add_argument(
        "--proposer", choices=("pool", "neighbours"), default="pool", help="candidates of a round: all, or neighbours"
    )
    verb.add_argument("--samples-per-parent", type=int, default=16, metavar="N", help="neighbours to forecast")
    verb.add_argument("--measure-per-parent", type=int, default=4, metavar="N", help="neighbours to measure")


def _add_measurements(verb: argparse.ArgumentParser) -> None:
    """Add the flags on how candidates are measured."""
    verb.add_argument(
        "--measure",
        default="replay",
        metavar="HOW",
        help="replay (what the files hold of the GPU), cupy, or a command such as './bench {block_size_x}'",
    )
    verb.add_argument(
        "--time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="of one measurement or round of proposals by a command",
    )
    verb.add_argument("--launch", metavar="FILE", help="how --measure cupy launches the kernel (.json)")


def run(arguments: argparse.Namespace) -> None:
    """Search, save the run, and print the best candidate and the rounds."""
    from kernelsight.present.output import Waiting, as_json, check_ending, note, print_page, print_rows
    from kernelsight.searching.llm.forecaster import failures
    from kernelsight.searching.scenarios import scenario_rows
    from kernelsight.searching.search import save_search, search
    from kernelsight.searching.space_files import chosen_space, read_spaces
    from kernelsight.session import connect

    target = check_ending(arguments.output, (".duckdb",))
    if arguments.resume and target is None:
        raise InvalidInput("--resume needs -o FILE.duckdb, beside which the journal of the search lies.")
    tables = read_spaces(arguments.space)
    scenario = scenario_rows([_scenario(arguments, chosen_space(tables, arguments.kernel))])[0]
    answers: dict[tuple[str, int], dict] = {}
    sources = _forecasts(arguments, tables, scenario, answers), _proposer(arguments)
    measurer = _measurer(arguments)
    with Waiting("searching"):
        try:
            results = search(tables, scenario, measurer, target, arguments.resume, *sources)
        except RunFailed as error:
            failure = getattr(measurer, "last_failure", None)
            raise RunFailed(f"{error} The last failure: {failure}." if failure else str(error)) from None
    if target:
        with connect() as session:
            save_search(session, tables, scenario, results, target)
    summary, rounds = results["search_summary"].to_pylist()[0], results["search_rounds"].to_pylist()
    if arguments.format == "json":
        print(as_json(summary | {"scenario": scenario, "rounds": rounds}))
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
    from kernelsight.searching.forecast_sources import model_forecasts
    from kernelsight.searching.llm.forecaster import llm_forecaster

    # a resumed search must get the same answers as the search that was killed
    settings = llm_settings(arguments)._replace(again=not arguments.resume)
    if arguments.resume and not arguments.llm_cache:
        raise InvalidInput("--resume with --forecaster llm needs the --llm-cache FILE of the search that was killed.")
    if arguments.llm_candidates < 1:
        raise InvalidInput(f"--llm-candidates is {arguments.llm_candidates}; give a whole number above 0.")
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


def _proposer(arguments: argparse.Namespace) -> Any:
    """Return a function that builds the proposer of --propose for a target; None without it."""
    if arguments.propose is None:
        return None
    from kernelsight.searching.proposers import proposer_of

    if arguments.proposer == "neighbours":
        raise InvalidInput("--propose and --proposer neighbours exclude each other; use one.")
    proposer_options = (arguments.gpu, arguments.proposals, arguments.time_limit)
    return lambda arrays, target: proposer_of(arguments.propose, arrays, target.ids, *proposer_options)


def _scenario(arguments: argparse.Namespace, space: str) -> dict[str, Any]:
    """Return the row of ``search_scenarios`` of parsed arguments."""
    names = arguments.sources
    return {
        **{"space": space, "gpu": arguments.gpu, "seed": arguments.seed, "policy": arguments.policy},
        **{
            "budget_measurements": _whole_if_exact(arguments.budget),
            "batch": arguments.batch,
            "anchor": arguments.anchor,
        },
        **{"budget_s": None if arguments.minutes is None else arguments.minutes * 60.0},
        **{
            "forecaster": arguments.forecaster,
            "proposer": arguments.proposer if arguments.propose is None else "given",
        },
        **{"samples_per_parent": arguments.samples_per_parent, "measure_per_parent": arguments.measure_per_parent},
        **{"source_gpus": None if names is None else [name.strip() for name in names.split(",") if name.strip()]},
        "stop_expected_gain": arguments.stop,
    }


def _whole_if_exact(value: float) -> float:
    return int(value) if value == value and abs(value) < 1e15 and value == int(value) else value


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
