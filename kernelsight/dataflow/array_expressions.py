"""Columns of Arrow tables as numpy arrays, and the padded lengths for which JAX compiles functions of arrays."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def numeric(table: pa.Table, names: list[str]) -> dict[str, np.ndarray]:
    """Return the named columns as float64 arrays; ValueError for nulls, which an expression cannot represent."""
    columns = {}
    for name in names:
        column = table[name]
        if column.null_count:
            raise ValueError(f"column {name} holds {column.null_count} nulls, which an expression cannot read")
        columns[name] = np.ascontiguousarray(pc.cast(column, pa.float64()).to_numpy())
    return columns


def in_one_piece(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a chunked column as one contiguous array; a single chunk is not copied."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def bucket(rows: int) -> int:
    """Return the padded length, 1, 1.25, 1.5 or 1.75 times a power of two, so that few shapes are compiled."""
    power = 2 ** max(math.ceil(math.log2(max(rows, 16))) - 1, 4)
    return next(power * quarter // 4 for quarter in range(4, 9) if power * quarter // 4 >= rows)


def padded(values: np.ndarray, rows: int) -> np.ndarray:
    """Return an array of ``rows`` rows, padded with repetitions of its last row: zeros could divide by zero."""
    return np.concatenate([values, np.repeat(values[-1:], rows - values.shape[0], axis=0)])
