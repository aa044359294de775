"""Errors for a deployment's other loads after one or two measured runs: ``python benches/teacher.py``.

    python benches/teacher.py [--deployments N] [--others N] [-o FILE.json] [--record]

Takes deployments of aiconfigurator's runs (equal model, GPU, sizes, engine, version and format) in the order of a
digest. The first run of each, and then also the next one with the same launch flags, are passed to ``compare`` as rows
of ``measured_runs``, and the other loads are simulated with the corrections that it writes. Its standard deviations and
noise were chosen on runs of one campaign for the other. About two CPU-seconds per deployment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from record import record

import kernelsight as ks
from kernelsight.evaluation.runs.backtests import planned_runs
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.run_scores import is_scored_separately
from kernelsight.scenario.corrections import give_corrections
from kernelsight.scenario.flags import LENGTHS, LOAD
from kernelsight.scenario.plan import give_plan, plan_rows

NAMES = ("campaign", "model", "gpu", "tp", "ep", "dp", "engine", "engine_version", "quantization")
LOADS = ("isl", "osl", "max_concurrency")
TEACHERS = (1, 2)
OF_LOAD = {flag.name for flag in (*LOAD, *LENGTHS)}


def deployments(runs: Sequence[Mapping[str, Any]], most: int) -> list[list[Mapping[str, Any]]]:
    """Return the runs of ``most`` deployments with three or more loads, each list ordered by digest."""
    by_load: dict[tuple, dict[tuple, Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: digest(run["run_id"])):
        by_load.setdefault(tuple(run[name] for name in NAMES), {}).setdefault(load_of(run), run)
    candidates = [list(runs_of.values()) for runs_of in by_load.values() if len(runs_of) > max(TEACHERS)]
    return sorted(candidates, key=lambda runs_of: digest(str([runs_of[0][name] for name in NAMES])))[:most]


def taught_by(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the measured runs of a deployment for ``compare``: the first, and others with its launch flags."""
    return [run for run in runs if launch_of(run) == launch_of(runs[0])][: max(TEACHERS)]


def launch_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a run that are not of its load."""
    return {name: value for name, value in run["flags"].items() if name not in OF_LOAD}


def digest(text: str) -> str:
    """Return the SHA-256 by which runs and deployments are ordered."""
    return hashlib.sha256(f"teacher {text}".encode()).hexdigest()


def load_of(run: Mapping[str, Any]) -> tuple:
    """Return the lengths and the concurrency of a run."""
    return tuple(run[name] for name in LOADS)


def predicted(session: ks.Session, runs: Sequence[Mapping[str, Any]], correction: pa.Table | None) -> np.ndarray:
    """Return log(predicted / measured) of runs' TTFT and TPOT, shape (runs, 2); NaN if nothing is served."""
    plan = plan_rows(session, [run["flags"] for run in runs])
    with session.fork() as fork:
        if correction is not None:
            give_corrections(fork, correction)
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        summary = {row["scenario_id"]: row for row in fork.table("scenario_summary").to_pylist()}
    rows_of_runs = [summary[scenario["scenario_id"]] for scenario in plan.planned]
    rows = [(row["ttft_mean_ms"] or np.nan, row["tpot_mean_ms"] or np.nan) for row in rows_of_runs]
    return np.log(np.array(rows) / np.array([(run["ttft_ms"], run["tpot_ms"]) for run in runs]))


def corrections(session: ks.Session, teachers: Sequence[Mapping[str, Any]], folder: Path) -> pa.Table:
    """Return the corrections that ``compare`` writes for measured runs of one deployment."""
    path = folder / "teachers.csv"
    # the client draws lengths between range_ratio and 1 of the nominal ones: a row holds the mean sent lengths
    rows = [
        {**{name: run[name] for name in ("run_id", "ttft_ms", "tpot_ms", "max_concurrency")}}
        | {name: round(run[name] * (1.0 + run["flags"].get("range_ratio", 1.0)) / 2.0) for name in ("isl", "osl")}
        | {"num_prompts": run["flags"]["num_prompts"]}
        for run in teachers
    ]
    pa_csv.write_csv(pa.Table.from_pylist(rows), path)
    spread = {"range_ratio": teachers[0]["flags"].get("range_ratio", 1.0)}
    return session.compare(deployment=launch_of(teachers[0]), log=path, stated=spread).table("stage_corrections")


def scores_of(parts: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the median and mean error of TTFT and TPOT from arrays of log(predicted / measured)."""
    error = np.abs(np.expm1(np.concatenate(parts)))
    return {"n": len(error), "median": np.nanmedian(error, axis=0).tolist(), "mean": np.nanmean(error, axis=0).tolist()}


def main() -> None:
    """Score deployments with no, one and two measured runs; print and record the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deployments", type=int, default=12, metavar="N", help="how many (default: 12)")
    parser.add_argument("--others", type=int, default=6, metavar="N", help="scored loads of each (default: 6)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write figures as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    errors: dict[tuple[str, str, int], list[np.ndarray]] = {}
    with ks.connect() as session, tempfile.TemporaryDirectory() as folder:
        runs = [run for run in read_runs("aiconfigurator").table.to_pylist() if not is_scored_separately(run)]
        replayed, planned = planned_runs(session, runs)
        valid = [run for run, plan in zip(replayed, planned, strict=True) if plan.scenario]
        for deployment in deployments(valid, arguments.deployments):
            kind, teachers = "moe" if deployment[0]["is_moe"] else "dense", taught_by(deployment)
            others = [run for run in deployment if run not in teachers][: arguments.others]
            if len(teachers) < max(TEACHERS) or not others:
                continue
            log_ratios = [predicted(session, others, None)]
            for count in TEACHERS:
                log_ratios.append(predicted(session, others, corrections(session, teachers[:count], Path(folder))))
            for count, part in zip((0, *TEACHERS), log_ratios, strict=True):
                for campaign in ("all", deployment[0]["campaign"]):
                    errors.setdefault((campaign, kind, count), []).append(part)
            medians = [f"{100 * np.nanmedian(np.abs(np.expm1(part)), axis=0).round(3)}" for part in log_ratios]
            print(*(deployment[0][name] for name in NAMES), len(others), *medians, flush=True)
    figures: dict[str, Any] = {}
    for (campaign, kind, count), parts in errors.items():
        scores = scores_of(parts) | {"deployments": len(parts)}
        figures.setdefault(campaign, {}).setdefault(kind, {})[str(count)] = scores
        if campaign == "all":
            print(f"{kind}, {count} runs: TTFT and TPOT median {scores['median']}, mean {scores['mean']}")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(figures, indent=1))
    if arguments.record:
        command = f"python benches/teacher.py --deployments {arguments.deployments} --others {arguments.others}"
        record("teacher", figures, command)


if __name__ == "__main__":
    main()
