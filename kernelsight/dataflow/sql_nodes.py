"""SQL nodes: one file, one SELECT, one table, whose input tables DuckDB's parser finds in the query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from kernelsight.caches.disk_cache import library_stamp, read_cached, write_cached
from kernelsight.dataflow.databases import MACROS, private_cursor
from kernelsight.errors import InvalidInput
from kernelsight.files.own import own_bytes, own_json, own_text

# query nodes of the parser's tree that only read; any other, such as COPY in a CTE, changes something
_READING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
# table functions that read only their arguments: any other would read data outside the graph
_PURE_TABLE_FUNCTIONS = {"range", "generate_series", "unnest"}


@dataclass(frozen=True)
class Query:
    """A parsed query: its tables, CTEs and functions, and the constructs that a node may not have.

    ``functions``: those in FROM; ``called``: those in expressions; ``changes``: statements that do not only read.
    """

    tables: tuple[str, ...]
    qualified: tuple[str, ...]
    ctes: tuple[str, ...]
    functions: tuple[str, ...]
    called: tuple[str, ...]
    changes: tuple[str, ...]
    pivots: bool
    parameters: bool
    statements: int


def sql_files(folder: Path) -> dict[str, Path]:
    """Return the files ``<table>.sql`` below a folder, except macros, by table; InvalidInput: two define one table."""
    files: dict[str, Path] = {}
    for path in sorted(path for path in folder.rglob("*.sql") if path.parent != folder / MACROS):
        if path.stem in files:
            raise InvalidInput(
                f"{files[path.stem].relative_to(folder)} and {path.relative_to(folder)} both define the table "
                f"{path.stem!r}; keep one of them."
            )
        files[path.stem] = path
    return files


# bounded: all sessions parse the same files, but users' queries may be many
@lru_cache(maxsize=256)
def parse_query(text: str) -> Query | str:
    """Parse a query by DuckDB's parser; its error message is returned if the query is not a plain SELECT.

    >>> parse_query("with c as (select * from gpus) select * from c join models using (x)").tables
    ('gpus', 'models')
    >>> parse_query("selct 1")
    'syntax error at or near "selct"'
    """
    answer = private_cursor().execute("select json_serialize_sql(?::varchar)", [text]).fetchall()[0][0]
    tree = own_json(answer)
    if tree["error"]:
        return tree["error_message"].splitlines()[0]
    nodes = list(_objects(tree))
    ctes = {entry["key"].lower() for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}
    bases = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    tables = [base["table_name"] for base in bases if base["table_name"].lower() not in ctes]
    return Query(
        tables=tuple(sorted(set(tables))),
        qualified=tuple(sorted({f"{b['schema_name']}.{b['table_name']}" for b in bases if b["schema_name"]})),
        ctes=tuple(sorted(ctes)),
        functions=tuple(
            sorted({node["function"]["function_name"] for node in nodes if node.get("type") == "TABLE_FUNCTION"})
        ),
        called=tuple(sorted({node["function_name"] for node in nodes if node.get("class") == "FUNCTION"})),
        changes=tuple(sorted({node_type for node in nodes for node_type in _query_node_types(node)} - _READING)),
        # UNPIVOT is the same object without aggregates, and is allowed: the query lists its columns
        pivots=any(node.get("type") == "PIVOT" and node["aggregates"] for node in nodes),
        parameters=any(node.get("class") == "PARAMETER" for node in nodes),
        statements=len(tree["statements"]),
    )


def parse_node(text: str) -> Query | str:
    """Parse a query as ``parse_query`` does, by the on-disk cache where the same parser has parsed it before."""
    sources = (own_bytes(__file__), library_stamp("duckdb").encode(), text.encode())
    key = hashlib.sha256(b"\0".join(sources)).hexdigest()
    if (parsed := read_cached(key, _read_query)) is not None:
        return parsed
    query = parse_query(text)
    if isinstance(query, Query):
        write_cached(key, json.dumps(asdict(query)).encode())
    return query


def _read_query(content: bytes) -> Query:
    fields = own_json(content)
    return Query(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def _query_node_types(node: dict) -> Iterator[str]:
    """Yield the types of the query nodes directly in an object of the parser's tree, under whatever key."""
    for key, value in node.items():
        node_type = value.get("type") if isinstance(value, dict) else None
        if isinstance(node_type, str) and (key in ("node", "query_node") or node_type.endswith("_NODE")):
            yield node_type
        elif isinstance(value, list):
            yield from (
                item["type"]
                for item in value
                if isinstance(item, dict) and isinstance(item.get("type"), str) and item["type"].endswith("_NODE")
            )


def _objects(tree: object) -> Iterator[dict]:
    """Yield every JSON object of a tree, without recursion: queries may nest deeper than Python's stack."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def read_sql_node(
    path: Path, tables: set[str], union_of: Callable[[str], str | None] = lambda name: None
) -> tuple[str, tuple[str, ...], str]:
    """Read the node of a SQL file: its description (the first line's comment), input tables, and SQL text.

    ``tables``: all table names, which no CTE may have. ``union_of``: returns the query that a name such as
    ``family_calls`` stands for, which is then put before the text as a CTE. InvalidInput: the query cannot be a node.
    """
    text = own_text(path)
    first, _, _ = text.partition("\n")
    if not first.startswith("-- ") or not first[3:].strip():
        raise _refused(path, "its first line must describe the table: '-- description'")
    query = parse_node(text)
    if isinstance(query, str):
        fault = "is not a single SELECT without PIVOT" if "SELECT" in query else f"cannot be parsed ({query})"
        raise _refused(path, f"its query {fault}")
    unions = {name: union for name in query.tables if (union := union_of(name))}
    if unions:
        ctes = ",\n".join(f"{name} as (\n{union}\n)" for name, union in unions.items())
        text = f"with {ctes}\nselect * from (\n{text}\n)"
        query = parse_node(text)
        assert not isinstance(query, str), query
    shadows = sorted(set(query.ctes) & tables)
    impure = sorted(set(query.functions) - _PURE_TABLE_FUNCTIONS)
    faults = {
        f"it has {query.statements} statements; a node is one SELECT": query.statements != 1,
        "it uses PIVOT, whose columns depend on the data; write the columns with FILTER": query.pivots,
        f"its CTE {', '.join(shadows)} has the name of a table; rename it": bool(shadows),
        f"it calls {', '.join(impure)}, which reads data outside the graph; use an input table": bool(impure),
        f"it reads {', '.join(query.qualified)}; write the table without a schema": bool(query.qualified),
        "it has a parameter; a node's only inputs are tables": query.parameters,
    }
    for fault, present in faults.items():
        if present:
            raise _refused(path, fault)
    return first[3:].strip(), tuple(name.lower() for name in query.tables), text


def _refused(path: Path, fault: str) -> InvalidInput:
    return InvalidInput(f"{path.parent.name}/{path.name} cannot be a node of the graph: {fault}.")
