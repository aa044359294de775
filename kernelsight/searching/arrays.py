"""Arrays of a search space: candidates (configurations) by id, their features, each GPU's measurements of them.

Features for a forecaster are scaled parameters, and threads, work and tiles derived from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput, unknown
from kernelsight.files.own import own_json

WARP = 32
# parameters with at most REGIME_VALUES values split the space into regimes, of which there are at most MOST_REGIMES
REGIME_VALUES, MOST_REGIMES = 2, 16
# ratio of largest to smallest value from which a parameter is scaled logarithmically
LOGARITHMIC = 4.0
_AXIS = re.compile(r"(?P<what>block_size|tile_size|work_per_thread|elements_per_thread)_(?P<axis>[xyz])")


class Features(NamedTuple):
    """Features of all candidates: ``matrix`` (candidates, features) between 0 and 1, and the features' names.

    ``regimes``: (candidates,), index of the combination of two-valued parameters.
    """

    matrix: np.ndarray
    names: tuple[str, ...]
    regimes: np.ndarray
    levels: np.ndarray  # (candidates, parameters): rank of the value among the parameter's values


def features_of(space: str, parameters: Sequence[Mapping[str, Any]]) -> Features:
    """Compute the features of configurations; InvalidInput: a parameter is missing or of another type in some.

    >>> features = features_of("s", [{"block_size_x": 32, "block_size_y": 2, "v": 1}, {"block_size_x": 64,
    ...     "block_size_y": 4, "v": 1}])
    >>> features.names, features.matrix.tolist()
    (('block_size_x', 'block_size_y', 'threads'), [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    """
    values = _columns(space, parameters)
    varying = {name: column for name, column in values.items() if len(np.unique(column)) > 1}
    numbers = {name: column for name, column in values.items() if column.dtype != object}
    varying_numbers = {name: column for name, column in varying.items() if column.dtype != object}
    scaled = {
        name: _scaled(column) for name, column in (varying_numbers | _derived(numbers)).items() if np.ptp(column) > 0
    }
    for name, column in varying.items():
        if column.dtype == object:
            words = np.unique(column.astype(str))
            scaled |= {f"{name}={word}": (column.astype(str) == word).astype(float) for word in words}
    rows = len(parameters)
    matrix = np.column_stack(list(scaled.values())) if scaled else np.zeros((rows, 1))
    levels = [np.unique(_sortable(column), return_inverse=True)[1].ravel() for column in varying.values()]
    return Features(
        *(np.ascontiguousarray(matrix), tuple(scaled) or ("constant",), _regimes(levels, rows)),
        np.column_stack(levels).astype(np.int32) if levels else np.zeros((rows, 1), np.int32),
    )


def _sortable(column: np.ndarray) -> np.ndarray:
    return column.astype(str) if column.dtype == object else column


def _columns(space: str, parameters: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    names = sorted({name for row in parameters for name in row})
    columns = {}
    for name in names:
        column = [row.get(name) for row in parameters]
        missing = sum(value is None for value in column)
        words = sum(isinstance(value, str) for value in column)
        if missing or 0 < words < len(column):
            fault = f"is missing in {missing:,}" if missing else f"is a word in {words:,}"
            raise InvalidInput(
                f"space {space!r}: parameter {name!r} {fault} of {len(column):,} configurations; give each "
                "configuration the same parameters, as numbers or as words."
            )
        columns[name] = np.array(column, dtype=object if words else np.float64)
    return columns


def _scaled(column: np.ndarray) -> np.ndarray:
    """Scale values to 0..1, logarithmically where the largest is at least LOGARITHMIC times the smallest."""
    low, high = column.min(), column.max()
    if low > 0 and high / low >= LOGARITHMIC:
        column, low, high = np.log2(column), np.log2(low), np.log2(high)
    return (column - low) / (high - low)


def _regimes(levels: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Return the regime of each row, its combination of two-valued parameters; a single one where they are too many."""
    binary = [column for column in levels if column.max() < REGIME_VALUES]
    if not binary:
        return np.zeros(rows, dtype=np.int32)
    codes = np.unique(np.column_stack(binary), axis=0, return_inverse=True)[1].ravel()
    return codes.astype(np.int32) if codes.max() < MOST_REGIMES else np.zeros(rows, dtype=np.int32)


def _derived(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Derive threads per block, work per thread, tile of a block, and how full the last warp is, from parameters."""
    derived: dict[str, np.ndarray] = {}
    blocks, works = {}, {}
    for name, column in columns.items():
        match = _AXIS.fullmatch(name)
        if match:
            (blocks if match["what"] == "block_size" else works)[match["axis"]] = column
    if {"MWG", "NWG", "MDIMC", "NDIMC"} <= set(columns):  # names of the GEMM of CLBlast
        blocks = {"m": columns["MDIMC"], "n": columns["NDIMC"]}
        works = {"m": columns["MWG"] / columns["MDIMC"], "n": columns["NWG"] / columns["NDIMC"]}
    if blocks:
        threads = np.prod(list(blocks.values()), axis=0)
        derived["threads"] = threads
        last_warp = threads % WARP
        derived["last_warp"] = np.where(last_warp == 0, 1.0, last_warp / WARP)
    if works:
        derived["work_per_thread"] = np.prod(list(works.values()), axis=0)
    for axis in blocks.keys() & works.keys():
        derived[f"tile_{axis}"] = blocks[axis] * works[axis]
    if blocks and works:
        derived["tile"] = derived["threads"] * derived["work_per_thread"]
    return {name: column for name, column in sorted(derived.items()) if not _equals_a_parameter(column, columns)}


def _equals_a_parameter(column: np.ndarray, columns: Mapping[str, np.ndarray]) -> bool:
    """Return whether a parameter has the same values."""
    return any(np.array_equal(column, existing) for existing in columns.values())


UNMEASURED, OK, COMPILE_FAILED, RUNTIME_FAILED, WRONG_RESULT = range(5)
STATUS = ("unmeasured", "ok", "compile_failed", "runtime_failed", "wrong_result")


class Measured(NamedTuple):
    """The measurements of all candidates on one GPU, arrays of shape (candidates,); medians over runs."""

    status: np.ndarray
    latency_us: np.ndarray  # nan unless status is OK
    cv: np.ndarray  # nan where not known
    samples: np.ndarray  # nan where not known
    compile_s: np.ndarray  # nan where not known
    benchmark_s: np.ndarray


class SpaceArrays(NamedTuple):
    """A search space: its candidates in order of their ids, and the measurements by GPU."""

    space: str
    ids: np.ndarray
    parameters: np.ndarray  # JSON texts
    features: Features
    gpus: dict[str, Measured]


def space_arrays(candidates: pa.Table, measurements: pa.Table, space: str) -> SpaceArrays:
    """Return the arrays of one space of ``kernel_candidates`` and ``kernel_measurements``."""
    rows = candidates.filter(pc.equal(candidates["space"], space))
    if not len(rows):
        raise InvalidInput(f"search space {space!r} has no candidates; give rows of kernel_candidates.")
    ids = np.array(rows["candidate_id"].to_pylist(), dtype=object)
    order = np.argsort(ids, kind="stable")
    parameters = np.array(rows["parameters"].to_pylist(), dtype=object)[order]
    features = features_of(space, [own_json(text) for text in parameters])
    ids = ids[order]
    measured = measurements.filter(pc.equal(measurements["space"], space))
    gpus = {}
    for gpu in sorted(pc.unique(measured["gpu"]).to_pylist()):
        gpus[gpu] = _measured(measured.filter(pc.equal(measured["gpu"], gpu)), ids, space, gpu)
    return SpaceArrays(space, ids, parameters, features, gpus)


def _measured(rows: pa.Table, ids: np.ndarray, space: str, gpu: str) -> Measured:
    index = pc.index_in(rows["candidate_id"], pa.array(ids, pa.string()))
    if index.null_count:
        unlisted = rows["candidate_id"].filter(pc.is_null(index))[0].as_py()
        raise unknown("candidate", unlisted, [], f"Measured on {gpu}, but not among the candidates of {space!r}.")
    candidate_rows = index.to_numpy()
    coded = np.array([STATUS.index(word) for word in rows["status"].to_pylist()], dtype=np.int8)
    status = np.zeros(len(ids), dtype=np.int8)
    np.maximum.at(status, candidate_rows, coded)
    worked = coded == OK
    columns = [
        _median(candidate_rows[worked], rows[name].to_numpy(zero_copy_only=False).astype(float)[worked], len(ids))
        for name in ("latency_us", "cv", "samples")
    ]
    columns[0][status != OK] = np.nan
    costs = [
        _median(candidate_rows, rows[name].to_numpy(zero_copy_only=False).astype(float), len(ids))
        for name in ("compile_s", "benchmark_s")
    ]
    return Measured(status, *columns, *costs)


def _median(row_of_values: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    """Return the median of the values of each row, shape (rows,); nan for a row without one."""
    medians = np.full(rows, np.nan)
    measured = ~np.isnan(values)
    row_of_values, values = row_of_values[measured], values[measured]
    if len(np.unique(row_of_values)) == len(row_of_values):
        medians[row_of_values] = values
        return medians
    for row in np.unique(row_of_values):
        medians[row] = np.median(values[row_of_values == row])
    return medians
