"""Contracts: read from files, refused when malformed, and held against rows with every fault in one message."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import polars as pl
import pyarrow as pa
import pytest

from kernelsight.dataflow.contract import Column, Contract, arrow_schema, conform, ddl, load_contracts
from kernelsight.dataflow.locations import folder
from kernelsight.dataflow.violations import duplicate_fault
from kernelsight.errors import ContractBroken, InvalidInput
from tests.asked import refusals

PARTS = Contract(
    "parts",
    "given",
    "one part",
    "The parts.",
    (
        Column("part", "string", "name", key=True),
        Column("size", "int64", "edge", key=True, unit="mm", above=0),
        Column("price", "float64", "of one", nullable=True, compare=(("below", "size"),)),
        Column("shape", "struct<m: int64, n: int64>", "its shape", nullable=True),
        Column("tags", "list<int64>", "marks", nullable=True),
    ),
)


def parts(**changed: Any) -> pa.Table:
    """Return two good rows with some columns changed; None drops one."""
    columns = {
        "part": ["bolt", "nut"],
        "size": [3, 4],
        "price": [1.5, None],
        "shape": [{"m": 1, "n": 2}, None],
        "tags": [[1, 2], None],
    }
    return pa.table({name: values for name, values in (columns | changed).items() if values is not None})


SCHEMA = json.loads((folder("schemas") / "table.schema.json").read_text())
DECLARED = {path.stem: json.loads(path.read_text()) for path in folder("schemas").glob("*.json")}
DECLARED.pop("table.schema")
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_every_contract_keeps_the_json_schema_and_names_what_there_is(name: str) -> None:
    declared, contracts = DECLARED[name], all_contracts()
    VALIDATOR.check_schema(SCHEMA)
    VALIDATOR(SCHEMA).validate(declared)
    contract = contracts[name]
    names, like = contract.column_names, declared.get("like", [])
    assert contract.table == declared["table"] == name and len(names) == len({*names})
    assert arrow_schema(contract).names == names
    others = [like] if isinstance(like, str) else like
    assert others or not {"without", "optional"} & {*declared}
    assert {*declared.get("without", ())} <= {column for other in others for column in contracts[other].column_names}
    assert {option["column"] for option in declared.get("options", ()) if "column" in option} <= {*names}
    for column in contract.columns:
        assert column.doc or contract.kind == "internal"
        assert column.checked_with <= {*names} and re.compile(column.pattern)
        table, _, referred = column.reference.partition(".")
        assert not table or referred in contracts[table].column_names


@cache
def all_contracts() -> dict[str, Contract]:
    return load_contracts(folder("schemas"))


GOOD = {
    "table": "parts",
    "kind": "given",
    "grain": "one part",
    "doc": "The parts.",
    "columns": [{"name": "part", "type": "string", "doc": "name"}],
}


@pytest.mark.parametrize(
    "change",
    refusals("dataflow/test_contract::test_the_json_schema_refuses_a_malformed_contract"),
)  # fmt: skip
def test_the_json_schema_refuses_a_malformed_contract(change: dict[str, Any]) -> None:
    VALIDATOR(SCHEMA).validate(GOOD)
    stated = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR(SCHEMA).validate(stated)


def test_an_internal_table_needs_no_texts(tmp_path: Path) -> None:
    internal = {"table": "parts", "kind": "internal", "columns": [{"name": "part", "type": "string"}]}
    (tmp_path / "parts.json").write_text(json.dumps(internal))
    contract = load_contracts(tmp_path)["parts"]
    assert (contract.kind, contract.doc, contract.columns[0].doc) == ("internal", "", "")
    assert "COMMENT" not in ddl(contract)


def test_a_contract_may_take_the_columns_of_another(tmp_path: Path) -> None:
    alike = {name: GOOD[name] for name in ("kind", "grain", "doc")}
    (tmp_path / "parts.json").write_text(json.dumps(GOOD))
    (tmp_path / "bolts.json").write_text(json.dumps({**alike, "table": "bolts", "like": "parts"}))
    contracts = load_contracts(tmp_path)
    assert contracts["bolts"].columns == contracts["parts"].columns
    names = [column["name"] for column in GOOD["columns"]]
    own = {"name": "bolt", "type": "string", "doc": "name", "key": True}
    more = {**alike, "table": "bolts", "like": "parts", "without": names[:1], "columns": [own]}
    (tmp_path / "bolts.json").write_text(json.dumps(more))
    assert load_contracts(tmp_path)["bolts"].column_names == ["bolt", *names[1:]]
    (tmp_path / "nuts.json").write_text(json.dumps({**alike, "table": "nuts", "columns": [{**own, "name": "nut"}]}))
    several = {**more, "like": ["parts", "nuts"], "without": ["nut"]}
    (tmp_path / "bolts.json").write_text(json.dumps(several))
    assert load_contracts(tmp_path)["bolts"].column_names == ["bolt", *names]


def test_the_ddl_makes_the_table_with_nullability_and_comments() -> None:
    connection = duckdb.connect()
    connection.execute(ddl(PARTS))
    columns = connection.execute("select column_name, is_nullable, comment from duckdb_columns()").fetchall()
    assert columns[:2] == [("part", False, "name"), ("size", False, "edge [mm]")]
    assert columns[2] == ("price", True, "of one")
    assert connection.execute("select comment from duckdb_tables()").fetchall() == [("The parts. Grain: one part.",)]


def test_rows_come_out_in_the_contracts_order_types_and_metadata() -> None:
    table = conform(parts().select(["tags", "size", "part", "price", "shape"]), PARTS)
    assert table.schema.equals(arrow_schema(PARTS), check_metadata=True)
    assert table.to_pylist() == parts().to_pylist()


@pytest.mark.parametrize("trusted", [False, True])
def test_pyarrow_polars_duckdb_and_record_batches_come_in_alike(trusted: bool) -> None:
    wanted = conform(parts(), PARTS, trusted=trusted)
    frame = pl.DataFrame(parts())
    connection = duckdb.connect()
    connection.register("rows", parts())
    for data in (frame, connection.sql("select * from rows"), parts().to_batches()[0]):
        assert conform(data, PARTS, trusted=trusted).equals(wanted)


def test_widths_are_changed_and_a_missing_nullable_column_is_null() -> None:
    table = parts(
        part=pa.array(["bolt", "nut"]).dictionary_encode(),
        size=pa.array([3, 4], pa.int8()),
        price=pa.array([1, 2], pa.int32()),
        tags=None,
    )
    conformed = conform(table, PARTS)
    assert conformed.column("price").to_pylist() == [1.0, 2.0]
    assert conformed.column("tags").to_pylist() == [None, None]
    assert conformed.schema == arrow_schema(PARTS)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"part": None, "size": None}, "missing columns part, size"),
        ({"prize": [1, 2]}, "unknown column prize (nearest: price)"),
        ({"size": ["3", "4"]}, "column size is string, expected int64"),
        ({"size": [3.5, 4.0]}, "column size cannot be cast to int64"),
        ({"size": pa.array([2**63, 1], pa.uint64())}, "column size cannot be cast to int64"),
        ({"part": [None, "nut"]}, "column part must not be null, but is in 1 row"),
        ({"price": [float("nan"), 1.0]}, "column price has NaN or infinity"),
        ({"price": [1.0, float("inf")]}, "column price has NaN or infinity"),
        ({"tags": [[1, None], []]}, "column tags has a null inside a list"),
        ({"shape": [{"m": 1}, {"m": 2}]}, "column shape is struct<m: int64>, expected struct<m: int64, n: int64>"),
    ],
)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_fault_of_the_columns_is_told(changed: dict, fault: str, trusted: bool) -> None:
    with pytest.raises(ContractBroken) as refusal:
        conform(parts(**changed), PARTS, trusted=trusted)
    assert str(refusal.value).startswith("table 'parts' violates its contract: ")
    assert fault in str(refusal.value)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([("x", 1, None), ("x", 2, None), ("y", 1, None)], ""),
        ([("x", 1, None), ("y", 1, "z"), ("x", 1, None)], "1 duplicate key (a 'x', b 1, c null)"),
        ([("y", 2, "z"), ("x", 3, "z"), ("x", 3, "z"), ("y", 2, "z")], "2 duplicate keys (a 'x', b 3, c 'z')"),
    ],
)
def test_keys_of_several_columns_are_compared_as_a_whole_nulls_too(rows: list[tuple], fault: str) -> None:
    names = [("a", pa.string()), ("b", pa.int64()), ("c", pa.string())]
    columns = zip(names, zip(*rows, strict=True), strict=True)
    table = pa.table({name: pa.array(values, kind) for (name, kind), values in columns})
    assert duplicate_fault(table, ["a", "b", "c"]) == fault


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"size": [3, -4]}, "column size: 1 row fails 'size > 0' (row 2: -4 mm)"),
        ({"size": [0, -4]}, "column size: 2 rows fail 'size > 0' (row 1: 0 mm)"),
        ({"part": ["nut", "nut"], "size": [3, 3]}, "1 duplicate key (part 'nut', size 3)"),
    ],
)
def test_a_fault_of_the_rows_is_told_with_an_example_and_left_out_for_trusted_rows(changed: dict, fault: str) -> None:
    with pytest.raises(ContractBroken) as refusal:
        conform(parts(**changed), PARTS)
    assert fault in str(refusal.value)
    assert conform(parts(**changed), PARTS, trusted=True).num_rows == 2


def test_every_fault_of_a_table_is_in_one_message() -> None:
    with pytest.raises(ContractBroken) as refusal:
        conform(parts(part=None, size=[0, 1], price=["a", "b"], colour=["red", "red"]), PARTS, origin="a.sql")
    message = str(refusal.value)
    assert message.startswith("table 'parts' (from a.sql) violates its contract: missing column part; ")
    for fault in ("unknown column colour", "column price is string, expected float64", "column size: 1 row fails"):
        assert fault in message


def test_a_check_over_a_column_at_fault_is_not_reported_twice() -> None:
    with pytest.raises(ContractBroken) as refusal:
        conform(parts(size=[None, 4]), PARTS)
    assert str(refusal.value).count("size") == 1


def test_what_is_no_arrow_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match="table 'parts' cannot be read from a list"):
        conform([{"part": "bolt"}], PARTS)


def test_optional_columns_of_another_table_may_be_null_and_are_checked_where_they_are_not(tmp_path: Path) -> None:
    least = {"name": "least", "type": "int64", "doc": "fewest", "in": [1, 3]}
    (tmp_path / "parts.json").write_text(json.dumps({**GOOD, "columns": [least]}))
    stated = {**GOOD, "table": "orders", "like": "parts", "optional": True}
    (tmp_path / "orders.json").write_text(json.dumps({**stated, "columns": GOOD["columns"]}))
    orders = load_contracts(tmp_path)["orders"]
    assert [column.nullable for column in orders.columns] == [False, True]
    rows = pa.table({"part": ["nut", "bolt"], "least": [None, 3]})
    assert conform(rows, orders).column("least").to_pylist() == [None, 3]
    with pytest.raises(ContractBroken, match=r"1 row fails 'least in \(1, 3\)'"):
        conform(pa.table({"part": ["nut"], "least": [0]}), orders)


def test_keys_of_words_in_a_dictionary_and_of_structs_are_compared_by_their_values() -> None:
    words = pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"]).dictionary_encode()])
    shapes = pa.array([{"m": 1, "n": 1}, {"m": 1, "n": 2}, {"m": 1, "n": 2}, {"m": 2, "n": 1}])
    table = pa.table({"word": words, "shape": shapes})
    assert duplicate_fault(table, ["word", "shape"]).startswith("1 duplicate key (word 'b'")
    assert duplicate_fault(table.slice(0, 2), ["word", "shape"]) == ""
    assert duplicate_fault(table, ["shape"]) == "1 duplicate key (shape {'m': 1, 'n': 2})"


def test_a_column_may_be_like_one_of_another_table(tmp_path: Path) -> None:
    size = {"name": "size", "type": "int64", "unit": "mm", "doc": "edge", "min": 1, "key": True}
    (tmp_path / "parts.json").write_text(json.dumps({**GOOD, "columns": [size]}))
    orders = {**GOOD, "table": "orders", "columns": [{"like": "parts.size", "nullable": True}]}
    (tmp_path / "orders.json").write_text(json.dumps(orders))
    assert load_contracts(tmp_path)["orders"].columns == (Column("size", "int64", "edge", nullable=True, unit="mm"),)


def test_no_derived_table_repeats_what_another_says_of_a_column() -> None:
    origins: dict[tuple, set[str]] = {}
    repeated = []
    declarations = [json.loads(path.read_text()) for path in sorted(folder("schemas").glob("*.json"))]
    for declaration in sorted(declarations, key=lambda stated: stated.get("kind") == "derived"):
        for column in declaration.get("columns", ()):
            if "like" not in column:
                said = tuple(column.get(field) for field in ("name", "type", "unit", "doc"))
                if said in origins and declaration["kind"] == "derived":
                    repeated.append(f"{declaration['table']}.{column['name']} is like {min(origins[said])}")
                origins.setdefault(said, set()).add(f"{declaration['table']}.{column['name']}")
    assert repeated == [], 'write {"like": "table.column"}'
