"""Errors of power and energy of measured servers, and the fit of their constants: ``python benches/energy.py``.

Reads the text servers of ML.ENERGY, fits the constants of ``energy_constants`` (one model left out, one architecture
left out, all), simulates every run with the constants of the other models, and records the scores in
``benches/results/energy.json`` (a few CPU-minutes). ``--write`` also writes the constants and the widths of their
intervals to ``kernelsight/catalog/energy_constants.csv``.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from record import ROOT, record

import kernelsight as ks
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.laboratory.energy.scores import evaluate

RUNS = "../shared/data/servers/mlenergy.csv"
CONSTANTS = ROOT / "kernelsight/catalog/energy_constants.csv"
DATA = "benches/energy.py --write: text servers of ML.ENERGY v3 (ml-energy/leaderboard, public/data/models), H100, B200"


def main() -> None:
    """Score the predictions, record the result, and write the constants with ``--write``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", default=str(ROOT / RUNS), help="measured servers with their power")
    parser.add_argument("--write", action="store_true", help="also write the fitted constants into the catalogue")
    parser.add_argument("--every", type=int, default=3, help="serve every Nth run of a model (default: 3)")
    parser.add_argument("-o", "--output", type=Path, help="also write the figures as JSON")
    arguments = parser.parse_args()
    measured = read_runs(arguments.runs)
    with ks.connect() as session:
        figures = evaluate(session, measured.table.to_pylist(), arguments.every)
    figures |= {
        "read": measured.read,
        "excluded": [{"reason": reason, "n": count} for reason, count in measured.excluded],
    }
    if arguments.write:
        write_constants(figures)
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(record("energy", figures, f"python benches/energy.py --runs {RUNS} --every {arguments.every}"))


def write_constants(figures: dict[str, Any]) -> None:
    """Replace fitted rows of the catalogue; published and estimated rows are kept."""
    with CONSTANTS.open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["basis"] != "fitted" and not row["constant"].endswith("_log_half")
        ]
    value_of = {("*", name.removesuffix("_w")): value for name, value in figures["constants"]["common"].items()}
    active = figures["constants"]["active"]
    value_of |= {("*", "active"): sum(active.values()) / len(active)}
    value_of |= {(name, "active"): value for name, value in active.items()}
    halves = figures["log_halves"]
    for figure in ("power", "energy"):
        value_of |= {("*", f"{figure}_log_half"): halves[f"{figure}_other"]}
        value_of |= {(name, f"{figure}_log_half"): halves[figure] for name in active}
    rows += [
        {
            "architecture": name,
            "constant": constant,
            "value": f"{value:.4g}",
            "basis": "fitted",
            "gpus": ",".join(figures["gpus"].get(name, ())),
            "source": DATA,
        }
        for (name, constant), value in value_of.items()
    ]
    rows.sort(key=lambda row: (row["architecture"] != "*", row["architecture"]))
    with CONSTANTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
