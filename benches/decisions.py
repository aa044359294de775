"""Calibration of predicted probabilities that a deployment meets an objective: ``python benches/decisions.py``.

Runs of every available campaign are simulated with host constants fitted on the other campaigns, as `kernelsight
backtest --leave-out campaign` does. An objective is drawn around each measured metric (0.7 to 1.4 of it), and the
probability that `size` gives it is compared with the measurement: by band of probability and by campaign, beside two
simpler rules (always yes; one factor for all). About 3 CPU-minutes. ``--keep FILE`` saves the decisions, and reads them
if the file exists.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

from record import ROOT, SERVERS, record

import kernelsight as ks
from kernelsight.evaluation.runs.campaigns import scored_of_campaigns
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.laboratory.decisions import LEAST, MOST, Decision, decision_scores, decisions_of, reliability
from kernelsight.laboratory.runs.campaign_fit import replay_left_out
from kernelsight.laboratory.runs.run_classes import spread_runs

SAMPLE = 100


def decided(sample: int) -> list[Decision]:
    """Return the decisions on at most ``sample`` runs of each campaign."""
    with contextlib.chdir(ROOT), ks.connect() as session:
        session.progress = None
        runs = read_runs("aiconfigurator", *SERVERS).table.to_pylist()
        chosen = [runs[number] for number in spread_runs(runs, sample)]
        rows, _ = replay_left_out(session, chosen)
    return decisions_of(scored_of_campaigns(rows))


def main() -> None:
    """Score the decisions and record the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help="runs of each campaign at most")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="decisions (.json): read where it exists, else written"
    )
    arguments = parser.parse_args()
    if arguments.keep and arguments.keep.is_file():
        decisions = [Decision(*each) for each in json.loads(arguments.keep.read_text(encoding="utf-8"))]
    else:
        decisions = decided(arguments.sample)
        if arguments.keep:
            arguments.keep.write_text(json.dumps(decisions), encoding="utf-8")
    figures = {
        "sample": arguments.sample,
        "drawn": [LEAST, MOST],
        "scores": decision_scores(decisions),
        "reliability": reliability(decisions),
    }
    print(record("decisions", figures, f"python benches/decisions.py --sample {arguments.sample}"))


if __name__ == "__main__":
    main()
