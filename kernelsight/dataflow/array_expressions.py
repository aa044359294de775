"""Evaluates array expressions over Arrow columns, in blocks of rows on several threads.

An expression is a function ``f(xp, *arguments) -> dict of arrays`` that uses only elementwise operations of ``xp``:
numpy evaluates it here, JAX where it is fitted. float64 is rounded well above its noise, so that a row gives the same
bytes in any batch of rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.blas import one_blas_thread

# large blocks: with 16,384 rows two threads wait for the GIL as long as they compute
BLOCK_ROWS = 131_072
THREAD_BLOCKS = 2  # blocks per additional thread
OFF_TIES = 1.0 + 2.0**-29


def numeric(table: pa.Table, names: list[str]) -> dict[str, np.ndarray]:
    """Return the named columns as float64 arrays; ValueError for nulls, which an expression cannot represent.

    >>> import pyarrow as pa
    >>> numeric(pa.table({"m": [1, 2]}), ["m"])
    {'m': array([1., 2.])}
    """
    columns = {}
    for name in names:
        column = table[name]
        if column.null_count:
            raise ValueError(f"column {name} holds {column.null_count} nulls, which an expression cannot read")
        columns[name] = np.ascontiguousarray(pc.cast(column, pa.float64()).to_numpy())
    return columns


def in_one_piece(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a chunked column as one contiguous array; a single chunk is not copied.

    >>> in_one_piece(pa.chunked_array([[1], [2]])).to_pylist()
    [1, 2]
    """
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def bucket(rows: int) -> int:
    """Return the padded length: the next of 1, 1.25, 1.5, 1.75 times a power of two, so that few shapes are compiled.

    >>> bucket(1000), bucket(1100)
    (1024, 1280)
    """
    power = 2 ** max(math.ceil(math.log2(max(rows, 16))) - 1, 4)
    return next(power * quarter // 4 for quarter in range(4, 9) if power * quarter // 4 >= rows)


def padded(values: np.ndarray, rows: int) -> np.ndarray:
    """Return an array of ``rows`` rows, padded with repetitions of its last row: zeros could divide by zero."""
    return np.concatenate([values, np.repeat(values[-1:], rows - values.shape[0], axis=0)])


def to_grid(values: np.ndarray) -> np.ndarray:
    """Round to the 24 significant bits of float32 (6e-8 of the value), as float64.

    Blocks of other lengths differ in the last bits of float64, some ten million times finer. Values exactly half way
    between two grid points, as round sizes over round rates give, are first moved to one side.

    >>> to_grid(np.array([1 / 3, 1e12 / 3])).tolist()
    [0.3333333432674408, 333333331968.0]
    """
    return (values * OFF_TIES).astype(np.float32).astype(np.float64)


def evaluate(
    expression: Callable[..., dict[str, Any]], rows: int, columns: Mapping[str, np.ndarray], *shared: Any
) -> dict[str, np.ndarray]:
    """Run ``expression(numpy, columns, *shared)`` over ``rows`` rows; return float64 arrays of shape (rows,), rounded.

    ``columns`` are arrays of length ``rows``; ``shared`` are dicts of arrays or numbers that every row reads. Rounding:
    :func:`to_grid`.
    """

    def run(start: int, stop: int) -> dict[str, np.ndarray]:
        results = expression(np, {name: values[start:stop] for name, values in columns.items()}, *shared)
        arrays = {name: np.asarray(values, dtype=np.float64) for name, values in results.items()}
        return {name: to_grid(np.broadcast_to(values, (stop - start,))) for name, values in arrays.items()}

    return by_blocks(run, rows)


def by_blocks(run: Callable[[int, int], Mapping[str, np.ndarray]], rows: int) -> dict[str, np.ndarray]:
    """Return the concatenated columns of ``run(start, stop)`` over blocks of rows, on several threads.

    >>> by_blocks(lambda start, stop: {"row": np.arange(start, stop)}, 3)
    {'row': array([0, 1, 2])}
    """
    starts = range(0, max(rows, 1), BLOCK_ROWS)
    threads = min(len(starts) // THREAD_BLOCKS, os.cpu_count() or 1)
    with one_blas_thread():
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                blocks = list(pool.map(lambda start: run(start, min(start + BLOCK_ROWS, rows)), starts))
        else:
            blocks = [run(start, min(start + BLOCK_ROWS, rows)) for start in starts]
    if len(blocks) == 1:
        return dict(blocks[0])
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
