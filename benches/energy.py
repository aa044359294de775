"""Power and energy of measured servers, and the constants behind them: ``python benches/energy.py``.

Reads the text servers of ML.ENERGY, fits the constants of ``energy_constants`` (one model left out, one architecture
left out, all), serves every run with the constants of the other models, and keeps the scores in
``benches/results/energy.json`` (a few CPU-minutes). ``--write`` also puts the constants and the widths of their
intervals into ``kernelsight/catalog/energy_constants.csv``.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from record import ROOT, record

import kernelsight as ks
from kernelsight.evaluation.energy.scores import evaluate
from kernelsight.evaluation.runs.measured_runs import read_runs

RUNS = "../shared/data/servers/mlenergy.csv"
CONSTANTS = ROOT / "kernelsight/catalog/energy_constants.csv"
DATA = "benches/energy.py --write: text servers of ML.ENERGY v3 (ml-energy/leaderboard, public/data/models), H100, B200"


def main() -> None:
    """Score, keep the result, and write the constants where that is asked for."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--runs", default=str(ROOT / RUNS), help="measured servers with their power")
    words.add_argument("--write", action="store_true", help="also write the fitted constants into the catalogue")
    words.add_argument("--every", type=int, default=3, help="serve every Nth run of a model (default: 3)")
    words.add_argument("-o", "--output", type=Path, help="also write the figures as JSON")
    asked = words.parse_args()
    read = read_runs(asked.runs)
    with ks.connect() as session:
        figures = evaluate(session, read.table.to_pylist(), asked.every)
    figures |= {"read": read.read, "excluded": [{"reason": reason, "n": count} for reason, count in read.excluded]}
    if asked.write:
        write_constants(figures)
    if asked.output:
        asked.output.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(record("energy", figures, f"python benches/energy.py --runs {RUNS} --every {asked.every}"))


def write_constants(figures: dict[str, Any]) -> None:
    """Replace fitted rows of the catalogue; what is published or estimated stays."""
    with CONSTANTS.open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["basis"] != "fitted" and not row["constant"].endswith("_log_half")
        ]
    found = {("*", name.removesuffix("_w")): value for name, value in figures["constants"]["common"].items()}
    active = figures["constants"]["active"]
    found |= {("*", "active"): sum(active.values()) / len(active)}
    found |= {(name, "active"): value for name, value in active.items()}
    halves = figures["log_halves"]
    for figure in ("power", "energy"):
        found |= {("*", f"{figure}_log_half"): halves[f"{figure}_other"]}
        found |= {(name, f"{figure}_log_half"): halves[figure] for name in active}
    rows += [
        {
            "architecture": name,
            "constant": constant,
            "value": f"{value:.4g}",
            "basis": "fitted",
            "gpus": ",".join(figures["gpus"].get(name, ())),
            "source": DATA,
        }
        for (name, constant), value in found.items()
    ]
    rows.sort(key=lambda row: (row["architecture"] != "*", row["architecture"]))
    with CONSTANTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
