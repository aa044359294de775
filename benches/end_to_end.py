"""End-to-end errors of published runs by level of host constants, beside AIConfigurator: benches/end_to_end.py.

Runs `kernelsight backtest` over all published runs (about 15 CPU-minutes), draws the documentation's picture, and
records the scores in ``benches/results/end_to_end.json``. ``--report FILE`` records an existing report instead.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from record import ROOT, record

from kernelsight.cli.main import main as kernelsight
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.run_scores import GROUP, group_of, is_fitting, is_scored_separately, scored_runs

WORDS = "backtest --runs aiconfigurator --constants transfer,group,shipped,none --against aiconfigurator"
KEPT = ("levels", "by_basis", "read", "excluded", "runs", "fitted_on", "stated_again", "repeated", "not_simulated")
METRICS = ("ttft", "tpot", "throughput")


def figures_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a report of `kernelsight backtest` that the pages show."""
    figures = {name: report[name] for name in KEPT}
    separate = {"disaggregated": report["disaggregated"]}
    separate |= {each["reason"]: each for each in report["separate"]}
    separate |= {name: report["speculative"][name] for name in ("with_drafts", "without_drafts")}
    figures["separate"] = {name: scored(each) for name, each in separate.items()}
    figures["draft_acceptance_rate"] = report["speculative"]["draft_acceptance_rate"]
    figures["groups"] = [scored(group) for group in report["groups"]]
    for name in ("peer", "peer_step_tokens", "peer_nominal"):
        peer = report[name]
        figures[name] = {key: peer[key] for key in ("n", "not_predicted", "dense", "moe", "behind", "levels")}
        figures[name]["all"] = {key: peer[key] for key in ("peer", "calibrated", "ours")}
        figures[name]["groups"] = [
            {key: group[key] for key in (*GROUP, "n")}
            | {who: {metric: group[who][metric]["median_ape"] for metric in METRICS} for who in ("peer", "ours")}
            for group in peer["groups"]
        ]
    return figures | {"lone_models": lone_models()}


def lone_models() -> int:
    """Return the number of scored runs whose model has no fitting run in another group."""
    runs = [run | {"fitting": is_fitting(run["run_id"])} for run in read_runs("aiconfigurator").table.to_pylist()]
    fitting = {(run["model"], group_of(run)) for run in runs if run["fitting"] and not is_scored_separately(run)}
    return sum(
        not any(model == run["model"] and group != group_of(run) for model, group in fitting)
        for run in scored_runs(runs)
    )


def scored(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a set of runs and of its groups, and the number of runs that cannot be simulated."""
    names = [name for name in (*GROUP, *METRICS) if name in scores]
    groups = {"groups": [scored(group) for group in scores["groups"]]} if "groups" in scores else {}
    failed = {"not_simulated": sum(each["n"] for each in scores["not_simulated"])} if "not_simulated" in scores else {}
    return {name: scores[name] for name in names} | groups | failed


def main() -> None:
    """Run the backtest and record its scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, help="an existing report of the command (.json), instead of running it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.report or Path(folder) / "report.json"
        picture = ROOT / "docs" / "pictures" / "end_to_end.png"
        if not arguments.report:
            with contextlib.redirect_stdout(io.StringIO()):
                status = kernelsight([*WORDS.split(), "--plot", str(picture), "-o", str(path)])
            if status:
                raise SystemExit(status)
        report = json.loads(path.read_text(encoding="utf-8"))
    print(record("end_to_end", figures_of(report), f"kernelsight {WORDS}"))


if __name__ == "__main__":
    main()
