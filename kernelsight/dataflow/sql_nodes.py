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
from kernelsight.files.own import own_bytes, own_json, own_text

# query nodes of the parser's tree that only read; any other, such as COPY in a CTE, changes something
_READING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}


@dataclass(frozen=True)
class Query:
    """A parsed query: its tables, functions in FROM, those ``called`` in expressions, and what does not only read."""

    tables: tuple[str, ...]
    functions: tuple[str, ...]
    called: tuple[str, ...]
    changes: tuple[str, ...]


def sql_files(folder: Path) -> dict[str, Path]:
    """Return the files ``<table>.sql`` below a folder, except macros, by table."""
    return {path.stem: path for path in sorted(folder.rglob("*.sql")) if path.parent != folder / MACROS}


# bounded: all sessions parse the same files, but users' queries may be many
@lru_cache(maxsize=256)
def parse_query(text: str) -> Query | str:
    """Parse a query by DuckDB's parser; its error message is returned if the query is not a plain SELECT."""
    answer = private_cursor().execute("select json_serialize_sql(?::varchar)", [text]).fetchall()[0][0]
    tree = own_json(answer)
    if tree["error"]:
        return tree["error_message"].splitlines()[0]
    nodes = list(_objects(tree))
    ctes = {entry["key"].lower() for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}
    tables = {node["table_name"] for node in nodes if node.get("type") == "BASE_TABLE"}
    return Query(
        tables=tuple(sorted(table for table in tables if table.lower() not in ctes)),
        functions=tuple(
            sorted({node["function"]["function_name"] for node in nodes if node.get("type") == "TABLE_FUNCTION"})
        ),
        called=tuple(sorted({node["function_name"] for node in nodes if node.get("class") == "FUNCTION"})),
        changes=tuple(sorted({node_type for node in nodes for node_type in _query_node_types(node)} - _READING)),
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


def read_sql_node(path: Path, union_of: Callable[[str], str | None]) -> tuple[str, tuple[str, ...], str]:
    """Read the node of a SQL file: its description (the first line's comment), input tables, and SQL text.

    ``union_of``: returns the query that a name such as ``family_calls`` stands for, which is then put before the text
    as a CTE. A test holds every file against what a node may be: one SELECT of tables, without PIVOT.
    """
    text = own_text(path)
    doc = text.partition("\n")[0].removeprefix("-- ").strip()
    query = parse_node(text)
    assert isinstance(query, Query), f"{path}: {query}"
    unions = {name: union for name in query.tables if (union := union_of(name))}
    if unions:
        ctes = ",\n".join(f"{name} as (\n{union}\n)" for name, union in unions.items())
        text = f"with {ctes}\nselect * from (\n{text}\n)"
        query = parse_node(text)
        assert isinstance(query, Query), f"{path}: {query}"
    return doc, tuple(name.lower() for name in query.tables), text
