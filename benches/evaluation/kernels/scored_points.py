"""Evaluation of the tier points-measured: a few calls of each kernel of the test GPU are measured, others predicted.

Constants are fitted without the test GPU and adjusted by its points, one family at a time. The choice of points reads
shapes and predictions, never latencies. Intervals come from the same procedure on each generation of the training GPUs,
fitted without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.evaluation.kernels.evaluate import UNMEASURED, Baselines, labelled, mean_over_cells
from kernelsight.evaluation.kernels.predict import PointBudget
from kernelsight.fitting.cells import generation_of, is_serving
from kernelsight.fitting.expressions import fit_family
from kernelsight.fitting.few_shot import measured_calls
from kernelsight.fitting.held_out import folds_of
from kernelsight.fitting.planned_points import planned, rows_of_kernels
from kernelsight.fitting.point_fit import Measured, fit_points
from kernelsight.fitting.points_intervals import RemainingErrors, held_out_calls, points_intervals, remaining_errors_of
from kernelsight.fitting.splits import Split, site_names
from kernelsight.fitting.training import to_learn, training_rows
from kernelsight.kernels.families import COMMUNICATION, FAMILIES
from kernelsight.kernels.few_shot import PRIOR, CallInputs, ErrorPrior, prior_for
from kernelsight.kernels.intervals import POINTS, half_widths_for, points_group, spread
from kernelsight.kernels.kernel_constants import vendors_of
from kernelsight.kernels.pack import pack_table


def planned_of_family(
    inputs: CallInputs, weight: np.ndarray, groups: np.ndarray | None = None, prior: ErrorPrior = PRIOR
) -> np.ndarray:
    """Return the index of one call of a family, or of each of its ``groups`` (calls,): of the kernel of most weight."""
    chosen, labels = [], np.zeros(inputs.size) if groups is None else groups
    for label in np.unique(labels[weight > 0]):
        rows = np.flatnonzero((labels == label) & (weight > 0))
        kernels, kernel_of_row = np.unique(inputs.at(rows).kernels().astype(str), return_inverse=True)
        heaviest = np.argmax(np.bincount(kernel_of_row, weight[rows], minlength=kernels.size))
        rows = rows[kernel_of_row == heaviest]
        chosen += rows[planned(inputs.at(rows), weight[rows], 1, prior)].tolist()
    return np.array(chosen, dtype=int)


def random_points(inputs: CallInputs, weight: np.ndarray, per_kernel: int) -> np.ndarray:
    """Return the indices of random calls, as many of each kernel."""
    random = np.random.default_rng(0)
    chosen: list[int] = []
    for rows in rows_of_kernels(inputs):
        served = rows[weight[rows] > 0]
        rows = served if served.size else rows
        chosen += random.choice(rows, min(per_kernel, rows.size), replace=False).tolist()
    return np.array(chosen, dtype=int)


Choose = Callable[..., np.ndarray]
CHOICES: dict[str, Callable[[ErrorPrior], Choose]] = {
    "planned": lambda prior: partial(planned, prior=prior),
    "random": lambda prior: random_points,
}


class Family(NamedTuple):
    """Rows of one family, and by GPU its calls with their errors under the fit without the GPU's generation.

    ``train``, ``test``: rows of training GPUs, and of GPUs to score; ``own``: all calls of the latter; ``held_out``: a
    sample of serving calls of the training GPUs, for intervals.
    """

    train: pa.Table
    test: dict[str, pa.Table]
    own: dict[str, Measured]
    held_out: dict[str, Measured]


def rows_after_points(
    budget: PointBudget, sweeps: Sequence[Path], split: Split, families: Sequence[str], baselines: Baselines | None
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Return test rows of each family with predictions, points left out, and keys of the report.

    The keys: ``points``, the number of measured points, and ``unmeasured_sites``, scores of sites without a point.
    """
    fits = dict(fitted(sweeps, split.train_gpus, split.test_gpus, families))
    return scored_after(budget, fits, split.test_gpus, remaining_errors_after(fits), baselines)


def fitted(
    sweeps: Sequence[Path], train_gpus: Sequence[str], test_gpus: Sequence[str], families: Sequence[str]
) -> Iterator[tuple[str, Family]]:
    """Yield (family, its calls) under fits on ``train_gpus``, and on them without each of their generations.

    A GPU to score may be a training GPU: it is then scored by the fit without its generation.
    """
    for family in families:
        train = training_rows(sweeps, family, train_gpus)
        if not train.num_rows:
            continue
        fitted_rows = to_learn(family, train)
        test = {gpu: training_rows(sweeps, family, [gpu]) for gpu in test_gpus}
        yield family, calls_of_family(family, train, fitted_rows, test, constants_of(family, fitted_rows))


def constants_of(family: str, fitted_rows: pa.Table) -> pa.Table:
    """Return a family's constants as fitted to training rows, and to them without each of their generations."""
    tables, latency_model = facts_of_fits(), FAMILIES[family].latency_model
    rows = fit_family(family, latency_model, fitted_rows, *tables, "evaluation")
    for name, members in folds_of(fitted_rows, tables[1]).items():
        other_generations = fitted_rows.filter(pc.invert(pc.is_in(fitted_rows["gpu"], pa.array(members))))
        rows += fit_family(family, latency_model, other_generations, *tables, "evaluation", name)
    return pack_table(rows)


def facts_of_fits() -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the facts that fits read: implementations, GPUs, fabrics."""
    return facts("kernel_implementations"), facts("gpus"), facts("fabrics")


def calls_of_family(
    family: str, train: pa.Table, fitted_rows: pa.Table, test: Mapping[str, pa.Table], constants: pa.Table
) -> Family:
    """Return a family's rows with their calls; ``constants``: fitted on all GPUs, and without each generation."""
    tables = facts_of_fits()
    served = fitted_rows.filter(pa.array(is_serving(family, fitted_rows)))
    held_out = held_out_calls(family, served, constants, tables)
    trained = set(pc.unique(train["gpu"]).to_pylist())
    # a family whose training rows are of one GPU alone has no fit without it
    test = {gpu: rows for gpu, rows in test.items() if rows.num_rows and (gpu in held_out or gpu not in trained)}
    calls = {gpu: measured_calls(family, rows, gpu, constants, tables) for gpu, rows in test.items()}
    return Family(train, test, calls, held_out)


def remaining_errors_after(fits: Mapping[str, Family]) -> dict[int, dict[str, RemainingErrors]]:
    """Return the errors that remain on training GPUs after points, by number of points and family, for intervals."""
    calls: dict[str, dict[str, Measured]] = {}
    for family, family_calls in fits.items():
        for gpu, measured in family_calls.held_out.items():
            calls.setdefault(gpu, {})[family] = measured
    return remaining_errors_of(calls, POINTS)


def scored_after(
    budget: PointBudget,
    fits: Mapping[str, Family],
    gpus: Sequence[str],
    remaining: Mapping[int, Mapping[str, RemainingErrors]],
    baselines: Baselines | None = None,
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Return test rows of GPUs of one generation with predictions, points left out, and keys of the report.

    ``remaining``: of ``remaining_errors_after``; see ``rows_after_points`` for the keys.
    """
    generation = generation_of(gpus[0])
    curves = points_intervals(remaining, without=generation)
    by_gpu = {gpu: predicted_after(gpu, fits, budget, curves) for gpu in gpus}
    scored, new_site_rows, points = {}, [], 0
    for name, family_calls in fits.items():
        by_gpu_parts = [by_gpu[gpu][name] for gpu in gpus if name in by_gpu[gpu]]
        other_gpus = [
            gpu for gpu in pc.unique(family_calls.train["gpu"]).to_pylist() if generation_of(gpu) != generation
        ]
        train = family_calls.train.filter(pc.is_in(family_calls.train["gpu"], pa.array(other_gpus, pa.string())))
        if not by_gpu_parts or not train.num_rows:
            continue
        scored_test = pa.concat_tables([table for table, _, _ in by_gpu_parts])
        predicted = {key: np.concatenate([values[key] for _, values, _ in by_gpu_parts]) for key in by_gpu_parts[0][1]}
        scored[name] = labelled(name, train, train, scored_test, predicted, baselines)
        is_new_site = np.concatenate([unmeasured for _, _, unmeasured in by_gpu_parts])
        points += (
            sum(family_calls.test[gpu].num_rows for gpu in gpus if gpu in family_calls.test) - scored_test.num_rows
        )
        new_site_rows.append(scored[name].filter(pa.array(is_new_site)))
    seen_rows = [rows.filter(pc.and_(rows["covered"], rows["seen"])) for rows in new_site_rows]
    return scored, {"points": points, "unmeasured_sites": mean_over_cells(seen_rows)}


def points_of(family: str, calls: Measured, rows: pa.Table, budget: PointBudget, prior: ErrorPrior) -> np.ndarray:
    """Return the indices of the calls that are measured; of collectives, "family" measures those of NCCL."""
    weight = is_serving(family, rows).astype(float)
    if budget.how != "family":
        return CHOICES[budget.how](prior)(calls.inputs, weight, budget.per_kernel)
    groups, is_nccl = None, calls.inputs.implementation == "nccl"
    if family in COMMUNICATION:
        groups = rows["group_size"].to_numpy()
        weight = weight * is_nccl if is_nccl.any() else weight
    return planned_of_family(calls.inputs, weight, groups, prior)


def predicted_after(
    gpu: str, fits: Mapping[str, Family], budget: PointBudget, curves: Mapping[str, Mapping[str, np.ndarray]]
) -> dict[str, tuple[pa.Table, dict[str, np.ndarray], np.ndarray]]:
    """Return (rows without the points, prediction columns, whether the site has no point) of a GPU, by family.

    ``curves``: interval half widths by family and number of points.
    """
    families = {name: family_calls for name, family_calls in fits.items() if gpu in family_calls.own}
    prior = prior_for(vendors_of(facts("gpus"))[gpu])
    points_of_family = {
        name: points_of(name, family_calls.own[gpu], family_calls.test[gpu], budget, prior)
        for name, family_calls in families.items()
        if budget.per_kernel
    }
    by_family = {}
    for name, family_calls in families.items():
        test_rows, point_indices, target_calls = (
            family_calls.test[gpu],
            points_of_family.get(name, np.empty(0, dtype=int)),
            family_calls.own[gpu],
        )
        points_fit = fit_points(target_calls.at(point_indices), prior=prior) if point_indices.size else None
        other_indices = np.setdiff1d(np.arange(test_rows.num_rows), point_indices)
        test_calls = target_calls.at(other_indices)
        latency = test_calls.latency_us(points_fit) if points_fit else test_calls.predicted_us
        kernels, kernel_of_row = np.unique(test_calls.inputs.kernels().astype(str), return_inverse=True)
        counts = [points_fit.count(kernel) if points_fit else 0 for kernel in kernels.tolist()]
        halves = half_widths_for(curves.get(name, {}), [points_group(count) for count in counts])[kernel_of_row]
        factor = spread(np, latency, halves)
        _, sites = site_names(name, test_rows)
        values = {"predicted_us": latency, "p05_us": latency / factor, "p95_us": latency * factor}
        values |= dict.fromkeys(UNMEASURED, np.full(other_indices.size, np.nan))
        by_family[name] = (
            test_rows.take(pa.array(other_indices)),
            values,
            ~np.isin(sites[other_indices], sites[point_indices]),
        )
    return by_family
