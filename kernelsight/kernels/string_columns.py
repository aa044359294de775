"""Codes of string columns: distinct combinations and each row's number, positions among values, dictionary columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.array_expressions import in_one_piece


def combinations(table: pa.Table, names: Sequence[str]) -> tuple[list[dict[str, str | None]], np.ndarray]:
    """Return the distinct combinations of string columns, sorted, null first, and the number of each row's, (rows,)."""
    codes = np.zeros(table.num_rows, dtype=np.int64)
    sorted_values: list[list[str | None]] = []
    for name in names:
        encoded = in_one_piece(table[name])
        if not pa.types.is_dictionary(encoded.type):
            encoded = pc.dictionary_encode(encoded)
        values = encoded.dictionary.to_pylist() + [None] * bool(encoded.null_count)
        sorted_values.append(values)
        if len(values) < 2:  # one value distinguishes no rows
            continue
        order = sorted(range(len(values)), key=lambda code: (values[code] is not None, values[code] or ""))
        rank = np.empty(len(values), dtype=np.int64)
        rank[order] = np.arange(len(values))
        codes = codes * len(values) + rank[encoded.indices.fill_null(len(values) - 1).to_numpy()]
        sorted_values[-1] = [values[code] for code in order]
    kept, inverse = _present(codes, math.prod(map(len, sorted_values)))
    rows = []
    for code in kept.tolist():
        row = {}
        for name, values in zip(reversed(names), reversed(sorted_values), strict=True):
            code, digit = divmod(code, len(values))
            row[name] = values[digit]
        rows.append({name: row[name] for name in names})
    return rows, inverse


def encoded(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.DictionaryArray:
    """Return a string column dictionary-encoded, others as they are; one that repeats one value is not hashed."""
    if column.type != pa.string():
        return column
    if len(column) and pc.all(pc.equal(column, column[0]), skip_nulls=False).as_py():
        return dictionary_of([column[0].as_py()], np.zeros(len(column), np.int32))
    return column.dictionary_encode()


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return a dictionary-encoded column as its values, others as they are; one value is repeated, not looked up."""
    if not pa.types.is_dictionary(column.type):
        return column
    column = in_one_piece(column)
    if len(column.dictionary) == 1 and not column.null_count:
        return pa.repeat(column.dictionary[0], len(column))
    return column.cast(column.type.value_type)


def _present(codes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct codes, all below ``most``, in ascending order, and the number of each row's, (rows,)."""
    if most > max(codes.size, 1024):
        kept, inverse = np.unique(codes, return_inverse=True)
        return kept, inverse.reshape(-1)
    is_present = np.bincount(codes, minlength=most) > 0
    return np.flatnonzero(is_present), (np.cumsum(is_present) - 1)[codes]


def positions(values: pa.ChunkedArray | pa.Array, among: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return the position of each string of ``values`` in ``among``, int64, (rows,); values may be dictionary-encoded.

    >>> positions(pa.array(["b", "a", "b"]), pa.array(["a", "b"])).tolist()
    [1, 0, 1]
    """
    among = among.combine_chunks() if isinstance(among, pa.ChunkedArray) else among
    if pa.types.is_dictionary(values.type):
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return positions(values.dictionary, among)[values.indices.to_numpy()]
    return pc.index_in(values, among).to_numpy(zero_copy_only=False).astype(np.int64)


def dictionary_of(values: pa.Array | Sequence[str | None], codes: np.ndarray) -> pa.DictionaryArray:
    """Return a dictionary-encoded string column, (rows,), from its values and the code of each row.

    A missing value is a null of the rows: Arrow cannot join columns whose dictionaries hold nulls.

    >>> dictionary_of(["a", None, "b"], np.array([2, 0, 1])).to_pylist()
    ['b', 'a', None]
    """
    words = pa.array(values, pa.string())
    if words.null_count:
        known = np.cumsum(words.is_valid().to_numpy(zero_copy_only=False)) - 1
        missing = words.is_null().to_numpy(zero_copy_only=False)[codes]
        return pa.DictionaryArray.from_arrays(pa.array(known[codes], pa.int32(), mask=missing), words.drop_null())
    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), words)


def strings_of(values: Sequence[str | None], codes: np.ndarray) -> pa.Array:
    """Return a plain string column, (rows,), from its distinct values and the code of each row.

    >>> strings_of(["a", None], np.array([1, 0, 0])).to_pylist()
    [None, 'a', 'a']
    """
    return pa.array(values, pa.string()).take(pa.array(codes))
