"""The session: tables are given to it, and asked from it; asking computes exactly what is needed, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.cache import remembered
from kernelsight.dataflow.catalogue import CATALOGUE, catalogue_table
from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.engine import complaint, open_database, quote
from kernelsight.dataflow.graph import Graph, Node
from kernelsight.dataflow.sql_nodes import tables_in_query
from kernelsight.dataflow.storage import attach, change_tables, read_table, save_file
from kernelsight.dataflow.violations import check_reference
from kernelsight.errors import InvalidInput, MissingTable, RunFailed, unknown

_FILE = "kernelsight_file"
# A file that holds the one is a saved run; a node that makes the other simulates, which a saved run never does again.
SAVED_RUN, SIMULATED = "run_info", "request_events"
_ANSWERING = {"SELECT", "EXPLAIN", "CALL", "MULTI"}


class Session:
    """Given tables, embedded facts and computed tables over one graph; not to be shared between threads."""

    def __init__(
        self,
        graph: Graph,
        facts: Mapping[str, Callable[[], pa.Table]] | None = None,
        *,
        path: str | Path | None = None,
        read_only: bool = False,
        database: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        self.graph = graph
        self.progress: Callable[[str, float], None] | None = None
        self.path = Path(path) if path is not None else None
        self._facts = dict(facts or {})
        # Forks share the database and its attached file, and nothing that is registered on a cursor.
        self._database = database or open_database(graph.macros)
        self._connection = self._database.cursor()
        self._connection.execute("set enable_progress_bar = false")
        self._keeps = self.path is not None and not read_only
        self._tables: dict[str, pa.Table] = {}
        self._registered: dict[str, pa.Table] = {}
        self._given: set[str] = set()
        self._stored: set[str] = set()
        if self.path is not None:
            self._stored = attach(self._connection, self.path, _FILE, read_only=read_only)
        self._references_unchecked = set(self._stored)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; its file, where it has one, is whole on the disk and free for others."""
        if self._keeps:
            self._connection.execute(f"detach {_FILE}")
            self._keeps = False
        self._connection.close()

    # --- giving -------------------------------------------------------------------------------------------------------

    def give(self, name: str, data: Any, *, trusted: bool = False) -> None:
        """State a table's rows: what was computed from the old ones is dropped.

        A derived table may be given too: then its node does not run. ``trusted``: the checks of the contract were made
        before; types, nulls and references are still looked at.

        ContractBroken lists every fault of the rows; UnknownName tells of a reference to a name that is not there.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.give("fabrics", session.table("fabrics").slice(0, 2))
        ...     session.table("fabrics").num_rows
        2
        """
        contract = self.graph.known(name)
        if name in CATALOGUE:
            raise InvalidInput(f"{name} describes the tables themselves and cannot be given.")
        table = conform(data, contract, trusted=trusted)
        self._check_references(name, table)
        dropped = self._computed_from(name)
        if self._keeps:
            change_tables(self._connection, _FILE, self.graph.contracts, {name: table}, dropped)
            self._stored.add(name)
        for other in dropped:
            self._tables.pop(other, None)
            self._stored.discard(other)
            self._unregister(other)
        self._tables[name] = table
        self._given.add(name)
        # Tables that refer to this one are looked at again before a node reads them.
        self._references_unchecked |= self._given

    def given(self) -> set[str]:
        """Return the tables that were given to this session, extended facts among them.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.given()
        set()
        """
        return set(self._given)

    def put(self, name: str, rows: pa.Table) -> None:
        """Keep rows of a derived table as if its node had made them now: they go when what they rest on is given anew.

        Only types and nulls are looked at. A sweep puts what it simulates without counting the uses of step costs.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.put("sharded_layers", session.graph.known("sharded_layers").schema.empty_table())
        ...     session.table("sharded_layers").num_rows
        0
        """
        self._tables[name] = conform(rows, self.graph.known(name), trusted=True)

    def extend(self, name: str, rows: Any) -> None:
        """Add rows to a table that is there, such as a hypothetical GPU; a row with the same key is replaced.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.extend("gpus", session.sql("select * replace ('mine' as gpu) from gpus where gpu = 't4'"))
        ...     session.table("gpus").column("gpu").to_pylist()[-1]
        'mine'
        """
        contract = self.graph.known(name)
        added = conform(rows, contract)
        if name in self.available():
            there = self._fetch(name)
            taken = set(_key_rows(added, contract.key))
            kept = [key not in taken for key in _key_rows(there, contract.key)]
            added = pa.concat_tables([there.filter(pa.array(kept, pa.bool_())), added])
        self.give(name, added)

    def _computed_from(self, name: str) -> list[str]:
        computed = (set(self._tables) | self._stored) - self._given - {name}
        return sorted(other for other in computed if self.graph.depends(other, name, fixed=self._given))

    def _check_references(self, name: str, table: pa.Table) -> None:
        available = self.available()
        for column in self.graph.contracts[name].columns:
            other, _, key = column.reference.partition(".")
            if other in available and other != name:
                check_reference(name, column, table.column(column.name), self._fetch(other).column(key))

    # --- asking -------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> pa.Table:
        """Return a table, computed now where it is derived and not there yet.

        UnknownName: no such table. MissingTable: it needs a table that nobody gave.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.table("quantizations").column("quantization").to_pylist()[0]
        'none'
        """
        if name not in self._stored:
            self.graph.known(name)
        self._compute([name])
        return self._fetch(name)

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over given and derived tables, the derived ones that it names computed now.

        The relation reads its rows when it is fetched: giving a table in between changes what it sees.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.sql("select count(*) from catalogue_tables where kind = 'given'").fetchall()[0][0] > 0
        True
        """
        try:
            kinds = [statement.type.name for statement in self._connection.extract_statements(query)]
        except duckdb.Error as error:
            raise InvalidInput(f"the query cannot be read: {complaint(error)}.") from None
        if len(kinds) != 1 or kinds[0] not in _ANSWERING:
            found = "; ".join(kind.lower() for kind in kinds) or "nothing"
            raise InvalidInput(f"sql() answers one query, such as a SELECT, and was given: {found}.")
        names = tables_in_query(query, set(self.graph.contracts) | self._stored)
        there = [name for name in names if name in self.graph.contracts or name in self._stored]
        self._compute(there)
        for name in there:
            self._register(name)
        try:
            return self._connection.sql(query)
        except duckdb.CatalogException as error:
            lost = [name for name in names if name not in there and f"Table with name {name} " in str(error)]
            if lost:
                known = set(self.graph.contracts) | self._stored
                raise unknown("table", lost[0], known, "`kernelsight tables` lists them.") from None
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None
        except duckdb.Error as error:
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None

    def query(self, query: str) -> pa.Table:
        """Return what ``sql`` answers as an Arrow table, so that a fault in its rows is told in one sentence too.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.query("select 1 as one").to_pylist()
        [{'one': 1}]
        """
        relation = self.sql(query)
        try:
            return relation.to_arrow_table()
        except duckdb.Error as error:
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None

    def select(self, name: str, columns: Collection[str]) -> pa.Table:
        """Return some columns of a table; of one that a query makes and that is not there yet, nothing else is made.

        Then nothing is kept either: a sweep reads the sizes of kernels once, and none of their names.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.select("number_formats", ["format", "weight_bits"]).column_names
        ['format', 'weight_bits']
        """
        contract = self.graph.known(name)
        node = self.graph.node(name) if name not in self.available() else None
        if node is None or node.kind != "sql":
            return self.table(name).select(list(columns))
        self._compute(node.inputs)
        wanted = replace(contract, columns=tuple(column for column in contract.columns if column.name in columns))
        text = f"select {', '.join(map(quote, wanted.column_names))} from (\n{node.text}\n)"
        return conform(self._run_query(replace(node, text=text))[name], wanted, trusted=True, origin=node.label)

    def explain(self, name: str, format: str = "text") -> str:
        """Return which nodes would run for a table, as "text" or as a "mermaid" flow chart.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     print(session.explain("gpus"))
        gpus: nothing to run, the rows are there.
        """
        return self.graph.explain([name], self.available(), format)

    def tables(self) -> pa.Table:
        """Return every table: kind, grain, description, what makes it from what."""
        return self.table("catalogue_tables")

    def columns(self, name: str) -> pa.Table:
        """Return a table's columns: type, unit, key, reference, check, description."""
        self.graph.known(name)
        columns = self.table("catalogue_columns")
        return columns.filter(pc.equal(columns.column("table"), name))

    def available(self) -> set[str]:
        """Return the tables whose rows are there: given, stored, embedded or computed."""
        return {*self._tables, *self._stored, *self._facts, *CATALOGUE}

    def _compute(self, names: Iterable[str]) -> None:
        available = self.available()
        wanted = [name for name in names if name not in available]
        if not wanted:
            return
        try:
            nodes = self.graph.plan(wanted, available)
        except MissingTable as error:
            if self.path is None:
                raise
            raise MissingTable(
                f"{self.path} holds neither {', '.join(wanted)} nor all it is made from: {error}"
            ) from None
        if SAVED_RUN in self._stored and any(SIMULATED in node.names for node in nodes):
            raise MissingTable(_not_kept(self.path, wanted))
        for name in sorted({name for node in nodes for name in node.inputs} & self._references_unchecked):
            self._check_references(name, self._fetch(name))
            self._references_unchecked.discard(name)
        for node in nodes:
            self._run(node)

    def _run(self, node: Node) -> None:
        started = time.perf_counter()
        made = self._run_query(node) if node.kind == "sql" else self._run_function(node)
        for name in node.names:
            # A table that is there already was given, or stands in the file: it stays.
            if name not in self.available():
                self._tables[name] = conform(made[name], self.graph.contracts[name], trusted=True, origin=node.label)
        if self.progress:
            self.progress(", ".join(node.names), time.perf_counter() - started)

    def _run_query(self, node: Node) -> dict[str, pa.Table]:
        for name in node.inputs:
            self._register(name)
        try:
            return {node.names[0]: self._connection.sql(node.text).to_arrow_table()}
        except duckdb.Error as error:
            if isinstance(error, duckdb.InterruptException) or "KeyboardInterrupt" in str(error):
                raise KeyboardInterrupt from None  # Ctrl-C inside the engine is no fault of the query
            raise RunFailed(f"{node.label} failed: {complaint(error)}.") from error

    def _run_function(self, node: Node) -> Mapping[str, Any]:
        made = node.function(**{name: self._fetch(name) for name in node.inputs})
        if not isinstance(made, Mapping):
            made = {node.names[0]: made}
        if set(made) != set(node.names):
            raise RunFailed(f"{node.label} made {', '.join(sorted(made))} where it states {', '.join(node.names)}.")
        return made

    def _fetch(self, name: str) -> pa.Table:
        """Return a table that is available, read from the file or the package when it is first wanted."""
        if name not in self._tables:
            contract = self.graph.contracts.get(name)
            if name in self._stored:
                rows = read_table(self._connection, _FILE, name)
                self._tables[name] = conform(rows, contract, origin=str(self.path)) if contract else rows
            elif name in CATALOGUE:
                self._tables[name] = conform(
                    catalogue_table(name, self.graph), self.graph.contracts[name], trusted=True
                )
            else:
                fact = self._facts[name]()
                self._tables[name] = remembered((fact,), "fact", lambda: conform(fact, contract, trusted=True))
        return self._tables[name]

    def _register(self, name: str) -> None:
        table = self._fetch(name)
        if self._registered.get(name) is not table:
            self._connection.register(name, table)
            self._registered[name] = table

    def _unregister(self, name: str) -> None:
        if self._registered.pop(name, None) is not None:
            self._connection.unregister(name)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def fork(self) -> Self:
        """Return a session with the same tables, where giving and computing leaves this one untouched.

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
        other.path = self.path
        other._tables = dict(self._tables)
        other._given = set(self._given)
        other._stored = set(self._stored)
        other._references_unchecked = set(self._references_unchecked)
        other.progress = self.progress
        return other

    def save(self, path: str | Path, tables: Collection[str] | None = None) -> None:
        """Write tables (computed where they are not there yet), or all that are there, to a DuckDB file.

        The file takes its place only when it is whole; DuckDB 1.5 and later open it.

        >>> import tempfile
        >>> from kernelsight import connect
        >>> with connect() as session, tempfile.TemporaryDirectory() as folder:
        ...     session.save(Path(folder) / "facts.duckdb", ["fabrics"])
        ...     with connect(Path(folder) / "facts.duckdb", read_only=True) as saved:
        ...         saved.table("fabrics").equals(session.table("fabrics"))
        True
        """
        names = sorted(self.available() - set(CATALOGUE)) if tables is None else list(tables)
        rows = {name: self.table(name) for name in names}
        target = Path(path)
        own = self._keeps and self.path is not None and target.resolve() == self.path.resolve()
        if not own:
            save_file(target, self.graph.contracts, rows)
            return
        self._connection.execute(f"detach {_FILE}")
        try:
            save_file(target, self.graph.contracts, rows)
        finally:
            self._stored = attach(self._connection, target, _FILE, read_only=False)


def _not_kept(path: Path | None, names: Iterable[str]) -> str:
    return (
        f"the saved run {path} does not hold {', '.join(names)}, and a saved run is never simulated again: "
        "steps are kept by `kernelsight simulate --keep steps -o FILE.duckdb`."
    )


def _key_rows(table: pa.Table, key: list[str]) -> list[tuple]:
    return list(zip(*(table.column(name).to_pylist() for name in key), strict=True))
