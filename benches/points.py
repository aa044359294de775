"""Kernel errors on a new GPU by number of measured calls per kernel, planned and random, each generation left out.

    python benches/points.py --sweep sweep.parquet --gpus a100_sxm,l40s,h100_sxm,rtx_pro_6000_server
    python benches/points.py --sweep sweep.parquet --gpus gb200,b200_sxm --record   # one look

A published sweep stands in for the GPU. The shipped fit without the GPU's generation predicts up to CALLS served calls
of each kernel; points of each are measured, and the others scored: median / mean / 90th percentile of the absolute
error and the mean error in %, means over cells whose kernels other generations ran; coverage and width of the
intervals, and the number of cells in which they cover 85 % at a width of 2.5 or less. ``--record`` writes
benches/results/points.json. ``--intervals`` fits the shipped intervals after points of all families again, and writes
the pack; needed after the fit of any family, since each interval is shrunk to the mean of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from record import ROOT, record

from kernelsight.catalog.tables import facts
from kernelsight.evaluation.kernels.evaluate import NAMED
from kernelsight.evaluation.kernels.predict import PointBudget
from kernelsight.fitting.cells import generation_of, is_covered, is_seen, is_serving, measured_by
from kernelsight.fitting.metrics import mean_of, score
from kernelsight.fitting.pack_rows import write_pack
from kernelsight.fitting.points_intervals import points_interval_rows, some_calls
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import MEASURED
from kernelsight.kernels.pack import default_pack, pack_table, shipped_pack
from kernelsight.laboratory.kernels.scored_points import Family, calls_of_family, predicted_after

TRAIN = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "rtx_pro_6000_server")
CALLS = 200
COUNTS = {"planned": (0, 1, 3, 5, 10), "random": (1, 3, 5, 10)}
# goals of intervals: coverage, and width p95 / p05
COVERED, WIDTH = 0.85, 2.5
# cells of fewer calls are not counted against the goals
LEAST_CALLS = 20


def fits_of(sweep: Path, gpus: list[str]) -> dict[str, Family]:
    """Return each family's calls with the predictions of the shipped fit."""
    pack, calls_of = default_pack(), {}
    for family in MEASURED:
        train = sampled(family, training_rows([sweep], family, TRAIN))
        test = {gpu: sampled(family, training_rows([sweep], family, [gpu])) for gpu in gpus}
        if train.num_rows:
            calls_of[family] = calls_of_family(family, train, train, test, pack)
    return calls_of


def sampled(family: str, table: pa.Table) -> pa.Table:
    """Return up to CALLS served calls of each kernel on each GPU."""
    served = table.filter(pa.array(is_serving(family, table)))
    parts = [
        some_calls(served.filter(pc.equal(served["gpu"], gpu)), CALLS)
        for gpu in sorted(pc.unique(served["gpu"]).to_pylist())
    ]
    return pa.concat_tables(parts) if parts else served


def figures(gpu: str, fits: Mapping[str, Family], budget: PointBudget, curves: Any) -> dict[str, Any]:
    """Return a GPU's scores after measured points: means over covered cells, kernels that other generations ran."""
    cells, new_cells, points = [], [], 0
    for family, (rows, values, new) in predicted_after(gpu, fits, budget, curves).items():
        points += fits[family].test[gpu].num_rows - rows.num_rows
        train = fits[family].train
        outside = [one for one in TRAIN if generation_of(one) != generation_of(gpu)]
        train = train.filter(pc.is_in(train["gpu"], pa.array(outside)))
        seen, _ = is_seen(family, train, rows)
        dtypes = np.array(rows["dtype"].to_pylist())
        for dtype, dtype_measured in measured_by(train).items():
            is_scored = seen & (dtypes == dtype)
            if is_covered(dtype_measured) and is_scored.any():
                measured = rows["latency_us"].to_numpy()
                cells.append(score(measured[is_scored], *(values[name][is_scored] for name in NAMED)))
                is_scored &= new
                new_cells.append(score(measured[is_scored], *(values[name][is_scored] for name in NAMED)))
    names = ("n", "median_ape", "mape", "p90_ape", "bias", "coverage_90", "width_90")
    enough = [cell for cell in cells if cell["n"] >= LEAST_CALLS]
    meets_goals = [cell["coverage_90"] >= COVERED and cell["width_90"] <= WIDTH for cell in enough]
    return {
        "points": points,
        **{name: mean_of(cells)[name] for name in names},
        "unmeasured_sites": {name: mean_of(new_cells)[name] for name in names},
        "cells": len(enough),
        "cells_held": int(np.sum(meets_goals)),
    }


def curves_without(generation: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the shipped pack's interval curves that were fitted without a generation, by family and group."""
    curves: dict[str, dict[str, np.ndarray]] = {}
    pack = default_pack()
    for row in pack.filter(pc.and_(pc.equal(pack["part"], "interval"), pc.is_null(pack["gpu"]))).to_pylist():
        if row["without"] == generation and row["vendor"] is None:
            curves.setdefault(row["family"], {})[row["dtype"]] = np.array(row["array"])
    return curves


def scored(gpu: str, fits: Mapping[str, Family]) -> list[dict[str, Any]]:
    """Return a GPU's rows by choice and number of points, and print them."""
    rows, curves = [], curves_without(generation_of(gpu))
    for how, counts in COUNTS.items():
        for count in counts:
            scores = figures(gpu, fits, PointBudget(count, how), curves)
            rows.append({"gpu": gpu, "how": how, "per_kernel": count, **scores})
            unmeasured = scores["unmeasured_sites"]
            print(
                f"{gpu} {how} {count}: {scores['points']} points, {scores['median_ape']:.1%} / {scores['mape']:.1%} / "
                f"{scores['p90_ape']:.1%}, bias {scores['bias']:+.1%}; other sites {unmeasured['median_ape']:.1%} / "
                f"{unmeasured['mape']:.1%}; covers {scores['coverage_90']:.0%} at {scores['width_90']:.2f}, "
                f"{scores['cells_held']} of {scores['cells']} cells",
                flush=True,
            )
    return rows


def learn_intervals(sweep: Path) -> None:
    """Write the shipped pack with intervals after points that are fitted again to the published sweep."""
    pack, tables = shipped_pack(), (facts("gpus"), facts("fabrics"), facts("kernel_implementations"))
    after_points = pc.and_(pc.equal(pack["part"], "interval"), pc.ends_with(pack["dtype"], " points"))
    kept = pack.filter(pc.invert(pc.fill_null(after_points, False)))
    intervals = pack_table(points_interval_rows([sweep], TRAIN, kept, *tables))
    print(f"{pack.num_rows - kept.num_rows} intervals after points before, {intervals.num_rows} now")
    write_pack(pa.concat_tables([kept, intervals]), ROOT / "kernelsight" / "packs" / "default.parquet")


def main() -> None:
    """Score and print, or fit the intervals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aiconfigurator` wrote it")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--gpus", help="GPUs to score, separated by commas")
    wanted.add_argument("--intervals", action="store_true", help="learn the shipped intervals after points again")
    parser.add_argument("--record", action="store_true", help="write benches/results/points.json")
    arguments = parser.parse_args()
    if arguments.intervals:
        learn_intervals(arguments.sweep)
        return
    gpus = arguments.gpus.split(",")
    fits = fits_of(arguments.sweep, gpus)
    rows = [row for gpu in gpus for row in scored(gpu, fits)]
    if arguments.record:
        print(
            record("points", {"rows": rows}, f"python benches/points.py --sweep sweep.parquet --gpus {arguments.gpus}")
        )


if __name__ == "__main__":
    main()
