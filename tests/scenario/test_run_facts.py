"""What a run rests on: no fact and no given table can change by a row without changing what ``run_facts`` returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import Contract
from kernelsight.dataflow.types import Column
from kernelsight.errors import InvalidInput
from kernelsight.project_graph import embedded_facts
from kernelsight.scenario.run_info import inputs_of, run_facts
from kernelsight.session import connect

FACTS = sorted(embedded_facts())
# given by the plan of a run itself, or written about it
OF_THE_RUN = {"deployments", "scenarios", "run_info"}
# tables that a user may give beside the facts, and one that is computed where nobody gives it
GIVEN = sorted({name for name, one in contracts().items() if one.kind == "given"} - set(FACTS) - OF_THE_RUN)
GIVEN += ["host_settings"]


@pytest.fixture(scope="module")
def unchanged() -> dict[str, str]:
    """What a run on the embedded facts rests on."""
    with connect() as session:
        return run_facts(session)


def another(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f"{value or ''} changed"


def with_a_change(table: pa.Table, contract: Contract) -> pa.Table:
    """Return the table with another value in one cell of its last row: of a column that no other table is named by.

    A table without rows gets one.
    """
    if not table.num_rows:
        return row_of(contract)
    free = [column for column in contract.columns if not column.key and not column.reference]
    plain = [column for column in free if not pa.types.is_nested(column.arrow_type)]
    column = next((one for one in plain if table[one.name][-1].is_valid), plain[0])
    values = table[column.name].to_pylist()
    values[-1] = 1 if values[-1] is None and column.type != "string" else another(values[-1])
    at = table.column_names.index(column.name)
    return table.set_column(at, table.field(at), pa.array(values, column.arrow_type))


def row_of(contract: Contract) -> pa.Table:
    """Return a table of one row, null wherever that is allowed; what refers to a fact has the first name there."""

    def value(column: Column) -> Any:
        table, _, name = column.reference.partition(".")
        if table in FACTS:
            return embedded_facts()[table]()[name][0].as_py()
        return {"string": "a", "bool": True, "list": [], "struct": {}}.get(column.type.partition("<")[0], 1)

    columns = {
        column.name: pa.array([None if column.nullable else value(column)], column.arrow_type)
        for column in contract.columns
    }
    return pa.table(columns)


def facts_with(name: str, table: pa.Table) -> dict[str, str]:
    with connect() as session:
        session.give(name, table, trusted=True)
        return run_facts(session)


def test_equal_facts_are_the_same_run(unchanged: dict[str, str]) -> None:
    assert all(isinstance(value, str) for value in unchanged.values())
    with connect() as session:
        assert run_facts(session) == unchanged


@pytest.mark.parametrize("name", FACTS)
def test_a_changed_fact_makes_another_run(name: str, unchanged: dict[str, str]) -> None:
    with connect() as session:
        table = session.table(name)
    assert facts_with(name, with_a_change(table, contracts()[name])) != unchanged
    if table.num_rows:
        assert facts_with(name, table.slice(0, table.num_rows - 1)) != unchanged


def test_a_saved_run_rests_on_the_shipped_kernel_model_by_its_hash(tmp_path: Path) -> None:
    path, step = tmp_path / "run.duckdb", {"model": "qwen3-0.6b", "gpu": "l4", "context_len": 9}
    with connect() as session:
        session.simulate(
            model="qwen3-0.6b", gpu="l4", max_concurrency=1, num_prompts=2, input_len=8, output_len=2
        ).save(path)
        predicted_us = session.predict(**step).total_us
    with connect(path) as saved:
        assert (
            saved.sql("from duckdb_tables() where table_name = 'eta_coefficients' and not temporary").fetchall() == []
        )
        assert saved.predict(**step).total_us == predicted_us
        [row] = [row for row in saved.table("run_info").to_pylist() if row["fact"] == "coefficients_sha256"]
        saved.extend("run_info", [row | {"value": "another"}])
    with connect(path, read_only=True) as saved:
        assert saved.table("request_metrics").num_rows == 2
        with pytest.raises(InvalidInput, match=r"run\.duckdb was saved by version .*another kernel model"):
            saved.predict(**step)


def test_a_saved_run_holds_a_kernel_model_that_was_given() -> None:
    with connect() as session:
        assert "eta_coefficients" not in inputs_of(session)
        session.give("eta_coefficients", session.table("eta_coefficients").slice(0, 3))
        assert "eta_coefficients" in inputs_of(session)
