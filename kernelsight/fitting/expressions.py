"""Fits a family's latency expression to measured rows, and predicts measured rows by fitted constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.fitting.fit import fit_nodes
from kernelsight.fitting.pack_rows import node_rows
from kernelsight.kernels.coefficients import LEVELS, PATH, Coefficient
from kernelsight.kernels.hardware import BY_MATH, MATH, hardware_columns
from kernelsight.kernels.kernel_constants import Facts, constants_at, family_facts, lineage_of, structure_at
from kernelsight.kernels.latency_model import LatencyModel
from kernelsight.kernels.string_columns import combinations

# step of a constant's logarithm to both sides, for central differences
STEP = 0.05
# most rows of one (GPU, engine, implementation, dtype) that a fit reads: enough for a dozen constants
ROWS_PER_LEAF = 1500


class Rows(NamedTuple):
    """Measured rows as an expression reads them: arrays of shape (rows,), and each row's leaf, its path of nodes."""

    call: dict[str, np.ndarray]
    gpu: dict[str, np.ndarray]
    leaves: list[dict[str, str]]
    leaf_of_row: np.ndarray
    latency_us: np.ndarray


class Calls(NamedTuple):
    """Measured rows with the constants of a latency model for them; ``at``: by name, of shape (leaves,)."""

    latency_model: LatencyModel
    rows: Rows
    at: dict[str, np.ndarray]

    def latency_us(self) -> np.ndarray:
        """Return the predicted latency of each row in us, shape (rows,)."""
        rows, latency_model = self.rows, self.latency_model
        predicted_us = np.empty(rows.latency_us.size)
        for first in range(0, predicted_us.size, 65_536):
            block = slice(first, first + 65_536)
            leaf = rows.leaf_of_row[block]
            call = latency_model.view(np, {name: values[block] for name, values in rows.call.items()})
            gpu = {name: values[block] for name, values in rows.gpu.items()}
            at = {name: values[leaf] for name, values in self.at.items()}
            predicted_us[block] = latency_model.expression(np, call, gpu, at)[0]
        return predicted_us

    def slopes(self) -> np.ndarray:
        """Return (rows, fitted coefficients): d log latency / d log coefficient, times the coefficient's spread."""
        log_slopes = np.zeros((self.rows.latency_us.size, len(fitted_coefficients(self.latency_model))))
        for number, coefficient in enumerate(fitted_coefficients(self.latency_model)):
            name = coefficient.name
            more, less = (
                self._replace(at={**self.at, name: self.at[name] * np.exp(step)}).latency_us() for step in (STEP, -STEP)
            )
            log_slopes[:, number] = coefficient.spread * (np.log(more) - np.log(less)) / (2.0 * STEP)
        return np.nan_to_num(log_slopes)

    def take(self, indices: np.ndarray) -> Calls:
        """Return the rows at ``indices``."""
        rows = self.rows
        columns = ({name: values[indices] for name, values in arrays.items()} for arrays in (rows.call, rows.gpu))
        return self._replace(rows=Rows(*columns, rows.leaves, rows.leaf_of_row[indices], rows.latency_us[indices]))


def joined_calls(calls: Sequence[Calls]) -> Calls:
    """Concatenate calls of one latency model."""
    joined, *others = calls
    for other in others:
        first_rows, next_rows = joined.rows, other.rows
        columns = (
            {name: np.concatenate([first[name], second[name]]) for name in first}
            for first, second in ((first_rows.call, next_rows.call), (first_rows.gpu, next_rows.gpu))
        )
        leaf = np.concatenate([first_rows.leaf_of_row, next_rows.leaf_of_row + len(first_rows.leaves)])
        us = np.concatenate([first_rows.latency_us, next_rows.latency_us])
        at = {name: np.concatenate([joined.at[name], other.at[name]]) for name in joined.at}
        joined = Calls(joined.latency_model, Rows(*columns, [*first_rows.leaves, *next_rows.leaves], leaf, us), at)
    return joined


def fitted_coefficients(latency_model: LatencyModel) -> list[Coefficient]:
    """Return the coefficients of a latency model that are fitted, in order: all but the fixed ones."""
    return [coefficient for coefficient in latency_model.coefficients if coefficient.owner != "fixed"]


def read_rows(latency_model: LatencyModel, table: pa.Table, facts: Facts, gpus: pa.Table, fabrics: pa.Table) -> Rows:
    """Convert training rows to the arrays that an expression reads, in the same order."""
    skip = {
        "gpu",
        "implementation",
        "engine",
        "engine_version",
        "dtype",
        "math",
        "format",
        "distribution",
        "latency_us",
    }
    names = [name for name in table.column_names if name not in skip]
    call = {name: table[name].to_numpy(zero_copy_only=False).astype(float) for name in names}
    leaves, leaf_of_row = combinations(table, ["implementation", "dtype", "engine", "gpu", "math"])
    hardware = hardware_columns(gpus, fabrics)
    catalogue = gpus["gpu"].to_pylist()
    gpu_of_leaf = np.array([catalogue.index(leaf["gpu"]) for leaf in leaves], dtype=int)
    math_of_leaf = np.array([MATH.index(leaf["math"]) if leaf["math"] in MATH else -1 for leaf in leaves], dtype=int)
    gpu = {name: values[gpu_of_leaf][leaf_of_row] for name, values in hardware.items() if name not in BY_MATH}
    vector = hardware["vector_flops_per_us"][gpu_of_leaf]
    for name in BY_MATH:
        gpu[name] = np.where(math_of_leaf >= 0, hardware[name][gpu_of_leaf, math_of_leaf], vector)[leaf_of_row]
    paths = [{**leaf, "lineage": lineage_of(facts, leaf["implementation"])} for leaf in leaves]
    return Rows(call, gpu, paths, leaf_of_row, table["latency_us"].to_numpy(zero_copy_only=False).astype(float))


def fit_family(
    family: str,
    latency_model: LatencyModel,
    table: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    source: str,
    without: str | None = None,
    start: Sequence[Any] = (),
    free_levels: Sequence[str] = LEVELS,
) -> list[dict]:
    """Fit one family's constants to training rows; return ``eta_coefficients`` rows. Deterministic.

    ``without``: name of the generation that the rows lack, for the column of that name; ``start``, ``free_levels``:
    see :func:`kernelsight.fitting.fit.fit_nodes`.
    """
    facts = family_facts(family, implementations, gpus)
    rows = thinned(read_rows(latency_model, table, facts, gpus, fabrics))
    structure = structure_at(facts, latency_model.coefficients, rows.leaves)
    nodes = fit_nodes(
        _Viewed(latency_model),
        latency_model.coefficients,
        rows.call,
        rows.gpu,
        {name: values[rows.leaf_of_row] for name, values in structure.items()},
        [{name: leaf[name] for name in PATH} for leaf in rows.leaves],
        rows.leaf_of_row,
        rows.latency_us,
        start=start,
        free_levels=free_levels,
    )
    units = {coefficient.name: coefficient.unit for coefficient in latency_model.coefficients}
    return node_rows(family, nodes, units, without, source)


def predict_family(
    family: str, latency_model: LatencyModel, table: pa.Table, coefficients: pa.Table, *tables: pa.Table, **how: Any
) -> np.ndarray:
    """Predict the latency in us of each training row as its sweep measured it, replay gap and warm data included.

    ``tables``, ``how``: as :func:`calls_of` takes them.
    """
    return calls_of(family, latency_model, table, coefficients, *tables, **how).latency_us()


def calls_of(
    family: str,
    latency_model: LatencyModel,
    table: pa.Table,
    coefficients: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    without: str | None = None,
    measured: bool = True,
    vendor: str | None = None,
    overrides: Mapping[str, float] = MappingProxyType({}),
) -> Calls:
    """Return training rows with the constants that a pack (``coefficients``) has for them.

    ``without``, ``measured``, ``vendor``: see :func:`kernelsight.kernels.kernel_constants.constants_at`; ``overrides``:
    values of coefficients in place of the fitted ones.
    """
    facts = family_facts(family, implementations, gpus)
    rows = read_rows(latency_model, table, facts, gpus, fabrics)
    at = constants_at(facts, coefficients, family, latency_model.coefficients, rows.leaves, without, measured, vendor)
    at |= {name: np.full(len(rows.leaves), value) for name, value in overrides.items() if name in at}
    return Calls(latency_model, rows, at)


def thinned(rows: Rows, per_leaf: int = ROWS_PER_LEAF) -> Rows:
    """Subsample rows: at most ``per_leaf`` of each leaf, evenly spaced in the order of the rows, which is by size."""
    order = np.argsort(rows.leaf_of_row, kind="stable")
    starts = np.searchsorted(rows.leaf_of_row[order], np.arange(len(rows.leaves) + 1))
    kept = [
        order[first:last][np.unique(np.linspace(0, last - first - 1, min(last - first, per_leaf)).round().astype(int))]
        for first, last in zip(starts[:-1], starts[1:], strict=True)
    ]
    indices = np.sort(np.concatenate(kept)) if kept else np.empty(0, dtype=int)
    return Rows(
        {name: values[indices] for name, values in rows.call.items()},
        {name: values[indices] for name, values in rows.gpu.items()},
        rows.leaves,
        rows.leaf_of_row[indices],
        rows.latency_us[indices],
    )


class _Viewed:
    """A latency model's expression composed with its view; equal for equal ones, so that it is compiled once."""

    def __init__(self, latency_model: LatencyModel) -> None:
        self.latency_model = latency_model

    def __call__(self, xp: Any, call: Any, gpu: Any, at: Any) -> Any:
        return self.latency_model.expression(xp, self.latency_model.view(xp, call), gpu, at)

    def __hash__(self) -> int:
        return hash((self.latency_model.expression, self.latency_model.view))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Viewed) and hash(self) == hash(other)
