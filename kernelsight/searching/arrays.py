"""Arrays of a search space: its candidates (configurations) by id, and each GPU's measurements of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput, unknown
from kernelsight.files.own import own_json
from kernelsight.searching.features import Features, features_of

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

    def rows_of(self, ids: list[str]) -> np.ndarray:
        """Return the row indices of candidate ids; UnknownName for an id that the space does not have."""
        rows = np.searchsorted(self.ids, ids) if len(ids) else np.zeros(0, int)
        for row, name in zip(rows, ids, strict=True):
            if row >= len(self.ids) or self.ids[row] != name:
                raise unknown("candidate", name, [], f"Space {self.space!r} has {len(self.ids):,} others.")
        return rows


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
