"""Kernel errors on new hardware and software: a class of boards, another vendor's GPU, newer engine versions.

    python benches/new.py --sweep sweep.parquet --wheel aisimulate-*.whl [--parts boards,vendors,versions]

`boards`: GPUs with GDDR memory, fitted on those with HBM. `vendors`: each of AMD's two GPUs, fitted on the other, from
the aiter files in ``../shared/data``. `versions`: a pack fitted to the sweep, scored on the newer engine versions of
the wheel (`pip download --no-deps --pre aisimulate`). A part that is not run keeps its recorded rows. New generations
are folds of ``benches/accuracy``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record import ROOT, names, read, record

from kernelsight.cli.main import main as kernelsight

sys.path.append(str(Path(__file__).parent / "accuracy"))
from tables import pair

AITER = ROOT.parent / "shared" / "data" / "aiter"
BOARDS = {"l40s": "L40S", "rtx_pro_6000_server": "RTX PRO 6000"}
WITH_HBM = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200")
AMD = {"mi300x": "MI300X", "mi308x": "MI308X"}
# cells of fewer rows are not scored
FEWEST = 10
SCOPES = {
    "same key": "newer ones, keys measured before, pooled",
    "same kernel": "newer ones, new shapes of known kernels, pooled",
    "new kernel": "newer ones, kernels that the GPU's sweep did not hold, pooled",
}
COLUMNS = ["what is new", "fitted on", "scored on", "mean / median", "p90", "bias", "covers", "baseline"]
Rows = list[list[str]]


def run(*words: str | Path) -> None:
    """Run `kernelsight calibrate` with its output hidden; exits with its status if it fails."""
    with contextlib.redirect_stdout(io.StringIO()):
        status = kernelsight(["calibrate", *map(str, words)])
    if status:
        raise SystemExit(status)


def evaluated(folder: Path, *words: str | Path) -> dict[str, Any]:
    """Return the report of `kernelsight calibrate evaluate`."""
    target = folder / "report.json"
    run("evaluate", *words, "-o", target)
    return json.loads(target.read_text(encoding="utf-8"))


def row(what: str, fitted_on: str, scored_on: str, score: dict[str, Any], baseline: str) -> list[str]:
    """Return a table row, errors in percent."""
    shares = [score.get(name) for name in ("p90_ape", "bias", "coverage_90")]
    return [
        *(what, fitted_on, scored_on, pair(score)),
        *("–" if each is None else f"{100 * each:.1f}" for each in shares),
        baseline,
    ]


def boards(folder: Path, arguments: argparse.Namespace) -> Rows:
    """Return rows of GPUs with GDDR memory, fitted on those with HBM: means over covered cells, seen kernels."""
    rows: Rows = []
    for gpu, title in BOARDS.items():
        report = evaluated(folder, "--sweep", arguments.sweep, "--train-gpus", ",".join(WITH_HBM), "--test-gpus", gpu)
        affine = pair(report["overall_baselines"]["affine_roofline"]["serving"])
        what = "a class of boards (GDDR), a stand-in for consumer GPUs" if not rows else ""
        fitted_on = "A100, H100, H200, B200, GB200" if not rows else ""
        rows.append(row(what, fitted_on, title, report["overall"]["serving"], affine))
    return rows


def vendors(folder: Path, arguments: argparse.Namespace) -> Rows:
    """Return rows of AMD's GPUs, each fitted on the other: means over cells of FEWEST rows or more, whole grid."""
    sweep = folder / "aiter.parquet"
    run("import", "aiter", *sorted(AITER.glob("*.csv.gz")), "-o", sweep)
    rows: Rows = []
    for train, test in (tuple(AMD), tuple(AMD)[::-1]):
        report = evaluated(folder, "--sweep", sweep, "--train-gpus", train, "--test-gpus", test)
        cells = [cell["grid"] for cell in report["uncovered"] if cell["grid"]["n"] >= FEWEST]
        metrics = ("mape", "median_ape", "p90_ape", "bias", "coverage_90")
        score = {name: float(np.mean([cell[name] for cell in cells])) for name in metrics} | {"n": len(cells)}
        what = "a GPU of another vendor" if not rows else ""
        rows.append(row(what, AMD[train], f"{AMD[test]} ({len(cells)} cells)", score, "–"))
    return rows


def versions(folder: Path, arguments: argparse.Namespace) -> Rows:
    """Return rows of newer engine versions, predicted by a pack of the older ones, beside the older sweep."""
    if not arguments.wheel:
        raise SystemExit("the part `versions` reads a wheel: pip download --no-deps --pre aisimulate; --wheel FILE")
    pack, newer = folder / "older.parquet", folder / "newer.parquet"
    run("import", "aisimulate", arguments.wheel, "-o", newer)
    run("fit", arguments.sweep, "-o", pack)
    words = ("--sweep", newer, "--train", arguments.sweep, "--test-versions", "new", "--pack", pack)
    report = evaluated(folder, *words)
    rows: Rows = []
    for each in report["rows"]:
        if each["family"] is None:
            floor = {"mape": each["floor_mape"], "median_ape": each["floor_median_ape"], "n": each["floor_n"]}
            baseline = f"{pair(floor)} (the old sweep itself)" if each["floor_n"] else "–"
            what, fitted_on = ("", "") if rows else ("an engine version", "the versions of the sweep")
            rows.append(row(what, fitted_on, SCOPES[each["scope"]], each, baseline))
    return rows


PARTS: dict[str, Callable[[Path, argparse.Namespace], Rows]] = {
    "boards": boards,
    "vendors": vendors,
    "versions": versions,
}


def main() -> None:
    """Evaluate the parts and record the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aiconfigurator` wrote it")
    parser.add_argument("--wheel", type=Path, help="of aisimulate, for the part `versions`")
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parser.parse_args()
    recorded = read("kernels_new")["figures"].get("parts", {}) if "kernels_new" in names() else {}
    with tempfile.TemporaryDirectory() as folder:
        parts = {name: PARTS[name](Path(folder), arguments) for name in arguments.parts.split(",")}
    all_parts = {name: parts.get(name, recorded.get(name, [])) for name in PARTS}
    rows = [each for name in PARTS for each in all_parts[name]]
    command = "python benches/new.py --sweep sweep.parquet --wheel aisimulate.whl"
    print(record("kernels_new", {"rows": {"columns": COLUMNS, "rows": rows}, "parts": all_parts}, command))


if __name__ == "__main__":
    main()
