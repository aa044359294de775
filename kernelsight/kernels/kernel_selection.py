"""Kernel selection: the implementation that runs a call, from how often each ran in the family's sweeps.

Criteria apply one after another: GPU no newer than the call's, engine, GPU or its generation, number formats, head
width. Of the kernels that pass, the one that ran most often is chosen, in the version of the engine that is nearest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.caches.memory_cache import memoised
from kernelsight.kernels.engine_versions import version_key
from kernelsight.kernels.kernel_constants import UNKNOWN, Facts, rows_of_part

# engines as `calibrate measure` names them for kernels of libraries, which no serving engine built; in order of
# preference, the libraries that serving engines call first
MICROBENCHMARK_ENGINES = ("flashinfer_python", "nvidia_cudnn_frontend", "torch", "cublaslt", "kernelsight")

# share of the rows of the largest sweep from which a version's sweep holds all kinds of calls
WHOLE_SWEEP = 0.5


def engine_that_ran(rows: pa.Table, family: str, engine: str, gpu: str) -> str:
    """Return the engine whose kernels stand for ``engine`` on a GPU: itself, or a library that was measured there.

    Microbenchmarks on the GPU predict it better than the engine's own build on other GPUs. ``rows``:
    ``eta_coefficients``.
    """
    engines = memoised((rows,), ("engines", family, gpu), lambda: _engines_on(rows, family, gpu))
    microbenchmarks = [name for name in MICROBENCHMARK_ENGINES if name in engines]
    return microbenchmarks[0] if microbenchmarks and engine not in engines else engine


def _engines_on(rows: pa.Table, family: str, gpu: str) -> set[str]:
    counts = _kernel_counts(rows, family)
    return set(counts.engine.values_in(counts.gpu.equals(gpu)))


def engine_of_vendor(facts: Facts, rows: pa.Table, family: str, engine: str, gpu: str) -> str:
    """Return ``engine``, or the engine with the most rows on the vendor's GPUs where it ran on none of them."""
    vendor = facts.vendor.get(gpu)
    if vendor is None:
        return engine
    counts = _kernel_counts(rows, family)
    of_vendor = np.flatnonzero(counts.gpu.mapped([facts.vendor.get(name) == vendor for name in counts.gpu.values]))
    if engine in counts.engine.values_in(of_vendor):
        return engine
    return counts.most_counted(counts.engine, of_vendor) or engine


class EncodedColumn(NamedTuple):
    """A dictionary-encoded string column: the code of each row, and the distinct values."""

    code: np.ndarray  # (rows,)
    values: list[str]

    @classmethod
    def encode(cls, column: pa.ChunkedArray) -> EncodedColumn:
        """Return a string column encoded; null is a value."""
        encoded = column.combine_chunks().dictionary_encode("encode")
        return cls(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())

    def equals(self, value: str | None) -> np.ndarray:
        """Return whether each row has this value, (rows,)."""
        return self.code == (self.values.index(value) if value in self.values else -1)

    def mapped(self, by_value: Sequence[Any]) -> np.ndarray:
        """Return for each row the entry of ``by_value`` that belongs to its value, (rows,)."""
        return np.array(by_value)[self.code]

    def values_in(self, rows: np.ndarray) -> list[str]:
        """Return the distinct values of some rows."""
        return [self.values[code] for code in np.unique(self.code[rows]).tolist()]


class KernelCounts(NamedTuple):
    """How often the sweeps of a family ran each kernel, by engine, its version, GPU, formats and head width."""

    engine: EncodedColumn
    version: EncodedColumn
    gpu: EncodedColumn
    dtype: EncodedColumn
    implementation: EncodedColumn
    position: np.ndarray  # (rows,) head width, 0: any
    value: np.ndarray  # (rows,) number of measured points

    def most_counted(self, column: EncodedColumn, rows: np.ndarray) -> str | None:
        """Return the value with the largest count in some rows, of equal ones the first by name; None: no rows."""
        counts = np.bincount(column.code[rows], self.value[rows], len(column.values))
        count_of = dict(zip(column.values, counts.tolist(), strict=True))
        return max(sorted(column.values_in(rows)), key=count_of.__getitem__, default=None)

    def ran_in(self, rows: np.ndarray, asked: str | None, kin: np.ndarray) -> str | None:
        """Return the kernel that some rows, all of one choice, ran in a version (None: the newest); None: no rows.

        The majority of a sweep decides; one that holds a part of the calls alone says nothing of the choice. ``kin``:
        rows of the same choice on GPUs of the generation, which decide where they hold a nearer version.
        """
        (own, chosen), (of_kin, rows_of_kin) = self._of_version(rows, asked), self._of_version(kin, asked)
        if own and of_kin and version_key(own) < version_key(of_kin) <= version_key(asked):
            chosen = rows_of_kin
        return self.most_counted(self.implementation, chosen)

    def _of_version(self, rows: np.ndarray, asked: str | None) -> tuple[str | None, np.ndarray]:
        """Return the newest whole sweep up to a version, else the oldest, and its rows; None: rows name no version."""
        versions = self.version.values_in(rows)
        if not versions or None in versions:
            return None, rows
        rows_of = {name: rows[self.version.equals(name)[rows]] for name in sorted(versions, key=version_key)}
        points = {name: self.value[of_version].sum() for name, of_version in rows_of.items()}
        whole = [name for name in rows_of if points[name] >= WHOLE_SWEEP * max(points.values())]
        name = ([name for name in whole if version_key(name) <= version_key(asked)] or whole[:1])[-1]
        return name, rows_of[name]


def _kernel_counts(rows: pa.Table, family: str) -> KernelCounts:
    def read() -> KernelCounts:
        choice_rows = rows_of_part(rows, family, "choice")
        columns = [
            EncodedColumn.encode(choice_rows[name])
            for name in ("engine", "engine_version", "gpu", "dtype", "implementation")
        ]
        return KernelCounts(*columns, choice_rows["position"].to_numpy(), choice_rows["value"].to_numpy())

    return memoised((rows,), ("choices", family), read)


def choose(facts: Facts, rows: pa.Table, family: str, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Return for each call its implementation, and whether a sweep of its GPU's generation ran that.

    ``rows``: ``eta_coefficients``; ``calls``: engine, gpu, dtype; head_dim, where it decides the kernel;
    engine_version, None: the newest; implementation, where one is requested: it is chosen if a sweep on the vendor's
    GPUs ran it. Otherwise criteria apply in this order: a GPU no newer, the engine, the GPU, its generation or the
    nearest one, number formats, head width; then the most frequent kernel of the version. Kernels of other vendors are
    never chosen: UNKNOWN where its own has none and none is requested.
    """
    counts = _kernel_counts(rows, family)
    return [_choose(facts, counts, call) for call in calls]


def measured_dtype(rows: pa.Table, family: str, dtype: str) -> str:
    """Return a cell's name with bf16 for fp16, or fp16 where sweeps hold only that: both run the same kernels."""
    names = [dtype.replace("fp16", "bf16"), dtype.replace("bf16", "fp16")]
    return next((name for name in names if name in _kernel_counts(rows, family).dtype.values), names[0])


def _choose(facts: Facts, counts: KernelCounts, call: Mapping[str, Any]) -> tuple[str, bool]:
    requested = call.get("implementation")
    # a kernel that kernel_implementations marks as stated needs no sweep
    if facts.structure.get((requested, "stated")):
        return requested, False
    gpus, kernels, vendor = counts.gpu.values, counts.implementation, facts.vendor.get(call["gpu"])
    of_vendor = np.flatnonzero(counts.gpu.mapped([facts.vendor.get(gpu) == vendor for gpu in gpus]))
    if not of_vendor.size:
        return requested or UNKNOWN, False
    generation = facts.generation.get(call["gpu"])
    capability = facts.capability.get(call["gpu"], 0.0)
    newer = counts.gpu.mapped([facts.capability.get(gpu, 0.0) for gpu in gpus]) - capability
    same_generation = counts.gpu.mapped(
        [generation is not None and facts.generation.get(gpu) == generation for gpu in gpus]
    )
    # a kernel with a count of 0 runs only where it is requested by name
    candidates = _prefer(of_vendor, kernels.equals(requested), counts.value > 0)
    # kernels that use instructions of one generation do not run on the next
    last_capability = [facts.structure.get((name, "served_to"), math.inf) for name in kernels.values]
    candidates = _prefer(candidates, kernels.mapped(last_capability) >= capability)
    # other kernels run on GPUs newer than the one they were built for, rarely on older ones: then another engine's run
    candidates = _prefer(_prefer(candidates, newer <= 0.0), counts.engine.equals(call["engine"]))
    nearest = np.abs(newer) == np.abs(newer[candidates]).min()
    kin, candidates = (
        _prefer(_prefer(rows, counts.dtype.equals(call["dtype"])), counts.position == (call.get("head_dim") or 0))
        for rows in (
            candidates[(same_generation & counts.dtype.equals(call["dtype"]))[candidates]],
            _prefer(candidates, counts.gpu.equals(call["gpu"]), same_generation, nearest),
        )
    )
    return counts.ran_in(candidates, call.get("engine_version"), kin), bool(same_generation[candidates].any())


def _prefer(rows: np.ndarray, *tests: np.ndarray) -> np.ndarray:
    """Return the rows that pass the first test that any row passes; all rows where none passes any."""
    return next((passing for test in tests if (passing := rows[test[rows]]).size), rows)
