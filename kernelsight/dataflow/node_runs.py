"""Runs the nodes that a table needs, each once: SQL queries in DuckDB, and Python functions with their input tables."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.disk_cache import CachePolicy, content_digest, read_cached_table, write_cached_table
from kernelsight.caches.memory_cache import memoised
from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.databases import complaint, literal, quote, rows_of, stop_if_interrupted
from kernelsight.dataflow.graph import Node
from kernelsight.dataflow.rows import as_table
from kernelsight.dataflow.table_store import TableStore
from kernelsight.dataflow.violations import check_reference
from kernelsight.errors import MissingTable, RunFailed

# largest computed tables, in bytes, over whose contents the result of a query is cached
LARGEST_ASKED_BYTES = 1 << 16
# the column that names deployments, by a hash of all their settings: no query computes with it
LABEL = "deployment_id"
HASH = re.compile("'[0-9a-f]{12}'")


class NodeRuns(TableStore):
    """A table store that computes missing tables: by its nodes, or from the on-disk cache."""

    def _compute(self, names: Iterable[str]) -> None:
        """Make tables available, by the cache or their nodes. MissingTable: a required input table is missing."""
        self._check_thread()
        available = self.available()
        wanted = [name for name in names if name not in available]
        if self._cache_policy:
            self._load_cached(wanted, self._cache_policy)
            available = self.available()
            wanted = [name for name in wanted if name not in available]
        if not wanted:
            return
        try:
            nodes = self.graph.plan(wanted, available)
        except MissingTable as error:
            if self.path is None:
                raise
            raise MissingTable(f"{self.path} has no table {', '.join(wanted)} and cannot compute it: {error}") from None
        read = {name for node in nodes for name in node.inputs}
        for name in sorted(read & available & self._references_unchecked):  # computed tables need no check
            self._check_references(name, self._fetch(name))
            self._references_unchecked.discard(name)
        needed = {*wanted, *(name for node in nodes for name in node.inputs)}
        for node in nodes:
            self._run(node, needed)

    def _check_references(self, name: str, table: pa.Table) -> None:
        available = self.available()
        for column in self.graph.contracts[name].columns:
            other, _, key = column.reference.partition(".")
            if other in available and other != name:
                check_reference(name, column, table.column(column.name), self._fetch(other).column(key))

    def _load_cached(self, names: Iterable[str], policy: CachePolicy) -> None:
        """Load tables from the on-disk cache, and for each that is not in it, the inputs of its node."""
        waiting, seen = list(names), self.available()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.graph.node(name)
            key = self._cache_key(name, policy) if name in policy.tables else None
            rows = read_cached_table(key, self.graph.contracts[name].schema) if key else None
            if rows is not None:
                self._tables[name] = rows
            elif node is not None:
                waiting += node.inputs

    def key_of(self, name: str) -> str | None:
        """Return the cache key of a derived table, a hash of its inputs; None where it is not cached."""
        return self._cache_key(name, self._cache_policy) if self._cache_policy else None

    def _cache_key(self, name: str, policy: CachePolicy) -> str | None:
        """Return the cache key of a derived table; None where an input is missing, or given and ``uncached``."""
        roots: dict[str, pa.Table | None] = {}
        for root in self.graph.roots(name, frozenset(self._given | policy.by_content)):
            if root in self._given and root in policy.uncached:
                return None
            if root in policy.by_content and root not in self._given:
                try:
                    self._compute([root])
                except MissingTable:
                    return None
            roots[root] = self._fetch(root) if root in self._given or root in policy.by_content else None
        return policy.key(name, roots)

    def _run(self, node: Node, needed: Collection[str]) -> None:
        """Run a node for those of its tables that are needed and not available yet."""
        started = time.perf_counter()
        wanted = [name for name in node.names if name in needed and name not in self.available()]
        results = self._run_query(node) if node.kind == "sql" else self._run_function(node, wanted)
        for name, rows in results.items():
            # an available table was given, or is in the file: it stays
            if name in self.available():
                continue
            if callable(rows):
                self._pending[name] = rows
            else:
                contract = self.graph.contracts[name]
                table = as_table(contract, rows) if isinstance(rows, list) else rows
                self._tables[name] = conform(table, contract, trusted=True, origin=node.label)
                if (
                    self._cache_policy
                    and name in self._cache_policy.tables
                    and (key := self._cache_key(name, self._cache_policy))
                ):
                    write_cached_table(key, self._tables[name])
        if self.progress:
            self.progress(", ".join(wanted), time.perf_counter() - started)

    def _run_query(self, node: Node) -> dict[str, pa.Table]:
        """Return the table of a query, from the cache where it was asked over the same values before."""
        read = self._columns_read(node)
        key, label = self._query_key(node, read)
        [name] = node.names
        if key and (found := read_cached_table(key)) is not None:
            return {name: _labelled(found, label)}
        found = self._ask(node, read)
        if key and found.nbytes <= LARGEST_ASKED_BYTES and not _is_told(found, label):
            write_cached_table(key, found)
        return {name: found}

    def _ask(self, node: Node, read: Mapping[str, pa.Table]) -> pa.Table:
        import duckdb

        for name, table in read.items():
            self._register(name, table)
        try:
            return rows_of(self._connection, node.text)
        except (duckdb.Error, RuntimeError) as error:
            stop_if_interrupted(error)
            raise RunFailed(f"{node.label} failed: {complaint(error)}.") from error

    def _columns_read(self, node: Node) -> dict[str, pa.Table]:
        """Return the inputs of a query, each with the columns that it may read.

        Those are the columns that its text names, and what ``*`` may pass on to its result. DuckDB binds each column
        of each table, used or not, which is most of the time of a query over few rows.
        """
        contract, read = self.graph.contracts.get(node.names[0]), {}
        named = _words(HASH.sub("", node.text)) | set(contract.column_names if contract else ())
        for name in node.inputs:
            table = self._fetch(name)
            columns = [column for column in table.column_names if column in named] or table.column_names[:1]
            few = contract and len(columns) < table.num_columns
            read[name] = memoised((table,), ("columns", *columns), partial(table.select, columns)) if few else table
        return read

    def _query_key(self, node: Node, read: Mapping[str, pa.Table]) -> tuple[str | None, str | None]:
        """Return the cache key of a query over the values that it reads, and the name of their only deployment.

        No key: a table differs from call to call, or is large. The name is not part of the key.
        """
        policy = self._cache_policy
        if policy is None or policy.uncached & self._given & read.keys():
            return None, None
        made = {name: table for name, table in read.items() if name in self._given or name not in self._facts}
        if sum(table.nbytes for table in made.values()) > LARGEST_ASKED_BYTES:
            return None, None
        labels = {one for table in made.values() if LABEL in table.column_names for one in table[LABEL].to_pylist()}
        label = labels.pop() if len(labels) == 1 else None
        text = node.text.replace(literal(label), "''") if label else node.text
        digest = hashlib.sha256(f"{policy.program()} {text}".encode())
        for name, table in made.items():
            digest.update(f"\n{name} ".encode() + content_digest(_labelled(table, label and "")))
        return digest.hexdigest(), label

    def _run_function(self, node: Node, wanted: Collection[str]) -> Mapping[str, Any]:
        tables = {name: self._fetch(name) for name in node.inputs}
        services = {
            "tables": tables,
            "wanted": frozenset(wanted),
            "read": Reader(self, node),
            "threads": self.threads,
            "fork": self.fork,
            "report": self.report or (lambda text: None),
        }
        parameters = {} if "tables" in node.services else tables
        results = node.function(**parameters, **{name: services[name] for name in node.services})
        if not isinstance(results, Mapping):
            results = {node.names[0]: results}
        if not set(wanted) <= set(results) <= set(node.names):
            raise RunFailed(f"{node.label} returned {', '.join(sorted(results))}, expected {', '.join(node.names)}.")
        return results

    def _read(self, name: str, columns: Sequence[str], among: Mapping[str, Collection[str]]) -> pa.Table:
        """Return columns of a table, filtered to the rows whose value of each column in ``among`` is one of its words.

        A query that has not run yet is run for these columns and rows alone (pushdown), and its result is not stored.
        """
        node = self.graph.node(name) if name not in self.available() else None
        if node is None or node.kind != "sql":
            self._compute([name])
            table = self._fetch(name)
            # the same table object where all columns are wanted: values may be remembered for it
            rows = table if list(columns) == table.column_names else table.select(list(columns))
            for column, words in among.items():
                rows = rows.filter(pc.is_in(table[column], pa.array(words, pa.string())))
            return rows
        self._compute(node.inputs)
        contract = self.graph.known(name)
        wanted = replace(contract, columns=tuple(column for column in contract.columns if column.name in columns))
        conditions = [f"{quote(column)} in ({', '.join(map(literal, words))})" for column, words in among.items()]
        text = f"select {', '.join(map(quote, wanted.column_names))} from (\n{node.text}\n)"
        text += f" where {' and '.join(conditions)}" if conditions else ""
        return conform(self._run_query(replace(node, text=text))[name], wanted, trusted=True, origin=node.label)


class Reader:
    """The ``read`` service of a node: fetches, while the node runs, the tables that its ``reads`` declares."""

    def __init__(self, session: NodeRuns, node: Node) -> None:
        self._session, self._node = session, node

    def __call__(
        self, name: str, columns: Sequence[str], among: Mapping[str, Collection[str]] | None = None
    ) -> pa.Table:
        """Return columns of a table; ``among``: by column, the words to which rows are filtered.

        RunFailed: the node does not declare the table.
        """
        if name not in self._node.fetches:
            raise RunFailed(f"{self._node.label} reads {name} and does not declare it; add it to its `reads`.")
        return self._session._read(name, columns, among or {})

    def is_available(self, name: str) -> bool:
        """Return whether a table has its rows: given, stored, or computed before."""
        return name in self._session.available()

    def is_given(self, name: str) -> bool:
        """Return whether the rows of a table were given, so that no node makes them."""
        return name in self._session.given()

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that the node declares to read."""
        return self._node.fetches

    def roots_of(self, names: Collection[str]) -> tuple[pa.Table, ...]:
        """Return the inputs of these tables' nodes that were given, or that no node makes, in order of their names."""
        graph, given = self._session.graph, self._session.given()
        inputs = {table for name in names if (node := graph.node(name)) for table in node.inputs}
        roots = [table for table in sorted(inputs) if table in given or graph.node(table) is None]
        return tuple(map(self._session._fetch, roots))

    def query_of(self, name: str) -> str:
        """Return the SQL that makes a table; empty where no query does."""
        node = self._session.graph.node(name)
        return node.text if node else ""

    def columns_of(self, name: str) -> list[str]:
        """Return the columns that a table's contract declares."""
        return self._session.graph.known(name).column_names


@lru_cache(maxsize=256)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


def _labelled(table: pa.Table, label: str | None) -> pa.Table:
    """Return a table of one deployment under another name of it; None: as it is."""
    if label is None or LABEL not in table.column_names:
        return table
    place = table.column_names.index(LABEL)
    return table.set_column(place, table.schema.field(place), pa.repeat(pa.scalar(label, pa.string()), len(table)))


def _is_told(table: pa.Table, label: str | None) -> bool:
    """Return whether another column than ``deployment_id`` may hold the name of the deployment."""
    if label is None:
        return False
    columns = [column for name, column in zip(table.column_names, table.columns, strict=True) if name != LABEL]
    texts = [column for column in columns if pa.types.is_string(column.type)]
    return any(pa.types.is_nested(column.type) for column in columns) or any(
        pc.any(pc.match_substring(column, label)).as_py() for column in texts
    )
