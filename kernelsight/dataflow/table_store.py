"""The tables of a session by name: given, stored in its file, facts of the package, and computed ones.

``catalogue_tables`` and ``catalogue_columns`` hold what the contracts declare, as rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from kernelsight.caches.disk_cache import CachePolicy
from kernelsight.caches.memory_cache import memoised
from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.databases import Database, stop_if_interrupted
from kernelsight.dataflow.graph import Graph
from kernelsight.dataflow.progress import Report
from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    import duckdb


CATALOGUE = ("catalogue_tables", "catalogue_columns")


def catalogue_table(name: str, graph: Graph) -> pa.Table:
    """Return ``catalogue_tables``, of those that users read, or ``catalogue_columns`` over a graph's contracts."""
    contracts = [graph.contracts[table] for table in sorted(graph.contracts)]
    if name == "catalogue_columns":
        return pa.Table.from_pylist(
            [
                {
                    "table": contract.table,
                    "column": column.name,
                    "type": column.type,
                    "nullable": column.nullable,
                    "unit": column.unit or None,
                    "key": column.key,
                    "reference": column.reference or None,
                    "check": column.check or None,
                    "doc": column.doc,
                }
                for contract in contracts
                for column in contract.columns
            ],
            schema=graph.contracts[name].schema,
        )
    rows = []
    for contract in (one for one in contracts if one.kind != "internal"):
        node = graph.node(contract.table)
        rows.append(
            {
                "table": contract.table,
                "kind": contract.kind,
                "grain": contract.grain,
                "doc": contract.doc,
                "node": node.label if node else None,
                "inputs": list(node.inputs) if node else [],
            }
        )
    return pa.Table.from_pylist(rows, schema=graph.contracts[name].schema)


# the name under which the file of a session is attached
FILE = "kernelsight_file"


class TableStore:
    """Tables by name over one graph, in memory and in a file; for the thread that made it alone."""

    def __init__(
        self,
        graph: Graph,
        facts: Mapping[str, Callable[[], pa.Table]] | None = None,
        *,
        path: str | Path | None = None,
        read_only: bool = False,
        files: bool = True,
        database: Database | None = None,
        cache_policy: CachePolicy | None = None,
    ) -> None:
        self.graph: Graph = graph
        self.progress: Callable[[str, float], None] | None = None
        # prints progress messages of nodes that search
        self.report: Report | None = None
        self.path: Path | None = Path(path) if path is not None else None
        self._facts = dict(facts or {})
        self._cache_policy = cache_policy if path is None else None
        # forks share the database and its attached file, but not the tables registered on a cursor
        self._database = database or Database(lambda: graph.macros, files=files)
        self._keeps = self.path is not None and not read_only
        self.threads: int | None = None
        self._owner = threading.get_ident()
        self._tables: dict[str, pa.Table] = {}
        # lazy tables: the node has run, the rows are made when they are first fetched
        self._pending: dict[str, Callable[[], Any]] = {}
        self._registered: dict[str, pa.Table | None] = {}
        self._given: set[str] = set()
        self._own: set[str] = set()
        self._stored: set[str] = set()
        if self.path is not None:
            self._connection = self._database.cursor(partial(self._attach, read_only=read_only))
        self._references_unchecked = set(self._stored)

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._database.cursor()

    def _attach(self, connection: duckdb.DuckDBPyConnection, *, read_only: bool) -> None:
        from kernelsight.dataflow.storage import attach

        assert self.path is not None
        self._stored = attach(connection, self.path, FILE, read_only=read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; its file, if any, is complete on disk and released."""
        if self._keeps:
            self._connection.execute(f"detach {FILE}")
            self._keeps = False
        if "_connection" in self.__dict__:
            self._connection.close()

    def fork(self) -> Self:
        """Return a copy of the session; changes to the copy do not affect this session.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.fork().give("fabrics", session.table("fabrics").slice(0, 2))
        ...     session.table("fabrics").num_rows > 2
        True
        """
        if self._keeps:
            for name in self._stored:
                self._fetch(name)  # this session may overwrite the file's rows before the fork reads them
        other = type(self)(self.graph, self._facts, database=self._database)
        other._cache_policy = self._cache_policy
        other.path = self.path
        other._tables, other._pending = dict(self._tables), dict(self._pending)
        other._given, other._own = set(self._given), set(self._own)
        other._stored = set(self._stored)
        other._references_unchecked = set(self._references_unchecked)
        other.progress, other.threads, other.report = self.progress, self.threads, self.report
        return other

    def available(self) -> set[str]:
        """Return the available tables: given, stored, in the catalogue, or computed."""
        return {*self._tables, *self._pending, *self._stored, *self._facts, *CATALOGUE}

    def given(self) -> set[str]:
        """Return the tables given to this session, including extended catalogue tables.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.given()
        set()
        """
        return set(self._given)

    def facts(self) -> set[str]:
        """Return the tables that the package brings.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     "gpus" in session.facts()
        True
        """
        return set(self._facts)

    def _store(self, name: str, table: pa.Table, dropped: Collection[str] = ()) -> None:
        """Write a table to the session's file, and drop others from it; nothing without a writable file."""
        if self._keeps:
            from kernelsight.dataflow.storage import change_tables

            change_tables(self._connection, FILE, self.graph.contracts, {name: table}, dropped)
            self._stored.add(name)

    def _fetch(self, name: str) -> pa.Table:
        """Return an available table, read from the file or the package when it is first fetched."""
        if name not in self._tables:
            contract = self.graph.contracts.get(name)
            if name in self._pending:
                self._tables[name] = conform(self._pending.pop(name)(), contract, trusted=True, origin=name)
            elif name in self._stored:
                from kernelsight.dataflow.storage import read_table

                rows = read_table(self._connection, FILE, name, self.path)
                self._tables[name] = conform(rows, contract, origin=str(self.path)) if contract else rows
            elif name in CATALOGUE:
                self._tables[name] = conform(
                    catalogue_table(name, self.graph), self.graph.contracts[name], trusted=True
                )
            else:
                fact = self._facts[name]()
                self._tables[name] = memoised((fact,), "fact", lambda: conform(fact, contract, trusted=True))
        return self._tables[name]

    def _register(self, name: str, narrowed: pa.Table | None = None) -> None:
        """Let queries read a table; ``narrowed``: with these columns alone."""
        table = self._fetch(name) if narrowed is None else narrowed
        if self._registered.get(name) is not table:
            try:
                self._connection.register(name, table)
            except Exception as error:
                stop_if_interrupted(error)
                raise
            self._registered[name] = table

    def _unregister(self, name: str) -> None:
        if self._registered.pop(name, None) is not None:
            self._connection.unregister(name)

    def _check_thread(self) -> None:
        if threading.get_ident() != self._owner:
            raise InvalidInput(
                "this session belongs to the thread that opened it, and was used from another one; open a session in "
                "each thread, or give it a fork() of this one."
            )
