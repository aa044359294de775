"""Which kernel runs a call: what the sweeps of a family saw, in the order of what counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.cache import remembered
from kernelsight.kernels.resolve import UNKNOWN, Facts, rows_of_part

# what `calibrate measure` writes as the engine of kernels that no serving engine built, those of servers first
OWN_ENGINES = ("flashinfer_python", "nvidia_cudnn_frontend", "torch", "cublaslt", "kernelsight")


def engine_that_ran(rows: pa.Table, family: str, engine: str, gpu: str) -> str:
    """Return the engine whose kernels answer for ``engine`` on a GPU: itself, or what our own measurements ran there.

    Microbenchmarks of the GPU itself say more of it than the engine's own build does of other GPUs.
    """
    here = remembered((rows,), ("engines", family, gpu), lambda: _engines_on(rows, family, gpu))
    own = [name for name in OWN_ENGINES if name in here]
    return own[0] if own and engine not in here else engine


def _engines_on(rows: pa.Table, family: str, gpu: str) -> set[str]:
    counted = _choices(rows, family)
    return set(counted.engine.there(counted.gpu.are(gpu)))


def engine_of_vendor(facts: Facts, rows: pa.Table, family: str, engine: str, gpu: str) -> str:
    """Return ``engine``, or where it ran on no GPU of this GPU's vendor, the engine with the most rows there."""
    vendor = facts.vendor.get(gpu)
    if vendor is None:
        return engine
    counted = _choices(rows, family)
    own = np.flatnonzero(counted.gpu.each([facts.vendor.get(name) == vendor for name in counted.gpu.words]))
    return engine if engine in counted.engine.there(own) else counted.most(counted.engine, own) or engine


class Words(NamedTuple):
    """A column of words: the number of each row's, and the words."""

    number: np.ndarray
    words: list[str]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Words:
        """Return the words of a column."""
        encoded = column.combine_chunks().dictionary_encode("encode")
        return cls(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())

    def are(self, word: str | None) -> np.ndarray:
        """Return whether each row has this word."""
        return self.number == (self.words.index(word) if word in self.words else -1)

    def each(self, values: Sequence[Any]) -> np.ndarray:
        """Return for each row what belongs to its word."""
        return np.array(values)[self.number]

    def there(self, rows: np.ndarray) -> list[str]:
        """Return the words that some rows have."""
        return [self.words[number] for number in np.unique(self.number[rows]).tolist()]


class Choices(NamedTuple):
    """How often the sweeps of a family ran which kernel where."""

    engine: Words
    gpu: Words
    dtype: Words
    implementation: Words
    position: np.ndarray
    value: np.ndarray

    def most(self, column: Words, rows: np.ndarray) -> str | None:
        """Return the word with the largest count in some rows, the first of equal ones; None where there is no row."""
        counts = np.bincount(column.number[rows], self.value[rows], len(column.words))
        by_word = dict(zip(column.words, counts.tolist(), strict=True))
        return max(sorted(column.there(rows)), key=by_word.__getitem__, default=None)


def _choices(rows: pa.Table, family: str) -> Choices:
    def read() -> Choices:
        choice_rows = rows_of_part(rows, family, "choice")
        words = [Words.of(choice_rows[name]) for name in ("engine", "gpu", "dtype", "implementation")]
        return Choices(*words, choice_rows["position"].to_numpy(), choice_rows["value"].to_numpy())

    return remembered((rows,), ("choices", family), read)


def choose(facts: Facts, rows: pa.Table, family: str, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Return of each call (implementation, whether a sweep of its GPU's generation ran it).

    ``calls``: engine, gpu, dtype and, where it matters, head_dim; implementation where one is asked for, which then
    counts before all else, if any sweep ran it. What counts first: that a GPU no newer ran it, the engine, then the
    GPU, its generation or the nearest one, then the number formats, then the head width; of what is left, the
    commonest kernel. Kernels of other vendors never answer: where its own has none, it is UNKNOWN.
    """
    counted = _choices(rows, family)
    return [_choose(facts, counted, call) for call in calls]


def measured_dtype(rows: pa.Table, family: str, dtype: str) -> str:
    """Return a cell's name with BF16 for FP16, or FP16 where sweeps hold only that: their kernels are the same."""
    names = [dtype.replace("fp16", "bf16"), dtype.replace("bf16", "fp16")]
    return next((name for name in names if name in _choices(rows, family).dtype.words), names[0])


def _choose(facts: Facts, counted: Choices, call: Mapping[str, Any]) -> tuple[str, bool]:
    # what the catalogue states of a kernel holds without a sweep
    asked_kernel = call.get("implementation")
    if facts.structure.get((asked_kernel, "stated")):
        return asked_kernel, False
    gpus, kernels, vendor = counted.gpu.words, counted.implementation, facts.vendor.get(call["gpu"])
    own = np.flatnonzero(counted.gpu.each([facts.vendor.get(gpu) == vendor for gpu in gpus]))
    if not own.size:
        return UNKNOWN, False
    mine = facts.generation.get(call["gpu"])
    capability = facts.capability.get(call["gpu"], 0.0)
    newer = counted.gpu.each([facts.capability.get(gpu, 0.0) for gpu in gpus]) - capability
    akin = counted.gpu.each([mine is not None and facts.generation.get(gpu) == mine for gpu in gpus])
    # a kernel without a count answers where it is asked for by name alone
    candidates = _prefer(own, kernels.are(asked_kernel), counted.value > 0)
    # kernels of instructions that one generation has alone do not run on the next
    served = kernels.each([facts.structure.get((name, "served_to"), math.inf) >= capability for name in kernels.words])
    runs = _prefer(candidates, served)
    # others run on what comes after the GPU that they were built for, seldom before: then another engine's stand in
    candidates = _prefer(_prefer(runs, newer <= 0.0), counted.engine.are(call["engine"]))
    nearest = np.abs(newer) == np.abs(newer[candidates]).min()
    candidates = _prefer(candidates, counted.gpu.are(call["gpu"]), akin, nearest)
    seen = bool(akin[candidates].any())
    candidates = _prefer(candidates, counted.dtype.are(call["dtype"]))
    candidates = _prefer(candidates, counted.position == (call.get("head_dim") or 0))
    return counted.most(kernels, candidates), seen


def _prefer(rows: np.ndarray, *tests: np.ndarray) -> np.ndarray:
    """The rows that pass the first test that any passes; all where none does."""
    return next((passing for test in tests if (passing := rows[test[rows]]).size), rows)
