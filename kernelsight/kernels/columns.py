"""Rows that share their words: the different combinations of string columns, and each row's number among them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.columns import in_one_piece


def combinations(table: pa.Table, names: Sequence[str]) -> tuple[list[dict[str, str | None]], np.ndarray]:
    """Return the different combinations of the named columns, in order of their words, and the number of each row's.

    >>> combinations(pa.table({"gpu": ["b", "a", "b"], "engine": ["x", "x", "x"]}), ["gpu", "engine"])
    ([{'gpu': 'a', 'engine': 'x'}, {'gpu': 'b', 'engine': 'x'}], array([1, 0, 1]))
    """
    codes = np.zeros(table.num_rows, dtype=np.int64)
    words: list[list[str | None]] = []
    for name in names:
        encoded = in_one_piece(table[name])
        if not pa.types.is_dictionary(encoded.type):
            encoded = pc.dictionary_encode(encoded)
        distinct_words = encoded.dictionary.to_pylist() + [None] * bool(encoded.null_count)
        words.append(distinct_words)
        if len(distinct_words) < 2:  # one word distinguishes no rows
            continue
        order = sorted(
            range(len(distinct_words)), key=lambda at: (distinct_words[at] is not None, distinct_words[at] or "")
        )
        rank = np.empty(len(distinct_words), dtype=np.int64)
        rank[order] = np.arange(len(distinct_words))
        codes = codes * len(distinct_words) + rank[encoded.indices.fill_null(len(distinct_words) - 1).to_numpy()]
        words[-1] = [distinct_words[at] for at in order]
    kept, inverse = _present(codes, math.prod(map(len, words)))
    rows = []
    for code in kept.tolist():
        row = {}
        for name, among in zip(reversed(names), reversed(words), strict=True):
            code, at = divmod(code, len(among))
            row[name] = among[at]
        rows.append({name: row[name] for name in names})
    return rows, inverse


def _present(codes: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes, all below ``most``, that are there, and the number of each row's among them."""
    if most > max(codes.size, 1024):
        kept, inverse = np.unique(codes, return_inverse=True)
        return kept, inverse.reshape(-1)
    there = np.bincount(codes, minlength=most) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def positions(values: pa.ChunkedArray | pa.Array, among: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return the place of each word among others; words may be a dictionary.

    >>> positions(pa.array(["b", "a", "b"]), pa.array(["a", "b"])).tolist()
    [1, 0, 1]
    """
    among = among.combine_chunks() if isinstance(among, pa.ChunkedArray) else among
    if pa.types.is_dictionary(values.type):
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return positions(values.dictionary, among)[values.indices.to_numpy()]
    return pc.index_in(values, among).to_numpy(zero_copy_only=False).astype(np.int64)
