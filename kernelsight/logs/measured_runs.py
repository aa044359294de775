"""Reader of ``measured_runs`` tables: statistics of whole runs, without requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import check_values
from kernelsight.files.parquet_files import read_parquet
from kernelsight.logs.files import DAMAGED, LogFile, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.summaries import statistic

NAME = "measured-runs"
REQUIRED = frozenset(("run_id", "isl", "osl", "ttft_ms", "tpot_ms"))
DEPLOYMENT = ("model", "gpu", "tp", "pp", "dp", "ep", "engine", "engine_version", "quantization")
# assumed number of requests where a run does not state it: per user of a closed loop, and of an open loop
ROUNDS, REQUESTS = 10, 100


def _recognises(file: LogFile) -> bool:
    return file.kind in ("text", "parquet") and file.fields >= REQUIRED


def read_measured_runs(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file, whose parts are its rows; InvalidInput: rows of several deployments, or unreadable."""
    return [_run(file) for file in files]


def _run(file: LogFile) -> LogRun:
    run = LogRun(file, NAME)
    rows = _rows(file)
    deployments = {tuple(row.get(name) for name in DEPLOYMENT) for row in rows}
    if len(deployments) > 1:
        problem = f"holds runs of {len(deployments)} deployments ({', '.join(DEPLOYMENT)})"
        raise unusable(file.path, problem, "Give the rows of one.")
    for row in rows:
        run.summaries += _statistics(row)
    run.faults.add("statistics_only", len(rows), rows[0]["run_id"] if rows else None)
    return run


def _rows(file: LogFile) -> list[dict[str, Any]]:
    """Return the rows of a table, checked against the contract; InvalidInput: unreadable, or values out of range."""
    try:
        if file.kind == "parquet":
            rows = pl.DataFrame(read_parquet(file.path, file.refuse))
        else:
            rows = pl.read_csv(file.read(), infer_schema_length=None)
    except pl.exceptions.PolarsError as problem:
        raise unusable(file.path, f"cannot be read as a table ({str(problem).splitlines()[0]})", DAMAGED) from None
    contract = contracts()["measured_runs"]
    figures = {column.name for column in contract.columns if column.type in ("int64", "float64")}
    check_values(rows.select(name for name in rows.columns if name in figures).to_arrow(), contract, str(file.path))
    return rows.to_dicts()


def _statistics(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row's statistics as summaries; none without a load, or without both latencies."""
    users, rate, osl = row.get("max_concurrency"), row.get("request_rate"), row["osl"]
    latencies_ms = row["ttft_ms"], row["tpot_ms"]
    if None in latencies_ms or None in (row["isl"], osl) or not (users or rate):
        return []
    e2e_ms = row.get("e2e_mean_ms") or latencies_ms[0] + latencies_ms[1] * (osl - 1)
    achieved = 1e3 * users / e2e_ms if users else rate
    values = {
        "ttft_ms": latencies_ms[0],
        "tpot_ms": latencies_ms[1],
        "e2e_ms": e2e_ms,
        "prompt_tokens": row["isl"],
        "output_tokens": osl,
        "achieved_rate": achieved,
        "max_concurrency": users,
    }
    run_id = str(row["run_id"])
    rows = statistic(run_id, "requests", "total", row.get("num_prompts") or (ROUNDS * users if users else REQUESTS))
    for name, value in values.items():
        rows += statistic(run_id, name, "mean", value)
    return rows


FORMAT = LogFormat(NAME, "requests", "a table of measured_runs", _recognises, read_measured_runs)
