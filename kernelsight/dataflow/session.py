"""The session: holds input tables, and computes derived tables on demand, each once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.cache import remembered
from kernelsight.dataflow.catalogue import CATALOGUE, catalogue_table
from kernelsight.dataflow.contract import NAME, as_arrow, conform
from kernelsight.dataflow.engine import Database, complaint, quote, stop_if_interrupted
from kernelsight.dataflow.graph import Graph, Node
from kernelsight.dataflow.kept import Kept, keep_table
from kernelsight.dataflow.kept import read_table as read_kept_table
from kernelsight.dataflow.rows import as_table, is_rows
from kernelsight.dataflow.violations import check_reference
from kernelsight.errors import InvalidInput, MissingTable, RunFailed, unknown

if TYPE_CHECKING:
    import duckdb

_FILE = "kernelsight_file"


class Session:
    """Given tables, embedded facts and computed tables over one graph; for the thread that made it alone.

    ``threads``: how many a node may use; None: its own choice. ``files``: queries may read local files. ``kept``: the
    tables that other processes computed are taken from disk; a session on a file takes none.
    """

    def __init__(
        self,
        graph: Graph,
        facts: Mapping[str, Callable[[], pa.Table]] | None = None,
        *,
        path: str | Path | None = None,
        read_only: bool = False,
        files: bool = True,
        database: Database | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.graph: Graph = graph
        self.progress: Callable[[str, float], None] | None = None
        # what nodes that search say while they run
        self.report: Callable[[str], None] | None = None
        self.path: Path | None = Path(path) if path is not None else None
        self._facts = dict(facts or {})
        self._kept = kept if path is None else None
        # Forks share the database and its attached file, and nothing that is registered on a cursor.
        self._database = database or Database(lambda: graph.macros, files=files)
        self._keeps = self.path is not None and not read_only
        self.threads: int | None = None
        self._owner = threading.get_ident()
        self._tables: dict[str, pa.Table] = {}
        # tables that a node has not laid out yet: what it computed is kept, the rows are made when they are asked for
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
        self._stored = attach(connection, self.path, _FILE, read_only=read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; its file, if any, is complete on disk and released."""
        if self._keeps:
            self._connection.execute(f"detach {_FILE}")
            self._keeps = False
        if "_connection" in self.__dict__:
            self._connection.close()

    # --- giving -------------------------------------------------------------------------------------------------------

    def give(self, name: str, data: Any, *, trusted: bool = False) -> None:
        """Set the rows of a table; tables computed from the old rows are dropped.

        ``data``: anything with ``__arrow_c_stream__``, or a list of dicts. A derived table may be given too: then its
        node does not run. A name that no contract has is a table of your own, for SQL and ``table``. ``trusted``: the
        checks of the contract were made before; types, nulls and references are still checked.

        ContractBroken lists every fault of the rows; UnknownName: they refer to a name that no row has.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.give("fabrics", session.table("fabrics").slice(0, 2))
        ...     session.table("fabrics").num_rows
        2
        """
        self._check_thread()
        if name not in self.graph.contracts:
            self._give_own(name, data)
            return
        if name in CATALOGUE:
            raise InvalidInput(f"{name} is computed from the contracts and cannot be an input.")
        table = conform(self._as_rows(name, data), self.graph.contracts[name], trusted=trusted)
        self._check_references(name, table)
        dropped = self._computed_from(name)
        self._store(name, table, dropped)
        for other in (*dropped, name):
            self._pending.pop(other, None)
        for other in dropped:
            self._tables.pop(other, None)
            self._stored.discard(other)
            self._unregister(other)
        self._tables[name] = table
        self._given.add(name)
        # Tables that refer to this one are looked at again before a node reads them.
        self._references_unchecked |= self._given

    def _as_rows(self, name: str, data: Any) -> Any:
        if not is_rows(data):
            return data
        contract = self.graph.contracts[name]
        strange = {key for row in data for key in row} - set(contract.column_names)
        if strange:
            raise unknown("column", min(strange), contract.column_names, f"`kernelsight tables {name}` lists them.")
        return as_table(contract, data)

    def _give_own(self, name: str, data: Any) -> None:
        """Keep a table that no contract describes."""
        if not NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot name a table; use lower-case letters, digits and underscores.")
        table = pa.Table.from_pylist(data) if is_rows(data) else as_arrow(data, name)
        self._store(name, table)
        self._tables[name] = table
        self._own.add(name)

    def _store(self, name: str, table: pa.Table, dropped: Collection[str] = ()) -> None:
        """Write a table to the session's file, where it keeps one, and drop others from it."""
        if self._keeps:
            from kernelsight.dataflow.storage import change_tables

            change_tables(self._connection, _FILE, self.graph.contracts, {name: table}, dropped)
            self._stored.add(name)

    def given(self) -> set[str]:
        """Return the tables given to this session, including extended catalogue tables.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.given()
        set()
        """
        return set(self._given)

    def extend(self, name: str, rows: Any) -> None:
        """Add rows to a table, such as a hypothetical GPU; a row with the same key is replaced.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.extend("gpus", session.sql("select * replace ('mine' as gpu) from gpus where gpu = 't4'"))
        ...     session.table("gpus").column("gpu").to_pylist()[-1]
        'mine'
        """
        contract = self.graph.known(name)
        added = conform(self._as_rows(name, rows), contract)
        if name in self.available():
            there = self._fetch(name)
            taken = set(_key_rows(added, contract.key))
            kept = [key not in taken for key in _key_rows(there, contract.key)]
            added = pa.concat_tables([there.filter(pa.array(kept, pa.bool_())), added])
        self.give(name, added)

    def offer(self, name: str, read: Callable[[], pa.Table]) -> None:
        """Let ``read`` provide a given table when it is first asked for, where it is not available otherwise.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.offer("sweep_points", lambda: session.graph.contracts["sweep_points"].schema.empty_table())
        ...     session.table("sweep_points").num_rows
        0
        """
        self.graph.known(name)
        self._facts.setdefault(name, read)

    def _computed_from(self, name: str) -> list[str]:
        computed = (set(self._tables) | set(self._pending) | self._stored) - self._given - {name}
        return sorted(other for other in computed if self.graph.depends(other, name, fixed=self._given))

    def _check_references(self, name: str, table: pa.Table) -> None:
        available = self.available()
        for column in self.graph.contracts[name].columns:
            other, _, key = column.reference.partition(".")
            if other in available and other != name:
                check_reference(name, column, table.column(column.name), self._fetch(other).column(key))

    # --- asking -------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> pa.Table:
        """Return a table, computed if it is derived and not available yet.

        UnknownName: no such table. MissingTable: a required input table is missing.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.table("quantizations").column("quantization").to_pylist()[0]
        'none'
        """
        self.compute(name)
        return self._fetch(name)

    def compute(self, *names: str) -> None:
        """Make several tables in one go, each node run once: what one question needs of a simulation is served once.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.compute("gpus", "fabrics")
        """
        for name in names:
            if name not in self._stored | self._own:
                self.graph.known(name)
        self._compute(names)

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation of a query; the derived tables that it uses are computed first.

        A name that is no table is looked up among the caller's variables: polars, pyarrow and pandas frames are read.
        The relation reads its rows when fetched, so giving a table in between changes the result.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.sql("select count(*) from catalogue_tables where kind = 'given'").fetchall()[0][0] > 0
        True
        """
        import duckdb

        from kernelsight.dataflow.frames import caller_frames
        from kernelsight.dataflow.hints import asks_for_tables, query_fault
        from kernelsight.dataflow.user_queries import check_query, tables_in_query

        check_query(query)
        if asks_for_tables(query):
            return self._connection.from_arrow(self._shown_tables())
        known = set(self.graph.contracts) | self._stored | self._own
        frames = caller_frames()
        names = tables_in_query(query, known | set(frames))
        there = [name for name in names if name in known]
        self._compute(there)
        for name in there:
            self._register(name)
        for name in names:
            if name not in known and name in frames:
                self._connection.register(name, as_arrow(frames[name], name))
                self._registered[name] = None
        try:
            return self._connection.sql(query)
        except duckdb.CatalogException as error:
            lost = [name for name in names if name not in there and f"Table with name {name} " in str(error)]
            if lost:
                raise unknown("table", lost[0], known, "`kernelsight tables` lists them.") from None
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None
        except duckdb.Error as error:
            read = {name: self._fetch(name).column_names for name in there}
            raise InvalidInput(query_fault(error, read, self.graph.contracts, self.available())) from None

    def _shown_tables(self) -> pa.Table:
        """Return what SHOW TABLES answers: tables with rows, and those that can be computed from them."""
        available = self.available()
        rows = [{"name": name, "state": "own" if name in self._own else "given"} for name in self._given | self._own]
        rows += [{"name": name, "state": "in the file"} for name in self._stored - self._given - self._own]
        rows += [{"name": name, "state": "of the catalogue"} for name in {*self._facts, *CATALOGUE} - self._given]
        seen = {row["name"] for row in rows}
        rows += [
            {"name": name, "state": "computed when it is asked for"}
            for name in {*self.graph.contracts} - seen
            if name in available or self._can_compute(name)
        ]
        return pa.Table.from_pylist(sorted(rows, key=lambda row: row["name"]))

    def _can_compute(self, name: str) -> bool:
        try:
            return bool(self.graph.plan([name], self.available()))
        except MissingTable:
            return False

    def query(self, query: str) -> pa.Table:
        """Return the result of ``sql`` as an Arrow table; errors while fetching its rows raise InvalidInput.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     session.query("select 1 as one").to_pylist()
        [{'one': 1}]
        """
        import duckdb

        relation = self.sql(query)
        try:
            return relation.to_arrow_table()
        except (duckdb.Error, RuntimeError) as error:
            stop_if_interrupted(error)
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None

    def explain(self, name: str, format: str = "text") -> str:
        """Return the nodes that would run for a table, as "text" or as a "mermaid" flow chart.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     print(session.explain("gpus"))
        gpus: available, nothing to run.
        """
        return self.graph.explain([name], self.available(), format)

    def tables(self) -> pa.Table:
        """Return all tables: kind, grain, description, node and inputs."""
        return self.table("catalogue_tables")

    def columns(self, name: str) -> pa.Table:
        """Return a table's columns: type, unit, key, reference, check, description."""
        self.graph.known(name)
        columns = self.table("catalogue_columns")
        return columns.filter(pc.equal(columns.column("table"), name))

    def available(self) -> set[str]:
        """Return the available tables: given, stored, in the catalogue, or computed."""
        return {*self._tables, *self._pending, *self._stored, *self._facts, *CATALOGUE}

    def facts(self) -> set[str]:
        """Return the tables that the package brings.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     "gpus" in session.facts()
        True
        """
        return set(self._facts)

    def _compute(self, names: Iterable[str]) -> None:
        self._check_thread()
        available = self.available()
        wanted = [name for name in names if name not in available]
        if self._kept:
            self._take_kept(wanted, self._kept)
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
        for name in sorted(read & available & self._references_unchecked):  # what is computed needs no check
            self._check_references(name, self._fetch(name))
            self._references_unchecked.discard(name)
        asked = {*wanted, *(name for node in nodes for name in node.inputs)}
        for node in nodes:
            self._run(node, asked)

    def _take_kept(self, names: Iterable[str], kept: Kept) -> None:
        """Take tables from disk, and where one is not there, those that its node reads."""
        waiting, seen = list(names), self.available()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.graph.node(name)
            key = self._kept_key(name, kept) if name in kept.tables else None
            rows = read_kept_table(key, self.graph.contracts[name].schema) if key else None
            if rows is not None:
                self._tables[name] = rows
            elif node is not None:
                waiting += node.inputs

    def key_of(self, name: str) -> str | None:
        """Return the hash of all that a derived table is made from; None where nothing is kept of it."""
        return self._kept_key(name, self._kept) if self._kept else None

    def _kept_key(self, name: str, kept: Kept) -> str | None:
        """Return the key of a derived table; None where something that it is made from is missing, or passes."""
        roots: dict[str, pa.Table | None] = {}
        for each in self.graph.roots(name, frozenset(self._given | kept.by_content)):
            if each in self._given and each in kept.passing:
                return None
            if each in kept.by_content and each not in self._given:
                try:
                    self._compute([each])
                except MissingTable:
                    return None
            roots[each] = self._fetch(each) if each in self._given or each in kept.by_content else None
        return kept.key(name, roots)

    def _run(self, node: Node, asked: Collection[str]) -> None:
        """Run a node for those of its tables that are asked for and not there yet."""
        started = time.perf_counter()
        wanted = [name for name in node.names if name in asked and name not in self.available()]
        made = self._run_query(node) if node.kind == "sql" else self._run_function(node, wanted)
        for name, rows in made.items():
            # a table that is there already was given, or stands in the file: it stays
            if name in self.available():
                continue
            if callable(rows):
                self._pending[name] = rows
            else:
                self._tables[name] = conform(rows, self.graph.contracts[name], trusted=True, origin=node.label)
                if self._kept and name in self._kept.tables and (key := self._kept_key(name, self._kept)):
                    keep_table(key, self._tables[name])
        if self.progress:
            self.progress(", ".join(wanted), time.perf_counter() - started)

    def _run_query(self, node: Node) -> dict[str, pa.Table]:
        import duckdb

        for name in node.inputs:
            self._register(name)
        try:
            return {node.names[0]: self._connection.sql(node.text).to_arrow_table()}
        except (duckdb.Error, RuntimeError) as error:
            stop_if_interrupted(error)
            raise RunFailed(f"{node.label} failed: {complaint(error)}.") from error

    def _run_function(self, node: Node, wanted: Collection[str]) -> Mapping[str, Any]:
        services = {
            "wanted": frozenset(wanted),
            "read": Reader(self, node),
            "threads": self.threads,
            "fork": self.fork,
            "report": self.report or (lambda text: None),
        }
        made = node.function(
            **{name: self._fetch(name) for name in node.inputs}, **{name: services[name] for name in node.services}
        )
        if not isinstance(made, Mapping):
            made = {node.names[0]: made}
        if not set(wanted) <= set(made) <= set(node.names):
            raise RunFailed(f"{node.label} returned {', '.join(sorted(made))}, expected {', '.join(node.names)}.")
        return made

    def _read(self, name: str, columns: Sequence[str], among: Mapping[str, Collection[str]]) -> pa.Table:
        """Return columns of a table, and those rows alone whose words are ``among`` these.

        Of a query that has not run yet nothing else is computed, and nothing is kept.
        """
        node = self.graph.node(name) if name not in self.available() else None
        if node is None or node.kind != "sql":
            self._compute([name])
            whole = self._fetch(name)
            # the table itself, where all of it is wanted: values may be remembered of it
            rows = whole if list(columns) == whole.column_names else whole.select(list(columns))
            for column, words in among.items():
                rows = rows.filter(pc.is_in(whole[column], pa.array(words, pa.string())))
            return rows
        self._compute(node.inputs)
        contract = self.graph.known(name)
        wanted = replace(contract, columns=tuple(column for column in contract.columns if column.name in columns))
        conditions = [f"{quote(column)} in ({', '.join(map(_text, words))})" for column, words in among.items()]
        text = f"select {', '.join(map(quote, wanted.column_names))} from (\n{node.text}\n)"
        text += f" where {' and '.join(conditions)}" if conditions else ""
        return conform(self._run_query(replace(node, text=text))[name], wanted, trusted=True, origin=node.label)

    def _check_thread(self) -> None:
        if threading.get_ident() != self._owner:
            raise InvalidInput(
                "this session belongs to the thread that opened it, and was used from another one; open a session in "
                "each thread, or give it a fork() of this one."
            )

    def _fetch(self, name: str) -> pa.Table:
        """Return a table that is available, read from the file or the package when it is first wanted."""
        if name not in self._tables:
            contract = self.graph.contracts.get(name)
            if name in self._pending:
                self._tables[name] = conform(self._pending.pop(name)(), contract, trusted=True, origin=name)
            elif name in self._stored:
                from kernelsight.dataflow.storage import read_table

                rows = read_table(self._connection, _FILE, name, self.path)
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
        other._kept = self._kept
        other.path = self.path
        other._tables, other._pending = dict(self._tables), dict(self._pending)
        other._given, other._own = set(self._given), set(self._own)
        other._stored = set(self._stored)
        other._references_unchecked = set(self._references_unchecked)
        other.progress, other.threads, other.report = self.progress, self.threads, self.report
        return other

    def save(self, path: str | Path, tables: Collection[str] | None = None) -> None:
        """Write tables (computed if necessary), or all available ones, to a DuckDB file.

        The file is replaced atomically; DuckDB 1.5 and later can open it.

        >>> import tempfile
        >>> from kernelsight import connect
        >>> with connect() as session, tempfile.TemporaryDirectory() as folder:
        ...     session.save(Path(folder) / "facts.duckdb", ["fabrics"])
        ...     with connect(Path(folder) / "facts.duckdb", read_only=True) as saved:
        ...         saved.table("fabrics").equals(session.table("fabrics"))
        True
        """
        from kernelsight.dataflow.storage import attach, check_ending, save_file

        check_ending(Path(path))
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


class Reader:
    """What a node fetches tables with while it runs, of those that its ``reads`` declares."""

    def __init__(self, session: Session, node: Node) -> None:
        self._session, self._node = session, node

    def __call__(
        self, name: str, columns: Sequence[str], among: Mapping[str, Collection[str]] | None = None
    ) -> pa.Table:
        """Return columns of a table; ``among``: only the rows whose value of a column is one of these words."""
        if name not in self._node.fetches:
            raise RunFailed(f"{self._node.label} reads {name} and does not declare it; add it to its `reads`.")
        return self._session._read(name, columns, among or {})

    def is_available(self, name: str) -> bool:
        """Return whether the rows of a table are there: given, stored, or computed before."""
        return name in self._session.available()

    def is_given(self, name: str) -> bool:
        """Return whether the rows of a table were given, so that no node makes them."""
        return name in self._session.given()

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that the node declares to read."""
        return self._node.fetches

    def roots_of(self, names: Collection[str]) -> tuple[pa.Table, ...]:
        """Return the tables that nodes of these names read and that were given, or that no node makes."""
        graph, given = self._session.graph, self._session.given()
        read = {one for name in names if (node := graph.node(name)) for one in node.inputs}
        return tuple(self._session._fetch(one) for one in sorted(read) if one in given or graph.node(one) is None)

    def query_of(self, name: str) -> str:
        """Return the SQL that makes a table; empty where no query does."""
        node = self._session.graph.node(name)
        return node.text if node else ""

    def columns_of(self, name: str) -> list[str]:
        """Return the columns that the contract of a table states."""
        return self._session.graph.known(name).column_names


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _key_rows(table: pa.Table, key: list[str]) -> list[tuple]:
    return list(zip(*(table.column(name).to_pylist() for name in key), strict=True))
