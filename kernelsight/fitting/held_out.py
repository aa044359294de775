"""Cross-validation errors of an expression on held-out GPU generations, by which its intervals are calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.kernels.gpu_distance import GpuDistances
from kernelsight.kernels.hardware import hardware_columns
from kernelsight.kernels.intervals import group_of, growth
from kernelsight.kernels.kernel_constants import generation
from kernelsight.kernels.latency_model import LatencyModel
from kernelsight.kernels.pack import pack_table

# most rows of one kernel on one GPU that are predicted: enough for quantiles
ROWS_PER_KERNEL = 1000


class Errors(NamedTuple):
    """Errors of held-out rows, arrays of shape (rows,): log(measured / predicted), predicted us, group and fold."""

    log_error: np.ndarray
    latency_us: np.ndarray
    groups: np.ndarray
    folds: np.ndarray


def generations_of(table: pa.Table, gpus: pa.Table) -> dict[str, list[str]]:
    """Return the GPUs among the rows by their generation."""
    capability = dict(zip(gpus["gpu"].to_pylist(), gpus["compute_capability"].to_pylist(), strict=True))
    gpus_of_generation: dict[str, list[str]] = {}
    for gpu in sorted(pc.unique(table["gpu"]).to_pylist()):
        if name := generation(capability[gpu]):
            gpus_of_generation.setdefault(name, []).append(gpu)
    return gpus_of_generation


def folds_of(table: pa.Table, gpus: pa.Table) -> dict[str, list[str]]:
    """Return the GPUs of each fold to hold out: generations, or with a single one its GPUs; {} for one GPU."""
    generations = generations_of(table, gpus)
    if len(generations) == 1:
        generations = {gpu: [gpu] for gpu in sorted(pc.unique(table["gpu"]).to_pylist())}
    return generations if len(generations) > 1 else {}


def held_out_errors(
    family: str,
    latency_model: LatencyModel,
    table: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    fits: Mapping[str, pa.Table] | None = None,
) -> Errors:
    """Predict each fold by a fit without it; ``fits``: the constants of such fits by fold, where known."""
    by_fold: list[tuple] = []
    for name, members in folds_of(table, gpus).items():
        is_member = pc.is_in(table["gpu"], pa.array(members))
        rest, fold = table.filter(pc.invert(is_member)), thinned_kernels(table.filter(is_member))
        constants = (fits or {}).get(name)
        if constants is None:
            constants = pack_table(fit_family(family, latency_model, rest, implementations, gpus, fabrics, "held out"))
        latency_us = predict_family(
            family, latency_model, fold, constants, implementations, gpus, fabrics, measured=False
        )
        fitted_kernels = set(pc.unique(rest["implementation"]).to_pylist())
        labels = zip(fold["dtype"].to_pylist(), fold["implementation"].to_pylist(), strict=True)
        groups = [group_of(dtype, kernel in fitted_kernels) for dtype, kernel in labels]
        error = np.log(fold["latency_us"].to_numpy() / latency_us)
        names = np.full(latency_us.size, name, dtype=object)
        by_fold.append((error, latency_us, np.array(groups, dtype=object), names))
    if not by_fold:
        return Errors(np.empty(0), np.empty(0), np.empty(0, dtype=object), np.empty(0, dtype=object))
    return Errors(*(np.concatenate(column) for column in zip(*by_fold, strict=True)))


def growths(family: str, rows: pa.Table, fitted_rows: pa.Table, gpus: pa.Table, fabrics: pa.Table) -> np.ndarray:
    """Return the factors (rows,) by which intervals widen with the distance of a GPU from those of ``fitted_rows``."""
    distances = GpuDistances(family, gpus, hardware_columns(gpus, fabrics))
    fitted = set(pc.unique(fitted_rows["gpu"]).to_pylist())
    growth_of_gpu = {gpu: growth(distances.octaves(gpu, fitted)) for gpu in pc.unique(rows["gpu"]).to_pylist()}
    return np.array([growth_of_gpu[gpu] for gpu in rows["gpu"].to_pylist()])


def thinned_kernels(table: pa.Table) -> pa.Table:
    """Subsample a table to at most ROWS_PER_KERNEL rows of each kernel on each GPU, evenly spaced in their order."""
    cells = pc.binary_join_element_wise(*(table[name] for name in ("implementation", "dtype", "engine", "gpu")), "\x1f")
    code = cells.combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(code, kind="stable")
    kept = [
        rows[np.linspace(0, rows.size - 1, min(rows.size, ROWS_PER_KERNEL)).round().astype(int)]
        for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
    ]
    return table.take(pa.array(np.sort(np.concatenate(kept))))
