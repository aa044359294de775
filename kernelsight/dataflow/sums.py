"""Sorts and looks up a table's rows by columns, and adds up whole numbers exactly by group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def sorted_by(table: pa.Table, *names: str) -> pa.Table:
    """Sort a table by columns, ascending; unlike ``Table.sort_by`` it imports no query engine."""
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in names]))


def rows_by_key(table: pa.Table, key: str, values: pa.ChunkedArray | pa.Array) -> pa.Table:
    """Look up, for each of ``values``, the table's row with that value in column ``key``; nulls where there is none."""
    return table.take(pc.index_in(values, table[key].combine_chunks()))


HALF = 2.0**30


class WholeSums:
    """Sums of whole numbers by group, the same in any order of rows; arrays of shape (groups,).

    High and low halves are summed separately, each exact below 2^53: sums up to 2^83 are rounded once, by ``total``.

    >>> sums = WholeSums(3)
    >>> sums.add(np.array([2**60, 1, 5, 3]), np.array([0, 0, 2, 2]))
    >>> sums.total().tolist(), sums.by(np.array([0, 0, 0]), 1).total().tolist()
    ([1.152921504606847e+18, 0.0, 8.0], [1.152921504606847e+18])
    """

    def __init__(self, size: int) -> None:
        self.high, self.low = np.zeros(size), np.zeros(size)

    def add(self, values: np.ndarray, group: np.ndarray) -> None:
        """Add whole numbers, as integers or floats, each to its ``group``, an index; both of shape (values,)."""
        high, low = np.divmod(values, int(HALF) if values.dtype.kind == "i" else HALF)
        self.high += np.bincount(group, high, self.high.size)
        self.low += np.bincount(group, low, self.low.size)

    def by(self, group: np.ndarray, size: int) -> WholeSums:
        """Return the sums by coarser groups: ``group`` is the index, among ``size``, of each present group."""
        sums = WholeSums(size)
        sums.high, sums.low = (np.bincount(group, half, size) for half in (self.high, self.low))
        return sums

    def total(self) -> np.ndarray:
        """Return the sums as float64, shape (groups,)."""
        return self.high * HALF + self.low


def whole_sums(values: np.ndarray, group: np.ndarray, size: int) -> np.ndarray:
    """Sum whole numbers by group, rounded once: float64 of shape (size,); ``group``: each value's index."""
    sums = WholeSums(size)
    sums.add(values, group)
    return sums.total()


def rounded(values: np.ndarray) -> np.ndarray:
    """Round floats to whole numbers, halves away from zero."""
    size = np.abs(values)
    whole = np.floor(size)
    return np.copysign(whole + (size - whole >= 0.5), values)
