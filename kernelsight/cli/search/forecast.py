"""`kernelsight search forecast`: forecasts the latencies of kernel candidates by a language model."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import open_session
from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.searching.llm.forecaster import AnswerCache

SHOWN = ("candidate_id", "latency_us", "p05_us", "p95_us", "p_faster", "confidence", "raw_probability_sum")
# columns that a file may lack, with their defaults
OPTIONAL = {
    "kernel_candidates": {"source_text": None, "parent_id": None, "proposer": None, "round": None, "parameters": "{}"},
    "llm_answers": {"text": None},
    "kernel_measurements": {
        **dict.fromkeys(("cv", "samples", "compile_s", "benchmark_s", "driver")),
        **{"run": 1, "status": "ok", "source": "file"},
    },
}


def run(arguments: argparse.Namespace) -> None:
    """Forecast, write the table, and print the forecasts, fastest first."""
    from kernelsight.present.output import check_ending, note, print_rows, write_table
    from kernelsight.present.progress import Waiting
    from kernelsight.searching.experience import of_forecasts, write_experience
    from kernelsight.searching.llm.forecaster import anchor_of, failures, llm_forecaster, measured_times

    target, export = check_ending(arguments.output), check_ending(arguments.export, (".jsonl",), "--export")
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
    if export is not None:
        by_id = {row["candidate_id"]: row for row in candidates.to_pylist()}
        times = measured_times(measurements, arguments.gpu, by_id)
        anchor = anchor_of(times, scenario)
        write_experience(list(of_forecasts(forecasts, by_id, times, anchor, gpu, arguments.llm_neighbours)), export)
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
    server = server_of(arguments.llm_url, arguments.llm_model, arguments.llm_timeout, arguments.llm_retries)
    return Settings(server, arguments.llm_samples, arguments.llm_neighbours, arguments.llm_parallel)


def gpu_row(session: Session, gpu: str) -> dict[str, Any]:
    """Return the GPU's row of the catalogue, or its name alone where there is none."""
    from kernelsight.catalog.gpu_names import find_gpu

    rows = {row["gpu"]: row for row in session.table("gpus").to_pylist()}
    alias = find_gpu(gpu)
    return rows.get(gpu) or (rows.get(alias.gpu) if alias else None) or {"name": gpu}


def answers_file(arguments: argparse.Namespace) -> AbstractContextManager[AnswerCache]:
    """Return the cache of answers of --llm-cache, which new ones extend; an empty one without it."""
    from kernelsight.present.output import check_ending
    from kernelsight.searching.llm.forecaster import answer_cache

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
