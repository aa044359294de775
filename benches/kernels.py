"""Kernel errors on GB200 with nothing fitted on it, and the effect of two facts that were chosen on it.

    python benches/kernels.py --sweep sweep.parquet          # kernels_gb200: 8 CPU-minutes
    python benches/kernels.py --sweep sweep.parquet --facts  # kernels_facts: decode attention with its lineage's facts

``--report FILE`` records an existing report of `kernelsight calibrate evaluate` instead of computing one.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from record import ROOT, record

EVALUATE = "calibrate evaluate --sweep {sweep} --test-gpus gb200"
FACTS = {
    "decode_attention": ("trtllm_gen_fmha", "streams", "1"),
    "mla_decode": ("trtllm_gen_mla", "streams", "1"),
}


def evaluated(sweep: Path, words: list[str], tree: Path = ROOT) -> dict[str, Any]:
    """Return the report of `calibrate evaluate`, run by the program in the folder ``tree``."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        command = [sys.executable, "-m", "kernelsight", *EVALUATE.format(sweep=sweep.resolve()).split(), *words]
        environment = os.environ | {"PYTHONPATH": str(tree), "KERNELSIGHT_CACHE": ""}
        subprocess.run([*command, "-o", str(target)], check=True, cwd=tree, env=environment, stdout=subprocess.PIPE)
        return json.loads(target.read_text(encoding="utf-8"))


def figures_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a report that the pages show, of serving shapes only."""
    whole = ("overall", "overall_baselines", "pooled", "covered", "unseen_implementation", "nothing_of_target")
    return {name: serving(report[name]) for name in whole} | {
        "cells": [cell_of(cell, True) for cell in report["families"]],
        "uncovered": [cell_of(cell, False) for cell in report["uncovered"]],
        "remeasured": report["remeasurement"],
    }


def serving(scores: Mapping[str, Any]) -> Any:
    """Return scores with the serving shapes only, at any depth."""
    return scores["serving"] if "serving" in scores else {name: serving(each) for name, each in scores.items()}


def cell_of(cell: Mapping[str, Any], covered: bool) -> dict[str, Any]:
    """Return a cell's scores: all kernels, kernels seen in training, baselines, and nothing known of the target."""
    parts = {"all": cell} | {part: cell[part] for part in ("seen", "unseen") if covered}
    return {"family": cell["family"], "dtype": cell["dtype"]} | {
        name: {
            **part["serving"],
            "nothing_of_target": part["nothing_of_target"]["serving"],
            "baselines": {
                baseline: {**scores["serving"], "model_there": scores["model_there"]["serving"]}
                for baseline, scores in part["baselines"].items()
            },
        }
        for name, part in parts.items()
    }


def with_facts(sweep: Path) -> dict[str, Any]:
    """Return the scores of two families when GB200's kernels have the stream limit of their lineages."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("kernelsight", "sql", "schemas"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for family, changed in FACTS.items():
            change(tree / "kernelsight" / "catalog" / "implementations" / f"{family}.csv", *changed)
        return {"cells": figures_of(evaluated(sweep, ["--families", ",".join(FACTS)], tree))["cells"]}


def change(path: Path, implementation: str, coefficient: str, value: str) -> None:
    """Change one coefficient of an implementation in a CSV file of the catalogue."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = [row for row in rows if (row["implementation"], row["coefficient"]) == (implementation, coefficient)]
    row["value"] = value
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Evaluate and record the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aiconfigurator` wrote it")
    parser.add_argument("--facts", action="store_true", help="scores without the facts chosen on GB200")
    parser.add_argument("--report", type=Path, help="an existing report (.json)")
    arguments = parser.parse_args()
    if arguments.facts:
        print(
            record(
                "kernels_facts", with_facts(arguments.sweep), "python benches/kernels.py --sweep sweep.parquet --facts"
            )
        )
        return
    report = (
        json.loads(arguments.report.read_text(encoding="utf-8")) if arguments.report else evaluated(arguments.sweep, [])
    )
    command = f"kernelsight {EVALUATE.format(sweep='sweep.parquet')}"
    print(record("kernels_gb200", figures_of(report), command))


if __name__ == "__main__":
    main()
