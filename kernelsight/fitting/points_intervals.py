"""90 % intervals after some points a kernel: what the same exercise leaves on GPUs that the fit had not seen.

Each GPU of a generation that was left out is predicted, points of it are planned and measured, and the errors of its
other calls give the half width of their family. Generations weigh the same (:mod:`.intervals`); a family's curve is
drawn half way to the mean of all families in logarithms: a new generation may do with one what others did with another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.fitting.cells import generation_of, is_serving
from kernelsight.fitting.few_points import Measured, Tables, fit_points, left_out, measured_calls
from kernelsight.fitting.intervals import curve_of
from kernelsight.fitting.pack_rows import correction_arrays, interval_rows
from kernelsight.fitting.planned_points import planned
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.intervals import POINTS, points_group
from kernelsight.kernels.resolve import family_facts, vendors_of

# a kernel without points is learnt beside others of its family that have this many
LEARNT_BESIDE = 3
# calls of one kernel on one GPU: quantiles need no more
MOST_CALLS = 150


class Rest(NamedTuple):
    """Errors that points left: family, log error, predicted us and generation of each call."""

    family: np.ndarray
    log_error: np.ndarray
    latency_us: np.ndarray
    generation: np.ndarray


def left_after(family: str, measured: Measured, generation: str, count: int) -> Rest:
    """Return what ``count`` planned points of each kernel of a family on a GPU leave of its other calls.

    0: what points of the other kernels leave of each kernel.
    """
    where, kernels = measured.places, measured.places.kernels()
    points = planned(where, np.ones(where.size), count or LEARNT_BESIDE)
    us = measured.predicted_us.copy()
    for kernel in [None] if count else dict.fromkeys(kernels.tolist()):
        rows = np.flatnonzero(kernels == kernel) if kernel else np.arange(where.size)
        use = points[kernels[points] != kernel]
        if use.size:
            # constants that are linearised where they were serve as well for kernels beside
            us[rows] = measured.at(rows).latency_us(fit_points(measured.at(use), **({} if count else {"steps": 1})))
    rest = np.setdiff1d(np.arange(where.size), points)
    error = np.log(measured.predicted_us[rest] / us[rest]) + measured.log_error[rest]
    names = (np.full(rest.size, name, dtype=object) for name in (family, generation))
    return Rest(next(names), error, us[rest], next(names))


def joined_rests(rests: Sequence[Rest]) -> Rest:
    """Return what is left of several families or GPUs together."""
    return Rest(*map(np.concatenate, zip(*rests, strict=True)))


def fit_points_intervals(rests: Sequence[Rest]) -> dict[str, np.ndarray]:
    """Return of each family the half widths at the knots of latency, from what the GPUs of several generations left."""
    joined = joined_rests(rests)
    curves = {}
    for family in dict.fromkeys(joined.family.tolist()):
        of = joined.family == family
        curves[family] = curve_of(joined.log_error[of], joined.latency_us[of], joined.generation[of])
    usual = np.mean([np.log(curve) for curve in curves.values()], axis=0)
    return {family: np.exp((np.log(curve) + usual) / 2.0) for family, curve in curves.items()}


def held_out_calls(family: str, table: pa.Table, constants: pa.Table, tables: Tables) -> dict[str, Measured]:
    """Return of each GPU with a fit without its generation some of its calls against that fit."""
    calls_of_gpu = {}
    for gpu in sorted(pc.unique(table["gpu"]).to_pylist()):
        # a generation that alone measured a family has no fit without it
        if left_out(constants, family, family_facts(family, tables[0], tables[1]), gpu):
            mine = some_calls(table.filter(pc.equal(table["gpu"], gpu)))
            calls_of_gpu[gpu] = measured_calls(family, mine, gpu, constants, tables)
    return calls_of_gpu


def rests_of(calls: Mapping[str, Mapping[str, Measured]], counts: Sequence[int]) -> dict[int, dict[str, Rest]]:
    """Return by points a kernel what each held-out GPU has left; ``calls``: of each GPU, by family."""
    return {
        count: {
            gpu: joined_rests([left_after(name, one, generation_of(gpu), count) for name, one in by_family.items()])
            for gpu, by_family in calls.items()
            if by_family
        }
        for count in counts
    }


def points_intervals(
    rests: Mapping[int, Mapping[str, Rest]], without: str | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Return by family and :func:`points_group` the half widths, from all generations but ``without``."""
    curves: dict[str, dict[str, np.ndarray]] = {}
    for count, by_gpu in rests.items():
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
    """Return the intervals after some points a kernel as ``eta_coefficients`` rows, by the fits of a pack without each
    generation: of all generations, and without each."""
    vendor_of = vendors_of(gpus)
    first = [gpu for gpu in train_gpus if vendor_of[gpu] is None]
    calls: dict[str, dict[str, Measured]] = {}
    for family in sorted(set(pack["family"].to_pylist())):
        table = training_rows(sweeps, family, first)
        served = table.filter(pa.array(is_serving(family, table)))
        for gpu, one in held_out_calls(family, served, pack, (implementations, gpus, fabrics)).items():
            calls.setdefault(gpu, {})[family] = one
    rows: list[dict] = []
    rests = rests_of(calls, POINTS)
    for without in [None, *sorted({generation_of(gpu) for gpu in calls})]:
        for family, curves in points_intervals(rests, without).items():
            rows += interval_rows(family, curves, "errors on held-out generations after points", without=without)
    return correction_arrays(rows)


def some_calls(table: pa.Table, most: int = MOST_CALLS) -> pa.Table:
    """Return at most so many rows of each kernel, drawn at random."""
    key = pc.binary_join_element_wise(*(table[name] for name in ("engine", "implementation", "dtype")), "|")
    code, random = key.combine_chunks().dictionary_encode().indices.to_numpy(), np.random.default_rng(0)
    kept = [
        random.choice(rows, min(rows.size, most), replace=False)
        for rows in (np.flatnonzero(code == number) for number in np.unique(code))
    ]
    return table.take(pa.array(np.sort(np.concatenate(kept))))
