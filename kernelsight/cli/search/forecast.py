"""`kernelsight search forecast`: forecasts the latencies of kernel candidates by a language model."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import add_gpus, add_output, open_session
from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.searching.llm.answer_cache import AnswerCache

SHOWN = ("candidate_id", "latency_us", "p05_us", "p95_us", "p_faster", "confidence", "raw_probability_sum")
# columns that a file may lack, with their defaults
OPTIONAL = {
    "kernel_candidates": {"source_text": None, "parent_id": None, "proposer": None, "round": None, "parameters": "{}"},
    "kernel_measurements": {
        **dict.fromkeys(("cv", "samples", "compile_s", "benchmark_s", "driver")),
        **{"run": 1, "status": "ok", "source": "file"},
    },
}


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument("--candidates", required=True, metavar="FILE", help="Parquet table kernel_candidates")
    verb.add_argument("--gpu", required=True, metavar="G", help="GPU to forecast for")
    verb.add_argument(
        "--measurements",
        required=True,
        metavar="FILE",
        help="Parquet table kernel_measurements: at least one candidate measured on that GPU",
    )
    verb.add_argument("--anchor", metavar="ID", help="measured candidate to compare with (default: of median latency)")
    add_llm(verb)
    add_gpus(verb)
    add_output(verb, "write the forecasts (table kernel_forecasts): .parquet, .csv or .json")


def add_llm(verb: argparse.ArgumentParser) -> None:
    """Add the flags of the language model: server, samples, retries, cache."""
    group = verb.add_argument_group("language model (OpenAI-compatible server; key: KERNELSIGHT_LLM_KEY)")
    group.add_argument("--llm-url", metavar="URL", help="address, such as http://127.0.0.1:8000/v1")
    group.add_argument("--llm-model", metavar="M", help="model that the server holds")
    group.add_argument("--llm-samples", type=int, default=1, metavar="N", help="answers to average (default: 1)")
    group.add_argument(
        "--llm-neighbours", type=int, default=4, metavar="N", help="measured candidates shown (default: 4)"
    )
    group.add_argument("--llm-timeout", type=float, default=120.0, metavar="S", help="of one request (default: 120)")
    group.add_argument("--llm-retries", type=int, default=3, metavar="N", help="of a request that failed (default: 3)")
    group.add_argument("--llm-parallel", type=int, default=4, metavar="N", help="requests at once (default: 4)")
    group.add_argument(
        "--llm-cache",
        metavar="FILE",
        help="Parquet of answers: read, and extended by new ones; its journal keeps them if the run is killed",
    )


def run(arguments: argparse.Namespace) -> None:
    """Forecast, write the table, and print the forecasts, fastest first."""
    from kernelsight.present.output import Waiting, check_ending, note, print_rows, write_table
    from kernelsight.searching.llm.forecaster import failures, llm_forecaster

    target = check_ending(arguments.output)
    settings = llm_settings(arguments)
    candidates = table_of(arguments.candidates, "kernel_candidates", "--candidates")
    measurements = table_of(arguments.measurements, "kernel_measurements", "--measurements")
    spaces = candidates["space"].unique().to_pylist()
    if len(spaces) != 1:
        raise InvalidInput(f"--candidates holds {len(spaces)} search spaces; give the candidates of one.")
    with open_session(arguments) as session:
        gpu = gpu_row(session, arguments.gpu)
    scenario = {"search_id": "forecast", "gpu": arguments.gpu, "anchor": arguments.anchor}
    with answers_file(arguments) as answers, Waiting("asking the language model"):
        before = set(answers)
        forecast = llm_forecaster(settings, gpu, answers)
        forecasts = forecast(candidates, measurements, scenario).sort_by([("latency_us", "ascending")])
    if target:
        write_table(forecasts, target)
    print_rows(forecasts.select(SHOWN).to_pylist(), list(SHOWN), arguments.format)
    new_answers = len(set(answers) - before)
    note(f"{forecasts.num_rows:,} of {candidates.num_rows:,} candidates forecast; {new_answers:,} answers asked for")
    for row in failures(answers):
        note(f"{row['answers']:,} answers could not be used: {row['reason']}")


def llm_settings(arguments: argparse.Namespace) -> Any:
    """Return the settings of requests to the language model; InvalidInput: a flag is missing or out of range."""
    from kernelsight.searching.llm.client import server_of
    from kernelsight.searching.llm.forecaster import Settings

    for flag, value in (("--llm-url", arguments.llm_url), ("--llm-model", arguments.llm_model)):
        if not value:
            raise InvalidInput(f"{flag} is missing; a forecast by a language model needs --llm-url and --llm-model.")
    for flag in ("llm_samples", "llm_parallel"):
        if getattr(arguments, flag) < 1:
            raise InvalidInput(
                f"--{flag.replace('_', '-')} is {getattr(arguments, flag)}; give a whole number above 0."
            )
    if arguments.llm_neighbours < 0:
        raise InvalidInput(f"--llm-neighbours is {arguments.llm_neighbours}; give a whole number of 0 or more.")
    server = server_of(arguments.llm_url, arguments.llm_model, arguments.llm_timeout, arguments.llm_retries)
    return Settings(server, arguments.llm_samples, arguments.llm_neighbours, arguments.llm_parallel)


def gpu_row(session: Session, gpu: str) -> dict[str, Any]:
    """Return the GPU's row of the catalogue, or its name alone where there is none."""
    from kernelsight.scenario.gpu_names import find_gpu

    rows = {row["gpu"]: row for row in session.table("gpus").to_pylist()}
    alias = find_gpu(gpu)
    return rows.get(gpu) or (rows.get(alias.gpu) if alias else None) or {"name": gpu}


def answers_file(arguments: argparse.Namespace) -> AbstractContextManager[AnswerCache]:
    """Return the cache of answers of --llm-cache, which new ones extend; an empty one without it."""
    from kernelsight.present.output import check_ending
    from kernelsight.searching.llm.answer_cache import answer_cache

    file = check_ending(arguments.llm_cache, (".parquet",), "--llm-cache")
    return answer_cache(file, lambda path: table_of(str(path), "llm_answers", "--llm-cache"))


def table_of(path: str, name: str, flag: str) -> pa.Table:
    """Return a Parquet file as table ``name`` of its contract, with defaults for missing optional columns."""
    import pyarrow as pa

    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.contract import conform
    from kernelsight.files.parquet_files import read_parquet

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{flag} {path} {problem}; give a Parquet file of the table {name}.")

    table = read_parquet(path, refuse)
    for column, value in OPTIONAL.get(name, {}).items():
        if column not in table.column_names:
            kind = contracts()[name].schema.field(column).type
            table = table.append_column(column, pa.repeat(pa.scalar(value, kind), table.num_rows))
    return conform(table, contracts()[name], origin=path)
