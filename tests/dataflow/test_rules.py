"""Rules of columns, held against what DuckDB says of the condition that a refusal names."""

from __future__ import annotations

import random
import re

import duckdb
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import ddl
from kernelsight.dataflow.types import Column
from kernelsight.dataflow.violations import passes


def drawn(kind: pa.DataType, words: list[str], choose: random.Random) -> pa.Array:
    among = {"string": [*words, "0.1.2", "x"], "bool": [True, False], "double": [-1.0, 0.0, 0.5, 1.0, 2.0]}
    values = among.get(str(kind), [-1, 0, 1, 2, 5, 5000] if pa.types.is_integer(kind) else [])
    return pa.array([choose.choice([*values, None]) for _ in range(60)], kind)


def in_sql(column: Column) -> str:
    """Return the condition of a column with its treatment of nulls: one of its own passes where it may be null."""

    def quote_column(word: re.Match[str]) -> str:
        return f'"{word[0]}"' if word[0] in column.checked_with else word[0]

    quoted = re.sub(r"'[^']*'|\w+", quote_column, column.check)
    parts = quoted.split(" and ")
    own = " and ".join(part for part in parts if not part.startswith("(")) or "true"
    null = str(column.nullable).lower()
    value = f'case when "{column.name}" is null then {null} else coalesce({own}, false) end'
    return " and ".join([f"({value})", *(f"coalesce({part}, false)" for part in parts if part.startswith("("))])


def test_every_rule_means_what_its_condition_means_in_sql() -> None:
    choose, counted = random.Random(1), 0
    with duckdb.connect() as database:
        database.execute("set error_on_division_by_zero = false")
        for contract in contracts().values():
            checked = [column for column in contract.columns if column.check]
            database.execute(ddl(contract).partition("\n")[0].replace(" NOT NULL", ""))  # without its comments
            words = re.findall(r"'([^']*)'", " ".join(column.check for column in checked))
            rows = pa.table({column.name: drawn(column.arrow_type, words, choose) for column in contract.columns})
            database.register("drawn", rows)
            for column in checked:
                assert column.checked_with <= set(contract.column_names)
                expected = database.execute(f"select {in_sql(column)} from drawn").fetchall()
                assert passes(column, rows).to_pylist() == [row[0] for row in expected], (
                    f"{contract.table}: {column.check}"
                )
                counted += 1
    assert counted > 500
