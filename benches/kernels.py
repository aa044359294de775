"""Kernel errors on GB200 with nothing fitted on it, and what two facts that were chosen on it are worth.

    python benches/kernels.py --sweep sweep.parquet          # kernels_gb200: 8 CPU-minutes
    python benches/kernels.py --sweep sweep.parquet --facts  # kernels_facts: decode attention as its lineage has it

``--report FILE`` keeps a report of `kernelsight calibrate evaluate` that is there, instead of computing it.
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
    """Return the report of `calibrate evaluate` by the program in a tree."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        command = [sys.executable, "-m", "kernelsight", *EVALUATE.format(sweep=sweep.resolve()).split(), *words]
        environment = os.environ | {"PYTHONPATH": str(tree), "KERNELSIGHT_CACHE": ""}
        subprocess.run([*command, "-o", str(target)], check=True, cwd=tree, env=environment, stdout=subprocess.PIPE)
        return json.loads(target.read_text(encoding="utf-8"))


def figures_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what pages show of a report: serving shapes alone."""
    whole = ("overall", "overall_baselines", "pooled", "covered", "unseen_implementation", "nothing_of_target")
    return {name: serving(report[name]) for name in whole} | {
        "cells": [cell_of(cell, True) for cell in report["families"]],
        "uncovered": [cell_of(cell, False) for cell in report["uncovered"]],
        "remeasured": report["remeasurement"],
    }


def serving(found: Mapping[str, Any]) -> Any:
    """Return the scores of serving shapes, at any depth."""
    return found["serving"] if "serving" in found else {name: serving(each) for name, each in found.items()}


def cell_of(cell: Mapping[str, Any], covered: bool) -> dict[str, Any]:
    """Return the scores of a cell: all of its kernels, those seen in training, baselines, nothing of the target."""
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
    """Return the cells of two families when kernels of GB200 have the limit of a stream that their lineages have."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("kernelsight", "sql", "schemas"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for family, changed in FACTS.items():
            change(tree / "kernelsight" / "catalog" / "implementations" / f"{family}.csv", *changed)
        return {"cells": figures_of(evaluated(sweep, ["--families", ",".join(FACTS)], tree))["cells"]}


def change(path: Path, implementation: str, coefficient: str, value: str) -> None:
    """Change one fact of an implementation in a file of the catalogue."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = [row for row in rows if (row["implementation"], row["coefficient"]) == (implementation, coefficient)]
    row["value"] = value
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Evaluate and keep the figures."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aiconfigurator` wrote it")
    words.add_argument("--facts", action="store_true", help="what the facts chosen on GB200 are worth")
    words.add_argument("--report", type=Path, help="a report that is there (.json)")
    asked = words.parse_args()
    if asked.facts:
        print(
            record("kernels_facts", with_facts(asked.sweep), "python benches/kernels.py --sweep sweep.parquet --facts")
        )
        return
    report = json.loads(asked.report.read_text(encoding="utf-8")) if asked.report else evaluated(asked.sweep, [])
    command = f"kernelsight {EVALUATE.format(sweep='sweep.parquet')}"
    print(record("kernels_gb200", figures_of(report), command))


if __name__ == "__main__":
    main()
