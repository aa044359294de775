"""The session: holds input tables, computes derived tables on demand (each once), and answers SQL over both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.contract import NAME, as_arrow, conform
from kernelsight.dataflow.databases import complaint, interruptible, stop_if_interrupted
from kernelsight.dataflow.node_runs import NodeRuns
from kernelsight.dataflow.rows import as_table, is_rows
from kernelsight.dataflow.table_store import CATALOGUE, FILE
from kernelsight.errors import InvalidInput, MissingTable, mixed_column, unknown

if TYPE_CHECKING:
    import duckdb

_OURS = __name__.partition(".")[0]


class Session(NodeRuns):
    """Given tables, embedded facts and computed tables over one graph; for the thread that made it alone.

    ``threads``: how many a node may use; None: its own choice. ``files``: queries may read local files.
    ``cache_policy``: which computed tables the on-disk cache holds; a session on a file uses no such cache.
    """

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
            self._give_user_table(name, data)
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
        # foreign keys into this table are checked again before a node reads the tables that have them
        self._references_unchecked |= self._given

    def _as_rows(self, name: str, data: Any) -> Any:
        if not is_rows(data):
            return data
        contract = self.graph.contracts[name]
        extra = {key for row in data for key in row} - set(contract.column_names)
        if extra:
            raise unknown("column", min(extra), contract.column_names, f"`kernelsight tables {name}` lists them.")
        return as_table(contract, data)

    def _give_user_table(self, name: str, data: Any) -> None:
        """Hold a user's own table, without a contract. InvalidInput: its name or its data cannot be a table's."""
        if not NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot name a table; use lower-case letters, digits and underscores.")
        try:
            table = pa.Table.from_pylist(data) if is_rows(data) else as_arrow(data, name)
        except (pa.ArrowException, OverflowError) as error:
            raise mixed_column(name, error) from None
        self._store(name, table)
        self._tables[name] = table
        self._own.add(name)

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
            present = self._fetch(name)
            replaced = set(_key_rows(added, contract.key))
            stays = [key not in replaced for key in _key_rows(present, contract.key)]
            added = pa.concat_tables([present.filter(pa.array(stays, pa.bool_())), added])
        self.give(name, added)

    def offer(self, name: str, read: Callable[[], pa.Table]) -> None:
        """Register ``read``, which provides a given table when it is first fetched, unless it is available otherwise.

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
        """Compute several tables together, each node run once, so that they share one simulation.

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
        return self.sql_with(query, {})

    def sql_with(self, query: str, wider: Mapping[str, pa.Table]) -> duckdb.DuckDBPyRelation:
        """Return a relation as ``sql``; ``wider``: tables of the session with columns of other ones joined to them.

        A query that reads those others too reads the session's own tables: a column would be there twice.
        """
        import duckdb

        from kernelsight.dataflow.user_queries import check_query, is_show_tables, query_fault, tables_in_query

        check_query(query)
        if is_show_tables(query):
            return self._connection.from_arrow(self._shown_tables())
        known = set(self.graph.contracts) | self._stored | self._own
        frames = caller_frames()
        names = tables_in_query(query, known | set(frames))
        ours = [name for name in names if name in known]
        self._compute(ours)
        for name in ours:
            self._register(name)
        others = {column for name in ours if name not in wider for column in self._fetch(name).column_names}
        for name in wider.keys() & set(ours):
            if others & set(wider[name].column_names) - set(self._fetch(name).column_names):
                continue
            self._connection.register(name, wider[name])
            self._registered[name] = None
        for name in names:
            if name not in known and name in frames:
                self._connection.register(name, as_arrow(frames[name], name))
                self._registered[name] = None
        try:
            return self._connection.sql(query)
        except duckdb.CatalogException as error:
            missing = [name for name in names if name not in ours and f"Table with name {name} " in str(error)]
            if missing:
                raise unknown("table", missing[0], known, "`kernelsight tables` lists them.") from None
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None
        except duckdb.Error as error:
            read = {name: wider.get(name, self._fetch(name)).column_names for name in ours}
            raise InvalidInput(query_fault(error, read, self.graph.contracts, self.available())) from None

    def _shown_tables(self) -> pa.Table:
        """Return the answer to SHOW TABLES: tables that have rows, and those that can be computed from them."""
        available = self.available()
        rows = [{"name": name, "state": "own" if name in self._own else "given"} for name in self._given | self._own]
        rows += [{"name": name, "state": "in the file"} for name in self._stored - self._given - self._own]
        rows += [{"name": name, "state": "of the catalogue"} for name in {*self._facts, *CATALOGUE} - self._given]
        listed = {row["name"] for row in rows}
        rows += [
            {"name": name, "state": "computed when it is asked for"}
            for name in {*self.graph.contracts} - listed
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
            return interruptible(self._connection, relation.to_arrow_table)
        except (duckdb.Error, RuntimeError) as error:
            stop_if_interrupted(error)
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None

    def batches(self, query: str, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the result of ``sql`` in batches of at most ``rows`` rows, one at a time in memory; see ``query``.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     [batch.num_rows for batch in session.batches("select * from range(5)", 3)]
        [3, 2]
        """
        import duckdb

        relation = self.sql(query)
        try:
            yield from relation.to_arrow_reader(rows)
        except (duckdb.Error, OSError, RuntimeError) as error:
            stop_if_interrupted(error)
            raise InvalidInput(f"the query cannot be run: {complaint(error)}.") from None

    def explain(self, name: str, format: str = "text", opened: bool = False) -> str:
        """Return the nodes that would run for a table, as "text" by stage or as a "mermaid" flow chart.

        ``opened``: the text also shows what runs inside of nodes such as ``sizes``, which compute tables for rows of
        their own.

        >>> from kernelsight import connect
        >>> with connect() as session:
        ...     print(session.explain("gpus"))
        gpus: available, nothing to run.
        """
        return self.graph.explain([name], self.available(), format, opened)

    def tables(self) -> pa.Table:
        """Return all tables: kind, grain, description, node and inputs."""
        return self.table("catalogue_tables")

    def columns(self, name: str) -> pa.Table:
        """Return a table's columns: type, unit, key, reference, check, description."""
        self.graph.known(name)
        columns = self.table("catalogue_columns")
        return columns.filter(pc.equal(columns.column("table"), name))

    # --- keeping ------------------------------------------------------------------------------------------------------

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
        is_own_file = self._keeps and self.path is not None and os.path.realpath(target) == os.path.realpath(self.path)
        if not is_own_file:
            save_file(target, self.graph.contracts, rows)
            return
        self._connection.execute(f"detach {FILE}")
        try:
            save_file(target, self.graph.contracts, rows)
        finally:
            self._stored = attach(self._connection, target, FILE, read_only=False)


def _key_rows(table: pa.Table, key: list[str]) -> list[tuple]:
    """Return the values of the key columns, one tuple per row."""
    return list(zip(*(table.column(name).to_pylist() for name in key), strict=True))


def caller_frames() -> dict[str, Any]:
    """Return the DataFrames among the variables of the first caller outside this package, by lower-case name.

    Local variables hide global ones. A DataFrame is any object with ``__arrow_c_stream__``: pyarrow, polars and pandas
    tables, DuckDB relations.
    """
    frame = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS:
        if frame.f_globals.get("__name__") == "__main__":
            break
        frame = frame.f_back
    if frame is None:
        return {}
    variables = {**frame.f_globals, **frame.f_locals}
    return {name.lower(): value for name, value in variables.items() if hasattr(type(value), "__arrow_c_stream__")}
