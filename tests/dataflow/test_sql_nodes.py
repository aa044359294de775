"""SQL nodes: what the parser reads from a query, and the queries that may not be nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
import pytest

from kernelsight.dataflow.locations import folder
from kernelsight.dataflow.sql_nodes import parse_query
from kernelsight.dataflow.user_queries import tables_in_query
from kernelsight.project_graph import project_graph


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


# what the parser's tree of a node may not hold: it is one SELECT of tables, whose columns do not depend on the data
BARRED = {
    "PIVOT": lambda part: part.get("type") == "PIVOT" and part["aggregates"],
    "a parameter": lambda part: part.get("class") == "PARAMETER",
    "a table of a schema": lambda part: part.get("type") == "BASE_TABLE" and part["schema_name"],
    "a CTE named as a table": lambda part: any(cte["key"] in TABLES for cte in part.get("cte_map", {}).get("map", ())),
    "several statements": lambda part: len(part.get("statements", ())) > 1,
    "a read of other data": lambda part: (
        part.get("type") == "TABLE_FUNCTION" and part["function"]["function_name"] not in ("range", "unnest")
    ),
}
TABLES = set(project_graph().contracts)


def faults(text: str) -> list[str]:
    """Return what makes a query unfit to be a node; the parser's message where it is no SELECT."""
    tree = json.loads(duckdb.sql("select json_serialize_sql($1::varchar)", params=[text]).fetchall()[0][0])
    bare = [] if text.startswith("-- ") else ["no description"]
    barred = [name for name, is_in in BARRED.items() if any(map(is_in, objects(tree)))]
    return [tree["error_message"]] if tree["error"] else bare + barred


def objects(tree: object) -> Iterator[dict]:
    """Yield every object of a tree."""
    if isinstance(tree, dict):
        yield tree
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from objects(item)


def test_every_file_is_fit_to_be_a_node_and_makes_a_table_of_its_own() -> None:
    files = [path for path in folder("sql").rglob("*.sql") if path.parent.name != "macros"]
    assert {path.name: found for path in files if (found := faults(path.read_text()))} == {}
    assert len({path.stem for path in files}) == len(files)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("-- x\nwith gpus as (select 1 as a) select * from gpus", ["a CTE named as a table"]),
        ("-- x\nselect * from (pivot a on x in (1, 2) using sum(y))", ["PIVOT"]),
        ("-- x\nselect * from read_csv('a.csv')", ["a read of other data"]),
        ("select 1; select 2", ["no description", "several statements"]),
        ("-- x\nselect * from a where b = $limit", ["a parameter"]),
        ("-- x\nselect * from main.a", ["a table of a schema"]),
        ("-- x\nselct 1", ['syntax error at or near "selct"']),
    ],
)
def test_a_query_that_may_not_be_a_node_is_found(text: str, found: list[str]) -> None:
    assert faults(text) == found


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
