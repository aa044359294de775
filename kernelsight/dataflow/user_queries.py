"""Checks that a user's SQL query only reads, at every depth, and finds the tables that it names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

import duckdb

from kernelsight.dataflow.contract import Contract
from kernelsight.dataflow.databases import complaint, private_cursor
from kernelsight.dataflow.sql_nodes import Query, parse_query
from kernelsight.errors import InvalidInput

# allowed table functions: they read rows, files or facts about the database
_READERS = (
    *("range", "generate_series", "unnest", "repeat", "repeat_row", "histogram", "histogram_values", "glob"),
    *("read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_json_objects", "read_json_objects_auto"),
    *("read_ndjson", "read_ndjson_auto", "read_ndjson_objects", "read_parquet", "parquet_scan", "read_text"),
    *("read_blob", "read_duckdb", "sniff_csv", "parquet_metadata", "parquet_file_metadata", "parquet_full_metadata"),
    *("parquet_kv_metadata", "parquet_schema", "parquet_bloom_probe", "json_each", "json_tree", "query_table"),
    *("icu_calendar_names", "pg_timezone_names", "test_all_types", "test_vector_types", "summary"),
    *("pragma_collations", "pragma_database_size", "pragma_metadata_info", "pragma_platform", "pragma_show"),
    *("pragma_storage_info", "pragma_table_info", "pragma_user_agent", "pragma_version"),
)
# scalar functions with side effects
_CHANGING = {"write_log", "nextval", "setval"}
# statements that DuckDB accepts inside a query: a PIVOT, which is checked by its tokens, may not have these words
_CHANGES = {"copy", "insert", "update", "delete", "merge", "truncate"}
_OPENING = {"from", "join", "pivot", "unpivot", "pivot_wider", "pivot_longer", "describe", "summarize", "table", ","}
_STARTS = {"pivot", "pivot_wider", "with", "from", "select", "values", "("}


def check_query(text: str) -> None:
    """Raise InvalidInput unless a query is one SELECT that only reads, or an EXPLAIN of one.

    DESCRIBE, SHOW, SUMMARIZE and PIVOT are such queries. The whole parse tree is checked: DuckDB would run COPY and
    INSERT in a CTE, and table functions that write.
    """
    try:
        statements = [statement.type.name for statement in private_cursor().extract_statements(text)]
    except duckdb.Error as error:
        raise InvalidInput(f"the query cannot be read: {complaint(error)}.") from None
    if len(statements) != 1 or statements[0] not in ("SELECT", "EXPLAIN", "MULTI"):
        got = "; ".join(statement.lower() for statement in statements) or "nothing"
        raise InvalidInput(f"expected one query, such as a SELECT, but got: {got}.")
    query = _parsed(text)
    if query is not None:
        changes = [node_type.partition("_")[0].lower() for node_type in query.changes]
        forbidden = sorted({*query.functions} - _allowed()) or sorted(_CHANGING & {*query.called})
    else:
        words = list(_words(_without_explain(text)))
        changes = _pivot_changes(words)
        called = {word.strip('"').lower() for word, after in zip(words, words[1:], strict=False) if after == "("}
        forbidden = sorted(called & (_refused() | _CHANGING))
    if changes:
        raise InvalidInput(
            f"expected a query that only reads, such as a SELECT, but it contains: {', '.join(changes)}. Remove that "
            "part."
        )
    if forbidden:
        raise InvalidInput(f"the query calls {forbidden[0]}, which does more than to read rows; remove the call.")


def _parsed(text: str) -> Query | None:
    """Parse a query, or the one that EXPLAIN is given; None where the parser returns no tree, as for PIVOT."""
    tree = parse_query(_without_explain(text))
    return None if isinstance(tree, str) else tree


def _without_explain(text: str) -> str:
    """Return a query without EXPLAIN, ANALYZE and their options in brackets."""
    raw = text.encode()  # the tokenizer counts bytes
    starts = [start for start, _ in _tokens(text)]
    words = list(_words(text))
    if not words or words[0].lower() != "explain":
        return text
    at = 1
    while at < len(words):
        rest = raw[starts[at] :].decode()
        if words[at].lower() in ("analyze", "analyse"):
            at += 1
        elif words[at] == "(" and isinstance(parse_query(rest), str) and ")" in words[at:]:
            at = words.index(")", at) + 1
        else:
            return rest
    return text


def _pivot_changes(words: list[str]) -> list[str]:
    """Return the words of a PIVOT that could change something: the parser returns no tree of it."""
    if not words or words[0].lower() not in _STARTS:
        return [words[0].lower()] if words else ["nothing"]
    return sorted({word.lower() for word in words} & _CHANGES)


@cache
def _table_functions() -> frozenset[str]:
    query = "select distinct function_name from duckdb_functions() where function_type in ('table', 'pragma')"
    return frozenset(name for (name,) in private_cursor().execute(query).fetchall())


@cache
def _allowed() -> frozenset[str]:
    return frozenset(_READERS) | {name for name in _table_functions() if name.startswith("duckdb_")}


@cache
def _refused() -> frozenset[str]:
    return _table_functions() - _allowed()


def tables_in_query(text: str, known: set[str]) -> list[str]:
    """Return the tables that a query reads, in lower case, by the parser or (for PIVOT) by its tokens."""
    query = _parsed(text)
    if query is not None:
        return [name.lower() for name in query.tables]
    words = [word.strip('"').lower() for word in _words(text)]
    following = (word for before, word in zip(words, words[1:], strict=False) if before in _OPENING)
    return sorted({word for word in following if word in known})


def _tokens(text: str) -> list[tuple[int, object]]:
    return [token for token in duckdb.tokenize(text) if token[1] != duckdb.token_type.comment]


def _words(text: str) -> Iterator[str]:
    """Yield the tokens of a query, without comments; quoted names keep their quotes."""
    raw = text.encode()
    ends = [start for start, _ in duckdb.tokenize(text)]
    for start, _ in _tokens(text):
        end = next((other for other in ends if other > start), len(raw))
        yield raw[start:end].decode().strip(" \t\r\n;")


# of a column, of one of a join's two sides, and of one table of a query
_UNKNOWN_COLUMN = re.compile(
    r'(?:Referenced column|Column|does not have a column named) "([^"]+)"'
    r"(?: not found| does not exist on (?:left|right) side|$)",
    re.M,
)
_SHOW_TABLES = re.compile(r"(--[^\n]*\n|\s)*show\s+tables\s*;?\s*", re.I)
MOST_NAMED = 2


def query_fault(
    error: duckdb.Error,
    read: Mapping[str, Sequence[str]],
    contracts: Mapping[str, Contract],
    available: Collection[str],
) -> str:
    """Return why a query cannot be run, and for a column that its tables lack, which table to join for it.

    ``read``: the columns of the tables that the query names; ``available``: tables that have rows, suggested first.
    """
    message = f"the query cannot be run: {complaint(error)}"
    column = _UNKNOWN_COLUMN.search(complaint(error))
    tables = _tables_to_join(column[1].lower(), read, contracts, available) if column else []
    return f"{message}; {column[1]} is in {' and in '.join(tables)}." if column and tables else f"{message}."


def _tables_to_join(
    column: str, read: Mapping[str, Sequence[str]], contracts: Mapping[str, Contract], available: Collection[str]
) -> list[str]:
    """Return the tables with a column whose key the query's tables have, each with the columns to join it by."""
    read_columns = {name for columns in read.values() for name in columns}
    candidates = [
        (contract.kind != "given", name not in available, len(contract.columns), name)
        for name, contract in contracts.items()
        if name not in read and column in contract.column_names
        if contract.key and {*contract.key} <= read_columns - {column}
    ]
    names = [name for *_, name in sorted(candidates)][:MOST_NAMED]
    return [f"table {name}: join it using ({', '.join(contracts[name].key)})" for name in names]


def is_show_tables(query: str) -> bool:
    """Return whether a query is SHOW TABLES, to which DuckDB itself would list only the tables read so far."""
    return _SHOW_TABLES.fullmatch(query) is not None
