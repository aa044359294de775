"""Fit the latency expressions of all families to measured rows, and predict measured rows with what was fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.fitting.fit import fit_nodes
from kernelsight.fitting.pack_rows import node_rows
from kernelsight.kernels.coefficients import LEVELS, PATH, Coefficient
from kernelsight.kernels.columns import combinations
from kernelsight.kernels.hardware import BY_MATH, MATH, hardware_columns
from kernelsight.kernels.latency_model import Form
from kernelsight.kernels.resolve import Facts, constants_at, family_facts, lineage_of, structure_at

# of the logarithm of a constant, on both sides of it, over which a slope is taken
STEP = 0.05
# rows of one (GPU, engine, implementation, dtype) that a fit reads: more say nothing new about a dozen constants
ROWS_PER_LEAF = 1500


class Rows(NamedTuple):
    """Measured rows as an expression reads them: arrays of one value a row, and the path of each."""

    call: dict[str, np.ndarray]
    gpu: dict[str, np.ndarray]
    leaves: list[dict[str, str]]
    leaf_of_row: np.ndarray
    latency_us: np.ndarray


class Calls(NamedTuple):
    """Measured rows with the constants (of each leaf) that a form's expression evaluates them with."""

    form: Form
    rows: Rows
    at: dict[str, np.ndarray]

    def latency_us(self) -> np.ndarray:
        """Return the latency of each row in us."""
        rows, form = self.rows, self.form
        predicted_us = np.empty(rows.latency_us.size)
        for first in range(0, predicted_us.size, 65_536):
            block = slice(first, first + 65_536)
            leaf = rows.leaf_of_row[block]
            call = form.view(np, {name: values[block] for name, values in rows.call.items()})
            gpu = {name: values[block] for name, values in rows.gpu.items()}
            at = {name: values[leaf] for name, values in self.at.items()}
            predicted_us[block] = form.expression(np, call, gpu, at)[0]
        return predicted_us

    def slopes(self) -> np.ndarray:
        """Return (rows, fitted coefficients): d log latency / d log coefficient, times the coefficient's spread."""
        log_slopes = np.zeros((self.rows.latency_us.size, len(fitted_coefficients(self.form))))
        for number, one in enumerate(fitted_coefficients(self.form)):
            more, less = (
                self._replace(at={**self.at, one.name: self.at[one.name] * np.exp(step)}).latency_us()
                for step in (STEP, -STEP)
            )
            log_slopes[:, number] = one.spread * (np.log(more) - np.log(less)) / (2.0 * STEP)
        return np.nan_to_num(log_slopes)

    def taken(self, taken: np.ndarray) -> Calls:
        """Return some of the rows."""
        rows = self.rows
        columns = ({name: values[taken] for name, values in each.items()} for each in (rows.call, rows.gpu))
        return self._replace(rows=Rows(*columns, rows.leaves, rows.leaf_of_row[taken], rows.latency_us[taken]))


def joined_calls(parts: Sequence[Calls]) -> Calls:
    """Return calls of one form after one another."""
    first, *more = parts
    for one in more:
        first_rows, next_rows = first.rows, one.rows
        columns = (
            {name: np.concatenate([mine[name], other[name]]) for name in mine}
            for mine, other in ((first_rows.call, next_rows.call), (first_rows.gpu, next_rows.gpu))
        )
        leaf = np.concatenate([first_rows.leaf_of_row, next_rows.leaf_of_row + len(first_rows.leaves)])
        us = np.concatenate([first_rows.latency_us, next_rows.latency_us])
        at = {name: np.concatenate([first.at[name], one.at[name]]) for name in first.at}
        first = Calls(first.form, Rows(*columns, [*first_rows.leaves, *next_rows.leaves], leaf, us), at)
    return first


def fitted_coefficients(form: Form) -> list[Coefficient]:
    """Return the coefficients of a form that are fitted."""
    return [one for one in form.coefficients if one.owner != "fixed"]


def read_rows(form: Form, table: pa.Table, facts: Facts, gpus: pa.Table, fabrics: pa.Table) -> Rows:
    """Lay training rows out for an expression; their order is kept."""
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
    form: Form,
    table: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    source: str,
    without: str | None = None,
    start: Sequence[Any] = (),
    free_levels: Sequence[str] = LEVELS,
) -> list[dict]:
    """Fit one family's constants to training rows; return ``eta_coefficients`` rows. Deterministic."""
    facts = family_facts(family, implementations, gpus)
    rows = thinned(read_rows(form, table, facts, gpus, fabrics))
    structure = structure_at(facts, form.coefficients, rows.leaves)
    nodes = fit_nodes(
        _Viewed(form),
        form.coefficients,
        rows.call,
        rows.gpu,
        {name: values[rows.leaf_of_row] for name, values in structure.items()},
        [{name: leaf[name] for name in PATH} for leaf in rows.leaves],
        rows.leaf_of_row,
        rows.latency_us,
        start=start,
        free_levels=free_levels,
    )
    return node_rows(family, nodes, {one.name: one.unit for one in form.coefficients}, without, source)


def predict_family(
    family: str, form: Form, table: pa.Table, coefficients: pa.Table, *tables: pa.Table, **how: Any
) -> np.ndarray:
    """Return the latency in us of each training row as its sweep measured it: replay gap and warm data included.

    ``tables``, ``how``: of :func:`calls_of`.
    """
    return calls_of(family, form, table, coefficients, *tables, **how).latency_us()


def calls_of(
    family: str,
    form: Form,
    table: pa.Table,
    coefficients: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    without: str | None = None,
    measured: bool = True,
    vendor: str | None = None,
    stated: Mapping[str, float] = MappingProxyType({}),
) -> Calls:
    """Return training rows with the constants that a pack has for them.

    ``without``, ``measured``, ``vendor``: see :func:`kernelsight.kernels.resolve.constants_at`; ``stated``: values of
    coefficients in place of those fitted.
    """
    facts = family_facts(family, implementations, gpus)
    rows = read_rows(form, table, facts, gpus, fabrics)
    at = constants_at(facts, coefficients, family, form.coefficients, rows.leaves, without, measured, vendor)
    at |= {name: np.full(len(rows.leaves), value) for name, value in stated.items() if name in at}
    return Calls(form, rows, at)


def thinned(rows: Rows, per_leaf: int = ROWS_PER_LEAF) -> Rows:
    """Keep at most ``per_leaf`` rows of each leaf, evenly spaced in the order of the rows (that of their sizes)."""
    order = np.argsort(rows.leaf_of_row, kind="stable")
    starts = np.searchsorted(rows.leaf_of_row[order], np.arange(len(rows.leaves) + 1))
    kept = [
        order[first:last][np.unique(np.linspace(0, last - first - 1, min(last - first, per_leaf)).round().astype(int))]
        for first, last in zip(starts[:-1], starts[1:], strict=True)
    ]
    at = np.sort(np.concatenate(kept)) if kept else np.empty(0, dtype=int)
    return Rows(
        {name: values[at] for name, values in rows.call.items()},
        {name: values[at] for name, values in rows.gpu.items()},
        rows.leaves,
        rows.leaf_of_row[at],
        rows.latency_us[at],
    )


class _Viewed:
    """The expression behind its view, equal to another of the same form, so that it is compiled once."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def __call__(self, xp: Any, call: Any, gpu: Any, at: Any) -> Any:
        return self.form.expression(xp, self.form.view(xp, call), gpu, at)

    def __hash__(self) -> int:
        return hash((self.form.expression, self.form.view))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Viewed) and hash(self) == hash(other)
