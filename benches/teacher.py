"""What one or two measured runs of a deployment are worth for its other loads: ``python benches/teacher.py``.

    python benches/teacher.py [--deployments N] [--others N] [-o FILE.json] [--record]

Takes deployments of aiconfigurator's runs (equal model, GPU, sizes, engine, version and format) in the order of
a digest. The first run of each, then with it the next one of the same launch flags, are given to ``compare`` as rows of
``measured_runs``, and the other loads are simulated with the corrections that it writes. What these rest on
(standard deviations, noise) was chosen on runs of one campaign for the other. About two CPU-seconds a deployment.
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
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.replays import planned_runs
from kernelsight.evaluation.runs.scores import is_scored_separately
from kernelsight.scenario.corrections import give_corrections
from kernelsight.scenario.load_flags import LENGTHS, LOAD
from kernelsight.scenario.scenarios import give_plan, plan_rows

NAMES = ("campaign", "model", "gpu", "tp", "ep", "dp", "engine", "engine_version", "quantization")
LOADS = ("isl", "osl", "max_concurrency")
TEACHERS = (1, 2)
OF_LOAD = {flag.name for flag in (*LOAD, *LENGTHS)}


def deployments(runs: Sequence[Mapping[str, Any]], most: int) -> list[list[Mapping[str, Any]]]:
    """Return the runs of each of so many deployments with three loads or more, each in the order of a digest."""
    members: dict[tuple, dict[tuple, Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: digest(run["run_id"])):
        members.setdefault(tuple(run[name] for name in NAMES), {}).setdefault(load_of(run), run)
    enough = [list(own.values()) for own in members.values() if len(own) > max(TEACHERS)]
    return sorted(enough, key=lambda own: digest(str([own[0][name] for name in NAMES])))[:most]


def taught_by(own: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the teachers among the runs of a deployment: the first, and others that were launched as it was."""
    return [run for run in own if launch_of(run) == launch_of(own[0])][: max(TEACHERS)]


def launch_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a run that are not its load."""
    return {name: value for name, value in run["flags"].items() if name not in OF_LOAD}


def digest(text: str) -> str:
    """Return what runs and deployments are drawn by."""
    return hashlib.sha256(f"teacher {text}".encode()).hexdigest()


def load_of(run: Mapping[str, Any]) -> tuple:
    """Return the lengths and the users of a run."""
    return tuple(run[name] for name in LOADS)


def predicted(session: ks.Session, runs: Sequence[Mapping[str, Any]], correction: pa.Table | None) -> np.ndarray:
    """Return log(predicted / measured) of TTFT and TPOT of runs, shape [runs, 2]; NaN where none was served."""
    plan = plan_rows(session, [run["flags"] for run in runs])
    with session.fork() as fork:
        if correction is not None:
            give_corrections(fork, correction)
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        summary = {row["scenario_id"]: row for row in fork.table("scenario_summary").to_pylist()}
    found = [summary[scenario["scenario_id"]] for scenario in plan.planned]
    rows = [(row["ttft_mean_ms"] or np.nan, row["tpot_mean_ms"] or np.nan) for row in found]
    return np.log(np.array(rows) / np.array([(run["ttft_ms"], run["tpot_ms"]) for run in runs]))


def corrections(session: ks.Session, teachers: Sequence[Mapping[str, Any]], folder: Path) -> pa.Table:
    """Return what ``compare`` writes for the runs of one deployment."""
    path = folder / "teachers.csv"
    # the client draws lengths between range_ratio and 1 of the nominal ones: a row states what was sent
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
    """Return errors of TTFT and TPOT of some loads, from log(predicted / measured)."""
    off = np.abs(np.expm1(np.concatenate(parts)))
    return {"n": len(off), "median": np.nanmedian(off, axis=0).tolist(), "mean": np.nanmean(off, axis=0).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deployments", type=int, default=12, metavar="N", help="how many (default: 12)")
    parser.add_argument("--others", type=int, default=6, metavar="N", help="scored loads of each (default: 6)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write figures as JSON")
    parser.add_argument("--record", action="store_true", help="keep the figures in benches/results/")
    asked = parser.parse_args()
    errors: dict[tuple[str, str, int], list[np.ndarray]] = {}
    with ks.connect() as session, tempfile.TemporaryDirectory() as folder:
        runs = [run for run in read_runs("aiconfigurator").table.to_pylist() if not is_scored_separately(run)]
        replayed, planned = planned_runs(session, runs)
        known = [run for run, plan in zip(replayed, planned, strict=True) if plan.scenario]
        for own in deployments(known, asked.deployments):
            kind, teachers = "moe" if own[0]["is_moe"] else "dense", taught_by(own)
            others = [run for run in own if run not in teachers][: asked.others]
            if len(teachers) < max(TEACHERS) or not others:
                continue
            found = [predicted(session, others, None)]
            for count in TEACHERS:
                found.append(predicted(session, others, corrections(session, teachers[:count], Path(folder))))
            for count, part in zip((0, *TEACHERS), found, strict=True):
                for campaign in ("all", own[0]["campaign"]):
                    errors.setdefault((campaign, kind, count), []).append(part)
            said = [f"{100 * np.nanmedian(np.abs(np.expm1(part)), axis=0).round(3)}" for part in found]
            print(*(own[0][name] for name in NAMES), len(others), *said, flush=True)
    figures: dict[str, Any] = {}
    for (campaign, kind, count), parts in errors.items():
        scores = scores_of(parts) | {"deployments": len(parts)}
        figures.setdefault(campaign, {}).setdefault(kind, {})[str(count)] = scores
        if campaign == "all":
            print(f"{kind}, {count} runs: TTFT and TPOT median {scores['median']}, mean {scores['mean']}")
    if asked.output:
        Path(asked.output).write_text(json.dumps(figures, indent=1))
    if asked.record:
        command = f"python benches/teacher.py --deployments {asked.deployments} --others {asked.others}"
        record("teacher", figures, command)


if __name__ == "__main__":
    main()
