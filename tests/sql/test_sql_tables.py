"""Every SQL file, and Python nodes as simple, against rows: what its fixture gives, and the answer worked out by hand.

A fixture `tests/sql/<table>.json` states the inputs' rows and the expected rows. Input columns that do not matter stand
in `defaults.json`; inputs that it leaves out are empty. Only the columns that the expected rows name are compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.dataflow.sql_nodes import sql_files
from kernelsight.session import Session, connect

HERE = Path(__file__).parent
QUERIES = set(sql_files(HERE.parents[1] / "sql"))
IN_PYTHON = {
    *("cache_over_time", "gpu_power", "kernel_breakdown", "kv_transfers", "request_metrics", "scenario_energy"),
    *(
        "scenario_intervals",
        "scenario_summary",
        "step_costs",
        "step_totals",
        "deployment_tiers",
        "deployment_evidence",
        "eta_portability",
    ),
    *("scenario_tiers", "scenario_evidence"),
}
FIXTURES = {path.stem for path in HERE.glob("*.json")} - {"defaults"}
DEFAULTS = json.loads((HERE / "defaults.json").read_text())
Row = dict[str, Any]


def filled(session: Session, table: str, rows: list[Row]) -> pa.Table:
    """Rows with every column: the fixture's value, else the table's default, else the column's, else null."""
    contract = session.graph.contracts[table]
    stray = {name for row in rows for name in row} - set(contract.column_names)
    assert not stray, f"{table} has no columns {stray}"
    defaults = {**DEFAULTS["columns"], **DEFAULTS["tables"].get(table, {})}
    names = {column.name: column.arrow_type for column in contract.columns}
    like = DEFAULTS["like"]

    def value(row: Row, name: str) -> Any:
        """The value stated for a column, else that of the column that it is like."""
        other = like.get(name) if table == "sharded_layers" else None
        return row[name] if name in row else value(row, other) if other else defaults.get(name)

    return pa.table({name: pa.array([value(row, name) for row in rows], kind) for name, kind in names.items()})


def flat(row: Row) -> Row:
    """A row with its structs spread out as `struct.field`, without their nulls."""
    spread = {}
    for name, value in row.items():
        if isinstance(value, dict):
            spread |= {f"{name}.{field}": size for field, size in value.items() if size is not None}
        else:
            spread[name] = value
    return spread


def ordered(rows: list[Row]) -> list[Row]:
    """Rows in an order that rounding does not change: by everything else, then by their floats."""

    def place(row: Row) -> tuple[str, list[float]]:
        columns = sorted(row.items())
        floats = [value for _, value in columns if isinstance(value, float)]
        return repr([each for each in columns if not isinstance(each[1], float)]), floats

    return sorted(map(flat, rows), key=place)


def near(value: Any) -> Any:
    """A float within rounding, anything else as it is."""
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def made(table: str, given: dict[str, list[Row]]) -> list[Row]:
    """Give a query its inputs, those that are not stated without rows, and return what it makes."""
    with connect() as session:
        node = session.graph.node(table)
        inputs = node.inputs + tuple(name for name in node.fetches if name in given)
        assert set(given) <= set(inputs), f"{table} does not read {set(given) - set(inputs)}"
        # which families a deployment launches is looked up before a query of one is planned
        launches = ("sharded_layers", "layer_weights") if table.endswith("_calls") else ()
        for name in dict.fromkeys([*given, *inputs, *launches]):
            session.give(name, filled(session, name, given.get(name, [])))
        return session.table(table).to_pylist()


def test_every_query_has_its_fixture_and_every_fixture_its_query():
    assert FIXTURES == QUERIES | IN_PYTHON


@pytest.mark.parametrize("table", sorted(FIXTURES))
def test_rows(table):
    fixture = json.loads((HERE / f"{table}.json").read_text())
    expected = fixture["expected"]
    assert expected, "a fixture without expected rows proves nothing"
    columns = expected[0].keys()
    assert all(row.keys() == columns for row in expected)
    found = ordered([{name: row[name] for name in columns} for row in made(table, fixture["given"])])
    assert len(found) == len(expected), found
    for row, wanted in zip(found, ordered(expected), strict=True):
        assert row == {name: near(value) for name, value in wanted.items()}
