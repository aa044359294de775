"""The type grammar: what it reads, what it refuses, and how it is spelled in Arrow and DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.dataflow.databases import cursor_for_values
from kernelsight.dataflow.types import arrow_type, can_become, duckdb_type, is_finite, type_name

SCALARS = st.sampled_from(["string", "bool", "int32", "int64", "float32", "float64"])
FIELDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4, unique=True)


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    structs = FIELDS.flatmap(
        lambda names: st.tuples(*[inner] * len(names)).map(
            lambda kinds: f"struct<{', '.join(f'{name}: {kind}' for name, kind in zip(names, kinds, strict=True))}>"
        )
    )
    return inner.map(lambda kind: f"list<{kind}>") | structs


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


@given(text=st.recursive(SCALARS, nested, max_leaves=6))
def test_a_type_is_spelled_back_as_it_was_written_and_duckdb_takes_it(
    text: str, connection: duckdb.DuckDBPyConnection
) -> None:
    kind = arrow_type(text)
    assert type_name(kind) == text
    relation = connection.sql(f"select null::{duckdb_type(kind)} as x")
    assert can_become(relation.to_arrow_table().schema.field("x").type, kind)


@pytest.mark.parametrize("text", ["int", "list<>", "list<int64", "struct<>", "struct<a int64>", "struct<A: int64>", ""])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a (column type; use|struct field; write)"):
        arrow_type(text)


@pytest.mark.parametrize(
    ("found", "wanted", "may"),
    [
        (pa.large_string(), "string", True),
        (pa.string_view(), "string", True),
        (pa.dictionary(pa.int8(), pa.string()), "string", True),
        (pa.int32(), "float64", True),
        (pa.decimal128(38, 0), "int64", True),
        (pa.null(), "bool", True),
        (pa.large_list(pa.int32()), "list<int64>", True),
        (pa.string(), "int64", False),
        (pa.bool_(), "int64", False),
        (pa.timestamp("us"), "int64", False),
        (pa.list_(pa.string()), "list<int64>", False),
        (pa.struct({"m": pa.int32()}), "struct<m: int64>", True),
        (pa.struct({"m": pa.int32(), "n": pa.int32()}), "struct<m: int64>", False),
        (pa.struct({}), "struct<m: int64>", False),
    ],
)
def test_a_column_may_stand_for_the_same_sort_of_value_only(found: pa.DataType, wanted: str, may: bool) -> None:
    assert can_become(found, arrow_type(wanted)) is may


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_is_not_finite_is_found_at_any_depth(bad: float) -> None:
    for values in ([1.0, bad], [[1.0], [bad]], [{"a": 1.0}, {"a": bad}], [[{"a": bad}]]):
        assert not is_finite(pa.array(values))
    assert is_finite(pa.array([1.0, None])) and is_finite(pa.array([], pa.float64())) and is_finite(pa.array(["nan"]))


def test_a_database_that_a_value_made_unusable_is_opened_anew() -> None:
    with cursor_for_values() as cursor:
        cursor.register("shown", pa.table({"value": pa.array([2**62]).view(pa.time64("us"))}))
        with pytest.raises(duckdb.Error):
            cursor.sql("select value::varchar from shown").fetchall()
    with cursor_for_values() as cursor:
        assert cursor.sql("select 2").fetchall() == [(2,)]
