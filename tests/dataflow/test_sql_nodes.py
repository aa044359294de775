"""SQL nodes: what the parser reads from a query, and the queries that may not be nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsight.dataflow.sql_nodes import parse_query, read_sql_node, sql_files
from kernelsight.dataflow.user_queries import tables_in_query
from kernelsight.errors import InvalidInput

FLOWS = Path(__file__).parent / "flows"


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("select 1", ()),
        ("from a", ("a",)),
        ("select * from a join b using (x) where y in (select z from c) group by all", ("a", "b", "c")),
        ("select *, (select max(x) from b) from a asof join c on a.t >= c.t", ("a", "b", "c")),
        ("with d as (select * from a) select * from d union all select * from b", ("a", "b")),
        ("with recursive r as (select 1 as n union all select n + 1 from r, a) select * from r", ("a",)),
        ("unpivot (from a join b using (x)) on y, z into name n value v", ("a", "b")),
        ("select * from a, unnest([1, 2]), range(3)", ("a",)),
        ("select * from a where exists (from b where b.x = a.x) qualify row_number() over () = 1", ("a", "b")),
    ],
)
def test_the_tables_of_a_query_are_read_from_it(query: str, tables: tuple[str, ...]) -> None:
    found = parse_query(query)
    assert not isinstance(found, str) and found.tables == tables


@pytest.mark.parametrize(
    ("flow", "why"),
    [
        ("cte_bears_table_name", "its CTE items has the name of a table; rename it"),
        ("pivot", "its query is not a single SELECT without PIVOT"),
        ("reads_file", "it calls read_csv, which reads data outside the graph; use an input table"),
        ("two_statements", "it has 2 statements; a node is one SELECT"),
        ("no_description", "its first line must describe the table: '-- description'"),
        ("syntax_error", 'its query cannot be parsed (syntax error at or near "selct")'),
        ("parameter", "it has a parameter; a node's only inputs are tables"),
        ("schema_named", "it reads main.orders; write the table without a schema"),
    ],
)
def test_a_query_that_may_not_be_a_node_is_refused(flow: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_sql_node(FLOWS / flow / "order_totals.sql", {"items", "orders", "order_totals"})
    assert str(refusal.value) == f"{flow}/order_totals.sql cannot be a node of the graph: {why}."


def test_a_pivot_with_its_columns_listed_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "wide.sql").write_text("-- wide\nselect * from (pivot a on x in (1, 2) using sum(y))\n")
    with pytest.raises(InvalidInput, match="it uses PIVOT, whose columns depend on the data"):
        read_sql_node(tmp_path / "wide.sql", {"a"})


def test_two_files_of_one_table_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one/order_totals.sql and other/order_totals.sql both define the table"):
        sql_files(FLOWS / "made_twice")


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("select steps from a", ["a"]),
        ("select * from 'über.csv', A", ["a", "über.csv"]),
        ("pivot a on steps using sum(y)", ["a"]),
        ("select 'ü' as u from (pivot \"A\" on x using sum(y)) join b using (x), c", ["a", "b", "c"]),
        ("explain select * from a -- a note\n, b", ["a", "b"]),
    ],
)
def test_the_tables_of_a_users_query_are_found_and_columns_are_not(query: str, tables: list[str]) -> None:
    assert tables_in_query(query, {"a", "b", "c", "steps"}) == tables
