"""Errors of an expression on generations of GPUs that it was not fitted to: what its intervals are calibrated with."""

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
from kernelsight.kernels.latency_model import Form
from kernelsight.kernels.pack import pack_table
from kernelsight.kernels.resolve import generation

# rows of one kernel on one GPU that are predicted: quantiles need no more
ROWS_PER_KERNEL = 1000


class Errors(NamedTuple):
    """Errors of held-out rows: log(measured / predicted), predicted latency, group and fold of each."""

    log_error: np.ndarray
    latency_us: np.ndarray
    groups: np.ndarray
    folds: np.ndarray


def generations_of(table: pa.Table, gpus: pa.Table) -> dict[str, list[str]]:
    """Return the GPUs of each generation that the rows hold."""
    capability = dict(zip(gpus["gpu"].to_pylist(), gpus["compute_capability"].to_pylist(), strict=True))
    gpus_of_generation: dict[str, list[str]] = {}
    for gpu in sorted(pc.unique(table["gpu"]).to_pylist()):
        if name := generation(capability[gpu]):
            gpus_of_generation.setdefault(name, []).append(gpu)
    return gpus_of_generation


def folds_of(table: pa.Table, gpus: pa.Table) -> dict[str, list[str]]:
    """Return what is held out in turn: generations, or where the rows are of a single one, its GPUs; {} if one GPU."""
    generations = generations_of(table, gpus)
    if len(generations) == 1:
        generations = {gpu: [gpu] for gpu in sorted(pc.unique(table["gpu"]).to_pylist())}
    return generations if len(generations) > 1 else {}


def held_out_errors(
    family: str,
    form: Form,
    table: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    fits: Mapping[str, pa.Table] | None = None,
) -> Errors:
    """Predict each fold by a fit without it; ``fits``: the constants of such fits by fold, where known."""
    parts: list[tuple] = []
    for name, members in folds_of(table, gpus).items():
        outside = pc.is_in(table["gpu"], pa.array(members))
        rest, mine = table.filter(pc.invert(outside)), thinned_kernels(table.filter(outside))
        constants = (fits or {}).get(name)
        if constants is None:
            constants = pack_table(fit_family(family, form, rest, implementations, gpus, fabrics, "held out"))
        latency = predict_family(family, form, mine, constants, implementations, gpus, fabrics, measured=False)
        fitted_kernels = set(pc.unique(rest["implementation"]).to_pylist())
        words = zip(mine["dtype"].to_pylist(), mine["implementation"].to_pylist(), strict=True)
        groups = [group_of(dtype, kernel in fitted_kernels) for dtype, kernel in words]
        error = np.log(mine["latency_us"].to_numpy() / latency)
        parts.append((error, latency, np.array(groups, dtype=object), np.full(latency.size, name, dtype=object)))
    if not parts:
        return Errors(np.empty(0), np.empty(0), np.empty(0, dtype=object), np.empty(0, dtype=object))
    return Errors(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def growths(family: str, mine: pa.Table, rest: pa.Table, gpus: pa.Table, fabrics: pa.Table) -> np.ndarray:
    """Return of each row of ``mine`` by how much its interval widens, its GPU being that far from those of ``rest``."""
    distances = GpuDistances(family, gpus, hardware_columns(gpus, fabrics))
    fitted = set(pc.unique(rest["gpu"]).to_pylist())
    growth_of_gpu = {gpu: growth(distances.octaves(gpu, fitted)) for gpu in pc.unique(mine["gpu"]).to_pylist()}
    return np.array([growth_of_gpu[gpu] for gpu in mine["gpu"].to_pylist()])


def thinned_kernels(table: pa.Table) -> pa.Table:
    """Return at most ROWS_PER_KERNEL rows of each kernel on each GPU, evenly spaced in their order."""
    cells = pc.binary_join_element_wise(*(table[name] for name in ("implementation", "dtype", "engine", "gpu")), "\x1f")
    code = cells.combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(code, kind="stable")
    kept = [
        rows[np.linspace(0, rows.size - 1, min(rows.size, ROWS_PER_KERNEL)).round().astype(int)]
        for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
    ]
    return table.take(pa.array(np.sort(np.concatenate(kept))))
