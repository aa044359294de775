"""A new GPU from a few measured calls: error against points a kernel, planned and random, each generation left out.

    python benches/points.py --sweep sweep.parquet --gpus a100_sxm,l40s,h100_sxm,rtx_pro_6000_server
    python benches/points.py --sweep sweep.parquet --gpus gb200,b200_sxm --record   # one look

A published sweep plays the device. The shipped fit without the GPU's generation predicts up to CALLS served calls of
each kernel; points of each are measured, and the others scored: median / mean / 90th percentile of the absolute error
and the mean error in %, means over cells whose kernels other generations ran; coverage and width of the intervals, and
in how many cells they cover 85 % at a width of 2.5 or less. ``--record`` writes benches/results/points.json.
``--intervals`` learns the intervals after points of all families again, by the fits that ship, and writes the pack:
after the fit of any one family, since each is drawn to the mean of all.
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
from kernelsight.evaluation.kernels.points import Family, PointBudget, calls_of_family, predicted_after
from kernelsight.fitting.cells import generation_of, is_covered, is_seen, is_serving, measured_by
from kernelsight.fitting.metrics import mean_of, score
from kernelsight.fitting.pack_rows import write_pack
from kernelsight.fitting.points_intervals import points_interval_rows, some_calls
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import MEASURED
from kernelsight.kernels.pack import default_pack, pack_table, shipped_pack

TRAIN = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "rtx_pro_6000_server")
CALLS = 200
COUNTS = {"planned": (0, 1, 3, 5, 10), "random": (1, 3, 5, 10)}
# goals of intervals
COVERED, WIDTH = 0.85, 2.5
# a quantile of fewer calls says nothing
LEAST_CALLS = 20


def fits_of(sweep: Path, gpus: list[str]) -> dict[str, Family]:
    """Return each family's calls against the shipped fits."""
    pack, found = default_pack(), {}
    for family in MEASURED:
        train = sampled(family, training_rows([sweep], family, TRAIN))
        test = {gpu: sampled(family, training_rows([sweep], family, [gpu])) for gpu in gpus}
        if train.num_rows:
            found[family] = calls_of_family(family, train, train, test, pack)
    return found


def sampled(family: str, table: pa.Table) -> pa.Table:
    """Return up to CALLS served calls of each kernel on each GPU."""
    served = table.filter(pa.array(is_serving(family, table)))
    parts = [
        some_calls(served.filter(pc.equal(served["gpu"], gpu)), CALLS)
        for gpu in sorted(pc.unique(served["gpu"]).to_pylist())
    ]
    return pa.concat_tables(parts) if parts else served


def figures(gpu: str, fits: Mapping[str, Family], asked: PointBudget, curves: Any) -> dict[str, Any]:
    """Return what is shown of a GPU after some points: covered cells, kernels that other generations ran."""
    cells, new_cells, points = [], [], 0
    for family, (rows, values, new) in predicted_after(gpu, fits, asked, curves).items():
        points += fits[family].test[gpu].num_rows - rows.num_rows
        train = fits[family].train
        outside = [one for one in TRAIN if generation_of(one) != generation_of(gpu)]
        train = train.filter(pc.is_in(train["gpu"], pa.array(outside)))
        seen, _ = is_seen(family, train, rows)
        dtypes = np.array(rows["dtype"].to_pylist())
        for dtype, taught in measured_by(train).items():
            of = seen & (dtypes == dtype)
            if is_covered(taught) and of.any():
                measured = rows["latency_us"].to_numpy()
                cells.append(score(measured[of], *(values[name][of] for name in NAMED)))
                of &= new
                new_cells.append(score(measured[of], *(values[name][of] for name in NAMED)))
    names = ("n", "median_ape", "mape", "p90_ape", "bias", "coverage_90", "width_90")
    enough = [cell for cell in cells if cell["n"] >= LEAST_CALLS]
    held = [cell["coverage_90"] >= COVERED and cell["width_90"] <= WIDTH for cell in enough]
    return {
        "points": points,
        **{name: mean_of(cells)[name] for name in names},
        "unmeasured_sites": {name: mean_of(new_cells)[name] for name in names},
        "cells": len(enough),
        "cells_held": int(np.sum(held)),
    }


def curves_without(generation: str) -> dict[str, dict[str, np.ndarray]]:
    """Return by family and group the intervals of the shipped pack that a generation taught nothing."""
    found: dict[str, dict[str, np.ndarray]] = {}
    pack = default_pack()
    for row in pack.filter(pc.and_(pc.equal(pack["part"], "interval"), pc.is_null(pack["gpu"]))).to_pylist():
        if row["without"] == generation and row["vendor"] is None:
            found.setdefault(row["family"], {})[row["dtype"]] = np.array(row["array"])
    return found


def scored(gpu: str, fits: Mapping[str, Family]) -> list[dict[str, Any]]:
    """Return the figures of a GPU for all numbers of points."""
    rows, curves = [], curves_without(generation_of(gpu))
    for how, counts in COUNTS.items():
        for count in counts:
            found = figures(gpu, fits, PointBudget(count, how), curves)
            rows.append({"gpu": gpu, "how": how, "per_kernel": count, **found})
            new = found["unmeasured_sites"]
            print(
                f"{gpu} {how} {count}: {found['points']} points, {found['median_ape']:.1%} / {found['mape']:.1%} / "
                f"{found['p90_ape']:.1%}, bias {found['bias']:+.1%}; other sites {new['median_ape']:.1%} / "
                f"{new['mape']:.1%}; covers {found['coverage_90']:.0%} at {found['width_90']:.2f}, "
                f"{found['cells_held']} of {found['cells']} cells",
                flush=True,
            )
    return rows


def learn_intervals(sweep: Path) -> None:
    """Write the shipped pack with the intervals after points that its own fits leave on the published sweep."""
    pack, known = shipped_pack(), (facts("gpus"), facts("fabrics"), facts("kernel_implementations"))
    after_points = pc.and_(pc.equal(pack["part"], "interval"), pc.ends_with(pack["dtype"], " points"))
    kept = pack.filter(pc.invert(pc.fill_null(after_points, False)))
    learnt = pack_table(points_interval_rows([sweep], TRAIN, kept, *known))
    print(f"{pack.num_rows - kept.num_rows} intervals after points before, {learnt.num_rows} now")
    write_pack(pa.concat_tables([kept, learnt]), ROOT / "kernelsight" / "packs" / "default.parquet")


def main() -> None:
    """Score and print, or learn intervals."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aiconfigurator` wrote it")
    wanted = words.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--gpus", help="GPUs to score, separated by commas")
    wanted.add_argument("--intervals", action="store_true", help="learn the shipped intervals after points again")
    words.add_argument("--record", action="store_true", help="write benches/results/points.json")
    asked = words.parse_args()
    if asked.intervals:
        learn_intervals(asked.sweep)
        return
    gpus = asked.gpus.split(",")
    fits = fits_of(asked.sweep, gpus)
    rows = [row for gpu in gpus for row in scored(gpu, fits)]
    if asked.record:
        print(record("points", {"rows": rows}, f"python benches/points.py --sweep sweep.parquet --gpus {asked.gpus}"))


if __name__ == "__main__":
    main()
