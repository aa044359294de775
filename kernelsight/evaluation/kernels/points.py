"""Score the tier points-measured: a few calls of each kernel of the test GPU are measured, all others predicted.

Constants are fitted without the test GPU, and moved by its points, each family alone. The choice of points reads shapes
and predictions, never latencies; intervals are what the same exercise leaves on each generation of the training GPUs,
fitted without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.evaluation.kernels import baselines
from kernelsight.evaluation.kernels.evaluate import UNMEASURED, labelled, mean_over_cells
from kernelsight.fitting.cells import generation_of, is_serving
from kernelsight.fitting.expressions import fit_family
from kernelsight.fitting.few_points import Measured, fit_points, measured_calls
from kernelsight.fitting.held_out import folds_of
from kernelsight.fitting.planned_points import planned, random_points
from kernelsight.fitting.points_intervals import Rest, held_out_calls, points_intervals, rests_of
from kernelsight.fitting.splits import Split, site_names
from kernelsight.fitting.training import to_learn, training_rows
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.intervals import POINTS, half_widths_for, points_group, spread
from kernelsight.kernels.pack import pack_table

Choose = Callable[..., np.ndarray]
CHOICES: dict[str, Choose] = {"planned": planned, "random": random_points}


class PointBudget(NamedTuple):
    """How many points of each kernel are measured, and how they are chosen: planned or random."""

    per_kernel: int
    how: str = "planned"


class Family(NamedTuple):
    """Rows of one family, and of each GPU its calls against the fit without its generation.

    ``own``: all calls of the GPUs to score; ``held_out``: some served calls of the training GPUs, for intervals.
    """

    train: pa.Table
    test: dict[str, pa.Table]
    own: dict[str, Measured]
    held_out: dict[str, Measured]


def rows_after_points(
    budget: PointBudget, sweeps: Sequence[Path], split: Split, families: Sequence[str], systems: Path | None
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Return the scored rows of each family without the points, and what a report adds: points, unmeasured_sites."""
    fits = dict(fitted(sweeps, split.train_gpus, split.test_gpus, families))
    return scored_after(budget, fits, split.test_gpus, rests_after(fits), systems)


def fitted(
    sweeps: Sequence[Path], train_gpus: Sequence[str], test_gpus: Sequence[str], families: Sequence[str]
) -> Iterator[tuple[str, Family]]:
    """Yield families with what fits make of their rows: of ``train_gpus``, and without each of their generations.

    A GPU to score may be one of those that are fitted on: it is then scored by the fit without its generation.
    """
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    for family in families:
        train = training_rows(sweeps, family, train_gpus)
        if not train.num_rows:
            continue
        taught, form = to_learn(family, train), FAMILIES[family].form
        rows = fit_family(family, form, taught, *tables, "evaluation")
        for name, members in folds_of(taught, tables[1]).items():
            rest = taught.filter(pc.invert(pc.is_in(taught["gpu"], pa.array(members))))
            rows += fit_family(family, form, rest, *tables, "evaluation", name)
        test = {gpu: training_rows(sweeps, family, [gpu]) for gpu in test_gpus}
        yield family, against(family, train, taught, test, pack_table(rows))


def against(
    family: str, train: pa.Table, taught: pa.Table, test: Mapping[str, pa.Table], constants: pa.Table
) -> Family:
    """Return what fits make of a family's rows; ``constants``: of all training GPUs, and without each generation."""
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    served = taught.filter(pa.array(is_serving(family, taught)))
    held_out = held_out_calls(family, served, constants, tables)
    trained = set(pc.unique(train["gpu"]).to_pylist())
    # a GPU that alone taught a family has no fit without it
    test = {gpu: rows for gpu, rows in test.items() if rows.num_rows and (gpu in held_out or gpu not in trained)}
    calls = {gpu: measured_calls(family, rows, gpu, constants, tables) for gpu, rows in test.items()}
    return Family(train, test, calls, held_out)


def rests_after(fits: Mapping[str, Family]) -> dict[int, dict[str, Rest]]:
    """Return what points leave of the calls of training GPUs."""
    calls: dict[str, dict[str, Measured]] = {}
    for family, one in fits.items():
        for gpu, measured in one.held_out.items():
            calls.setdefault(gpu, {})[family] = measured
    return rests_of(calls, POINTS)


def scored_after(
    budget: PointBudget,
    fits: Mapping[str, Family],
    gpus: Sequence[str],
    rests: Mapping[int, Mapping[str, Rest]],
    systems: Path | None = None,
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Return the scored rows of GPUs of one generation after points, and what a report adds to them."""
    generation = generation_of(gpus[0])
    curves = points_intervals(rests, without=generation)
    by_gpu = {gpu: predicted_after(gpu, fits, budget, curves) for gpu in gpus}
    scored, new_sites, points = {}, [], 0
    for name, one in fits.items():
        parts = [by_gpu[gpu][name] for gpu in gpus if name in by_gpu[gpu]]
        outside = [gpu for gpu in pc.unique(one.train["gpu"]).to_pylist() if generation_of(gpu) != generation]
        train = one.train.filter(pc.is_in(one.train["gpu"], pa.array(outside, pa.string())))
        if not parts or not train.num_rows:
            continue
        rest = pa.concat_tables([table for table, _, _ in parts])
        predicted = {key: np.concatenate([values[key] for _, values, _ in parts]) for key in parts[0][1]}
        roofline = baselines.roofline_us(name, train, systems)
        scored[name] = labelled(name, train, train, rest, roofline, predicted, systems)
        new = np.concatenate([unmeasured for _, _, unmeasured in parts])
        points += sum(one.test[gpu].num_rows for gpu in gpus if gpu in one.test) - rest.num_rows
        new_sites.append(scored[name].filter(pa.array(new)))
    seen_rows = [rows.filter(pc.and_(rows["covered"], rows["seen"])) for rows in new_sites]
    return scored, {"points": points, "unmeasured_sites": mean_over_cells(seen_rows)}


def predicted_after(
    gpu: str, fits: Mapping[str, Family], budget: PointBudget, curves: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, tuple[pa.Table, dict[str, np.ndarray], np.ndarray]]:
    """Return of each family of a GPU its rows but for the points, their predictions, and whether their site is new."""
    families = {name: one for name, one in fits.items() if gpu in one.own}
    chosen = {
        name: CHOICES[budget.how](one.own[gpu].places, is_serving(name, one.test[gpu]).astype(float), budget.per_kernel)
        for name, one in families.items()
        if budget.per_kernel
    }
    by_family = {}
    for name, one in families.items():
        mine, measured, own = one.test[gpu], chosen.get(name, np.empty(0, dtype=int)), one.own[gpu]
        few = fit_points(own.at(measured)) if measured.size else None
        rest = np.setdiff1d(np.arange(mine.num_rows), measured)
        test_calls = own.at(rest)
        latency = test_calls.latency_us(few) if few else test_calls.predicted_us
        kernels, kernel_of_row = np.unique(test_calls.places.kernels().astype(str), return_inverse=True)
        counts = [few.count(kernel) if few else 0 for kernel in kernels.tolist()]
        halves = half_widths_for(curves.get(name, {}), [points_group(count) for count in counts])[kernel_of_row]
        factor = spread(np, latency, halves)
        _, sites = site_names(name, mine)
        values = {"predicted_us": latency, "p05_us": latency / factor, "p95_us": latency * factor}
        values |= dict.fromkeys(UNMEASURED, np.full(rest.size, np.nan))
        by_family[name] = (mine.take(pa.array(rest)), values, ~np.isin(sites[rest], sites[measured]))
    return by_family
