"""Different combinations of words, and each row's number, against a walk over the rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsight.kernels.string_columns import combinations

NAMES = ("gpu", "engine", "dtype")
words = st.sampled_from([None, "", "a", "b", "a|b", "é"])


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(words, words, words), max_size=40), encoded=st.booleans(), pieces=st.booleans())
def test_every_row_finds_its_words_and_no_two_combinations_are_equal(
    rows: list[tuple], encoded: bool, pieces: bool
) -> None:
    table = pa.table({name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate(NAMES)})
    if encoded:
        table = pa.table({name: table[name].dictionary_encode() for name in NAMES})
    if pieces and rows:
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    found, number = combinations(table, NAMES)
    assert [tuple(found[at].values()) for at in number] == rows
    # in order of their words, a missing one first
    kinds = sorted(set(rows), key=lambda row: [(word is not None, word or "") for word in row])
    assert [tuple(one.values()) for one in found] == kinds


@pytest.mark.parametrize("names", [NAMES, NAMES[:1]])
def test_no_rows_have_no_combinations(names: tuple[str, ...]) -> None:
    table = pa.table({name: pa.array([], pa.string()) for name in NAMES})
    found, number = combinations(table, names)
    assert (found, number.tolist()) == ([], [])
