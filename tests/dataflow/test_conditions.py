"""Conditions of contracts, held against what DuckDB answers."""

from __future__ import annotations

import random
import re
from functools import cache

import duckdb
import pyarrow as pa
import pytest

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.conditions import columns_of, holds, parse

ROWS = pa.table(
    {
        "x": pa.array([-1, 0, 1, 2, None], pa.int64()),
        "y": pa.array([0.5, None, float("inf"), 1.0, -2.0], pa.float64()),
        "word": pa.array(["a", "it's", None, "b", "1.2rc3"], pa.string()),
        "end": pa.array([True, False, None, True, False], pa.bool_()),
    }
)
CONDITIONS = (
    "x > 0 or y > 0 and x < 2",
    "not (x > 0) and word <> 'a'",
    "x - 1 * 2 >= -3",
    "-x + 2 between 1 and 2",
    "x % 2 = 1",
    "word in ('a', 'it''s')",
    "(x is null) = (word = '1.2rc3')",
    "x is not null and isfinite(y)",
    "case when word = 'a' then x < 0 else y is null end",
    "regexp_full_match(word, '[0-9]+([.][0-9]+)*(rc[0-9]+)?')",
    '"end" = true or y = 1e0',
)


def answered(conditions: list[str], rows: pa.Table) -> list[tuple[bool, ...]]:
    """Return what DuckDB says of each row, for each condition."""
    asked = ", ".join(f"coalesce(({condition}), false)" for condition in conditions)
    with opened().cursor() as database:
        database.execute("set error_on_division_by_zero = false")
        database.register("rows_checked", rows)
        return list(zip(*database.execute(f"select {asked} from rows_checked").fetchall(), strict=True))


@cache
def opened() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_construct_means_what_it_means_in_sql(condition: str) -> None:
    assert tuple(holds(condition, ROWS).to_pylist()) == answered([condition], ROWS)[0]


def drawn(kind: pa.DataType, words: list[str], choose: random.Random) -> pa.Array:
    among = {"string": [*words, "0.1.2", "x"], "bool": [True, False], "double": [-1.0, 0.0, 0.5, 1.0, 2.0]}
    values = among.get(str(kind), [-1, 0, 1, 2, 5, 5000] if pa.types.is_integer(kind) else [])
    return pa.array([choose.choice([*values, None]) for _ in range(40)], kind)


def test_all_checks_of_contracts_mean_what_they_mean_in_sql() -> None:
    choose = random.Random(1)
    for contract in contracts().values():
        checks = [column.check for column in contract.columns if column.check]
        if not checks:
            continue
        words = re.findall(r"'([^']*)'", " ".join(checks))
        rows = pa.table({column.name: drawn(column.arrow_type, words, choose) for column in contract.columns})
        for check, expected in zip(checks, answered(checks, rows), strict=True):
            assert tuple(holds(check, rows).to_pylist()) == expected, f"{contract.table}: {check}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x >", "it ends too early"),
        ("x > 0 0", "0 is not expected there"),
        ("x ~ 1", "'~ 1' is not known"),
        ("sqrt(x) > 1", "'(' is not expected there"),
        ("isfinite(x, y)", "isfinite takes 1 values"),
        ("x in ('a'", "')' is missing"),
        ("case when x > 0 then y end", "'else' is missing"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse(text)


def test_columns_that_are_read() -> None:
    assert columns_of(parse('case when a > b then c is null else "d" in (1, e) end')) == set("abcde")
