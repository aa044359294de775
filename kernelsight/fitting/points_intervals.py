"""90 % prediction intervals of a GPU with some points per kernel, from the same procedure on held-out generations.

Each GPU of a held-out generation is predicted, points of it are planned and measured, and the errors of its other calls
give the half width of their family. Generations have the same weight (:mod:`kernelsight.fitting.half_widths`); a
family's curve is shrunk half way, in logarithms, to the mean of all families: on a new generation a family may err as
another did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.fitting.cells import generation_of, is_serving
from kernelsight.fitting.few_shot import Tables, held_out_fit, measured_calls
from kernelsight.fitting.half_widths import curve_of
from kernelsight.fitting.pack_rows import correction_arrays, interval_rows
from kernelsight.fitting.planned_points import planned
from kernelsight.fitting.point_fit import Measured, fit_points
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.intervals import POINTS, points_group
from kernelsight.kernels.kernel_constants import family_facts, vendors_of

# points of each other kernel of the family, for the errors of a kernel without points
POINTS_OF_OTHERS = 3
# most calls of one kernel on one GPU: enough for quantiles
MOST_CALLS = 150


class RemainingErrors(NamedTuple):
    """Errors of calls beside the points, arrays of shape (calls,): family, log error, predicted us, generation."""

    family: np.ndarray
    log_error: np.ndarray
    latency_us: np.ndarray
    generation: np.ndarray


def errors_after_points(family: str, measured: Measured, generation: str, count: int) -> RemainingErrors:
    """Return the errors of a family's other calls on a GPU after ``count`` planned points of each kernel.

    With a count of 0: the errors of each kernel after points of the family's other kernels.
    """
    inputs, kernels = measured.inputs, measured.inputs.kernels()
    points = planned(inputs, np.ones(inputs.size), count or POINTS_OF_OTHERS)
    us = measured.predicted_us.copy()
    for kernel in [None] if count else dict.fromkeys(kernels.tolist()):
        rows = np.flatnonzero(kernels == kernel) if kernel else np.arange(inputs.size)
        fitted = points[kernels[points] != kernel]
        if fitted.size:
            # for other kernels one Gauss-Newton step, at the unmoved constants, is as good
            us[rows] = measured.at(rows).latency_us(fit_points(measured.at(fitted), **({} if count else {"steps": 1})))
    rest = np.setdiff1d(np.arange(inputs.size), points)
    error = np.log(measured.predicted_us[rest] / us[rest]) + measured.log_error[rest]
    names = (np.full(rest.size, name, dtype=object) for name in (family, generation))
    return RemainingErrors(next(names), error, us[rest], next(names))


def joined_errors(errors: Sequence[RemainingErrors]) -> RemainingErrors:
    """Concatenate the errors of several families or GPUs."""
    return RemainingErrors(*map(np.concatenate, zip(*errors, strict=True)))


def fit_points_intervals(errors: Sequence[RemainingErrors]) -> dict[str, np.ndarray]:
    """Return the half widths (knots,) at the knots of latency by family, from errors on GPUs of several generations."""
    joined = joined_errors(errors)
    curves = {}
    for family in dict.fromkeys(joined.family.tolist()):
        members = joined.family == family
        curves[family] = curve_of(joined.log_error[members], joined.latency_us[members], joined.generation[members])
    usual = np.mean([np.log(curve) for curve in curves.values()], axis=0)
    return {family: np.exp((np.log(curve) + usual) / 2.0) for family, curve in curves.items()}


def held_out_calls(family: str, table: pa.Table, constants: pa.Table, tables: Tables) -> dict[str, Measured]:
    """Return some calls of each GPU compared with the fit without its generation, by GPU.

    A GPU is missing where that fit is: its generation alone measured the family.
    """
    calls_of_gpu = {}
    for gpu in sorted(pc.unique(table["gpu"]).to_pylist()):
        if held_out_fit(constants, family, family_facts(family, tables[0], tables[1]), gpu):
            rows = some_calls(table.filter(pc.equal(table["gpu"], gpu)))
            calls_of_gpu[gpu] = measured_calls(family, rows, gpu, constants, tables)
    return calls_of_gpu


def remaining_errors_of(
    calls: Mapping[str, Mapping[str, Measured]], counts: Sequence[int]
) -> dict[int, dict[str, RemainingErrors]]:
    """Return the errors after points, by number of points per kernel and held-out GPU; ``calls``: by GPU, family."""
    return {
        count: {
            gpu: joined_errors(
                [errors_after_points(family, one, generation_of(gpu), count) for family, one in by_family.items()]
            )
            for gpu, by_family in calls.items()
            if by_family
        }
        for count in counts
    }


def points_intervals(
    errors: Mapping[int, Mapping[str, RemainingErrors]], without: str | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Return the half widths by family and :func:`points_group`, from all generations but ``without``."""
    curves: dict[str, dict[str, np.ndarray]] = {}
    for count, by_gpu in errors.items():
        others = [one for gpu, one in by_gpu.items() if generation_of(gpu) != without]
        for family, curve in fit_points_intervals(others).items() if others else ():
            curves.setdefault(family, {})[points_group(count)] = curve
    return curves


def points_interval_rows(
    sweeps: Sequence[Path],
    train_gpus: Sequence[str],
    pack: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    implementations: pa.Table,
) -> list[dict]:
    """Return the intervals after some points per kernel as ``eta_coefficients`` rows: of all generations, without each.

    They come from the fits of ``pack`` without each generation, on the GPUs of the first vendor, NVIDIA.
    """
    vendor_of = vendors_of(gpus)
    first_vendor = [gpu for gpu in train_gpus if vendor_of[gpu] is None]
    calls: dict[str, dict[str, Measured]] = {}
    for family in sorted(set(pack["family"].to_pylist())):
        table = training_rows(sweeps, family, first_vendor)
        served = table.filter(pa.array(is_serving(family, table)))
        for gpu, one in held_out_calls(family, served, pack, (implementations, gpus, fabrics)).items():
            calls.setdefault(gpu, {})[family] = one
    rows: list[dict] = []
    errors = remaining_errors_of(calls, POINTS)
    for without in [None, *sorted({generation_of(gpu) for gpu in calls})]:
        for family, curves in points_intervals(errors, without).items():
            rows += interval_rows(family, curves, "errors on held-out generations after points", without=without)
    return correction_arrays(rows)


def some_calls(table: pa.Table, most: int = MOST_CALLS) -> pa.Table:
    """Draw at most ``most`` rows of each kernel at random."""
    key = pc.binary_join_element_wise(*(table[name] for name in ("engine", "implementation", "dtype")), "|")
    code, random = key.combine_chunks().dictionary_encode().indices.to_numpy(), np.random.default_rng(0)
    kept = [
        random.choice(rows, min(rows.size, most), replace=False)
        for rows in (np.flatnonzero(code == number) for number in np.unique(code))
    ]
    return table.take(pa.array(np.sort(np.concatenate(kept))))
