"""Files of search spaces: what is read, and every row that is refused in a sentence."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import ContractBroken, InvalidInput
from kernelsight.searching.arrays import space_arrays
from kernelsight.searching.space_files import chosen_space, identity, read_spaces, space_tables
from tests.asked import refusals
from tests.searching.made_spaces import made_tables


def rows(*changes: dict) -> pa.Table:
    base = {"space": "s", "gpu": "g", "parameters": '{"a": 1}', "latency_us": 2.0, "status": "ok", "cv": None}
    base |= {"samples": None, "compile_s": None, "benchmark_s": None, "source": "f"}
    schema = pa.schema([(n, pa.string()) for n in ("space", "gpu", "parameters", "status", "source")])
    for name in ("latency_us", "cv", "compile_s", "benchmark_s"):
        schema = schema.append(pa.field(name, pa.float64()))
    return pa.Table.from_pylist([base | change for change in changes], schema.append(pa.field("samples", pa.int64())))


def test_the_order_of_parameters_is_no_other_candidate():
    table = rows({"parameters": '{"a": 1, "b": 2}'}, {"gpu": "h", "parameters": '{"b": 2.0, "a": 1}'})
    assert space_tables(table, "f").kernel_candidates["candidate_id"].to_pylist() == ["a=1,b=2"]


def test_a_candidate_keeps_its_id_in_any_spelling():
    assert identity({"b": True, "a": 0.5}) == "a=0.5,b=1"
    assert identity({"b": 1, "a": 0.5}) == "a=0.5,b=1"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    refusals("searching/test_space_files::test_rows_that_no_search_can_use_are_refused"),
)
def test_rows_that_no_search_can_use_are_refused(changes, sentence):
    with pytest.raises(InvalidInput, match=sentence.replace("(", "[(]")):
        space_tables(rows(*changes), "f.parquet")


def test_equal_repeats_are_one_measurement():
    assert len(space_tables(rows({}, {}), "f").kernel_measurements) == 1


@pytest.mark.parametrize(
    ("second", "sentence"),
    [({"a": "x"}, "parameter 'a' is a word in 1 of 2"), ({"b": 1}, "parameter 'a' is missing in 1 of 2")],
)
def test_parameters_of_mixed_types_are_refused(second, sentence):
    tables = space_tables(rows({}, {"parameters": json.dumps(second)}), "f")
    with pytest.raises(InvalidInput, match=sentence):
        space_arrays(tables.kernel_candidates, tables.kernel_measurements, "s")


@pytest.mark.parametrize(("column", "value"), [("cv", -0.1), ("samples", 0), ("compile_s", float("inf"))])
def test_figures_that_the_contract_refuses_name_file_row_and_column(column, value, tmp_path):
    pq.write_table(rows({"latency_us": None, "status": "unmeasured"}, {column: value}), tmp_path / "f.parquet")
    with pytest.raises(ContractBroken, match=rf"\(from .*f\.parquet\).*column {column}.*row 2"):
        read_spaces([tmp_path / "f.parquet"])


def test_a_file_without_columns_is_refused(tmp_path):
    pq.write_table(pa.table({"space": ["s"], "gpu": ["g"]}), tmp_path / "f.parquet")
    with pytest.raises(InvalidInput, match="has no columns parameters, latency_us, status; a file of search spaces"):
        read_spaces([tmp_path / "f.parquet"])
    (tmp_path / "no.parquet").write_text("no")
    with pytest.raises(InvalidInput, match="cannot be read as Parquet"):
        read_spaces([tmp_path / "no.parquet"])


def test_an_unknown_space_gets_the_nearest():
    with pytest.raises(InvalidInput, match="unknown search space 'mode'; use made"):
        chosen_space(made_tables(), "mode")
    two = space_tables(rows({}, {"space": "t"}), "f")
    with pytest.raises(InvalidInput, match="has 2 search spaces; choose one by --kernel: s, t"):
        chosen_space(two, None)
