"""Kernel errors on a new GPU by number of measured calls per kernel, planned and random, each generation left out.

    python benches/points.py --sweep sweep.parquet --gpus a100_sxm,l40s,h100_sxm,rtx_pro_6000_server
    python benches/points.py --sweep sweep.parquet --gpus gb200,b200_sxm --record   # one look

A published sweep stands in for the GPU. A fit without any chip of the GPU's architecture (the shipped one where the
generation is all of it, else a new one) predicts up to CALLS served calls of each kernel; points are measured, one of
each family or some of each kernel, and the others scored: median / mean / 90th percentile of the absolute error and the
mean error in %, means over cells whose kernels other architectures ran; seconds of measuring as a plan counts them;
coverage and width of the intervals, and the number of cells in which they cover 85 % at a width of 2.5 or less.
``--record`` writes benches/results/points.json. ``--intervals`` fits the shipped intervals after points of all families
again, and writes the pack; needed after the fit of any family, since each interval is shrunk to the mean of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from kernelsight.fitting.points_intervals import points_interval_rows, points_intervals, some_calls
from kernelsight.fitting.training import to_learn, training_rows
from kernelsight.kernels.families import MEASURED
from kernelsight.kernels.few_shot import prior_for
from kernelsight.kernels.pack import default_pack, pack_table, shipped_pack
from kernelsight.laboratory.kernels.scored_points import (
    Family,
    calls_of_family,
    constants_of,
    points_of,
    predicted_after,
    remaining_errors_after,
)
from kernelsight.measure.kernels_to_measure import seconds_of

TRAIN = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "rtx_pro_6000_server")
CALLS = 200
COUNTS = {"family": (1,), "planned": (0, 1, 3, 5, 10), "random": (1, 3, 5, 10)}
# goals of intervals: coverage, and width p95 / p05
COVERED, WIDTH = 0.85, 2.5
# cells of fewer calls are not counted against the goals
LEAST_CALLS = 20


class Unseen(NamedTuple):
    """Calls by family as fits without an architecture predict them, the GPUs of these fits, and curves of intervals."""

    fits: dict[str, Family]
    train: tuple[str, ...]
    curves: Mapping[str, Mapping[str, np.ndarray]]


def unseen(sweep: Path, gpus: Sequence[str]) -> Unseen:
    """Return what GPUs of one architecture are scored by."""
    architecture = architectures()[gpus[0]]
    kin = [gpu for gpu in TRAIN if architectures()[gpu] == architecture]
    train_gpus = tuple(gpu for gpu in TRAIN if gpu not in kin)
    is_shipped, fits = len(set(map(generation_of, kin))) == 1, {}
    for family in MEASURED:
        rows = training_rows([sweep], family, TRAIN if is_shipped else train_gpus)
        if not rows.num_rows:
            continue
        constants = default_pack() if is_shipped else constants_of(family, to_learn(family, rows))
        train = sampled(family, rows)
        test = {gpu: sampled(family, training_rows([sweep], family, [gpu])) for gpu in gpus}
        fits[family] = calls_of_family(family, train, train, test, constants)
    generation = generation_of(gpus[0])
    curves = curves_without(generation) if is_shipped else points_intervals(remaining_errors_after(fits), generation)
    return Unseen(fits, train_gpus, curves)


def architectures() -> dict[str, str]:
    """Return the architecture of each GPU."""
    gpus = facts("gpus")
    return dict(zip(gpus["gpu"].to_pylist(), gpus["architecture"].to_pylist(), strict=True))


def sampled(family: str, table: pa.Table) -> pa.Table:
    """Return up to CALLS served calls of each kernel on each GPU."""
    served = table.filter(pa.array(is_serving(family, table)))
    parts = [
        some_calls(served.filter(pc.equal(served["gpu"], gpu)), CALLS)
        for gpu in sorted(pc.unique(served["gpu"]).to_pylist())
    ]
    return pa.concat_tables(parts) if parts else served


def figures(gpu: str, unseen_by: Unseen, budget: PointBudget) -> dict[str, Any]:
    """Return a GPU's scores after measured points: means over covered cells, kernels that other architectures ran."""
    cells, new_cells, points, seconds = [], [], 0, 0.0
    fits, prior = unseen_by.fits, prior_for(None)
    for family, (rows, values, new) in predicted_after(gpu, fits, budget, unseen_by.curves).items():
        own, test = fits[family].own[gpu], fits[family].test[gpu]
        chosen = points_of(family, own, test, budget, prior) if budget.per_kernel else []
        points += test.num_rows - rows.num_rows
        latencies_us = test["latency_us"].to_numpy()[chosen].tolist()
        seconds += sum(seconds_of({"latency_us": us, "cache": "cold"}) for us in latencies_us)
        train = fits[family].train
        train = train.filter(pc.is_in(train["gpu"], pa.array(unseen_by.train)))
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
        "seconds": round(seconds, 1),
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


def scored(gpu: str, unseen_by: Unseen) -> list[dict[str, Any]]:
    """Return a GPU's rows by choice and number of points, and print them."""
    rows = []
    for how, counts in COUNTS.items():
        for count in counts:
            scores = figures(gpu, unseen_by, PointBudget(count, how))
            rows.append({"gpu": gpu, "how": how, "per_kernel": count, **scores})
            unmeasured = scores["unmeasured_sites"]
            print(
                f"{gpu} {how} {count}: {scores['points']} points, {scores['seconds']:.0f} s, "
                f"{scores['median_ape']:.1%} / {scores['mape']:.1%} / "
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
    gpus, rows = arguments.gpus.split(","), []
    for architecture in dict.fromkeys(architectures()[gpu] for gpu in gpus):
        of_architecture = [gpu for gpu in gpus if architectures()[gpu] == architecture]
        unseen_by = unseen(arguments.sweep, of_architecture)
        rows += [row for gpu in of_architecture for row in scored(gpu, unseen_by)]
    if arguments.record:
        print(
            record("points", {"rows": rows}, f"python benches/points.py --sweep sweep.parquet --gpus {arguments.gpus}")
        )


if __name__ == "__main__":
    main()
