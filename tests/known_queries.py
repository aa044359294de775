"""What queries of nodes gave is kept for the next tests, of other workers and runs too: asked once over equal rows.

Most of the time of commands over few rows is DuckDB's, which plans thirty queries for each of them. An answer is known
by its text, its macros, the columns that its plan reads of its rows and the version of DuckDB: whatever changes one of
them asks anew. The name of a single deployment, a hash of settings that most queries do not read, changes none. What
has to be asked is planned once, in a database of the thread where facts stay registered. Tests whose subject is that a
query gives the same again, or leaves nothing behind, are without (``asked_anew``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.disk_cache import content_digest
from kernelsight.caches.memory_cache import LruCache, memoised
from kernelsight.dataflow.databases import Database, lock_database, open_database
from kernelsight.dataflow.graph import Node
from kernelsight.dataflow.session import Session

HERE = Path(__file__).resolve().parent
ANEW = ("dataflow", "invariants", "safety/test_growth.py", "sweeps/test_memory.py")
# tables beyond this, other than facts, take longer to compare than a query to plan
MOST_BYTES = 1 << 20
# answers that no run read for so long are removed
DAYS = 3
ROWS_AS_PLANNED = 131072
# the column whose words name deployments, by a hash of all their settings
LABEL = "deployment_id"
# steps of a plan that read given rows, and those that read what other steps made
ROWS, OF_THE_PLAN = "PYTHON_ARROW_SCAN", {"CTE_SCAN", "DELIM_SCAN", "COLUMN_DATA_SCAN", "DUMMY_SCAN", "REC_CTE_SCAN"}


class KnownQueries:
    """Answers queries of nodes with what they gave before, unless ``anew``; ``folder`` keeps it for other processes."""

    def __init__(self) -> None:
        self.anew = False
        self.folder: Path | None = None
        self._answers: LruCache[pa.Table] = LruCache(4000)
        self._reads: dict[tuple[Any, ...], dict[str, set[str]] | None] = {}
        self._databases: dict[tuple[str, bool], duckdb.DuckDBPyConnection] = {}
        self._cursors = threading.local()
        self._run, self._cursor = Session._run_query, Database.cursor

    def start(self) -> None:
        """Answer the queries of all sessions of this process; those without a file share a database, as forks do."""
        Session._run_query = lambda session, node: self.answer(session, node)  # type: ignore[method-assign]
        Database.cursor = lambda database, prepare=None: self.cursor(database, prepare)  # type: ignore[method-assign]

    def cursor(self, database: Database, prepare: Any) -> duckdb.DuckDBPyConnection:
        """Return a new cursor of a database, which is opened once for all sessions that attach no file."""
        if self.anew or prepare is not None or database._opened is not None:
            return self._cursor(database, prepare)
        about = (database._macros(), database._files)
        database._opened = self._databases.get(about)
        cursor = self._cursor(database)
        self._databases[about] = database._opened
        return cursor

    def answer(self, session: Session, node: Node) -> dict[str, pa.Table]:
        """Return the table of a query."""
        rows = {name: session._fetch(name) for name in node.inputs}
        made = [table for name, table in rows.items() if name not in session._facts or name in session._given]
        if self.anew:
            return self._run(session, node)
        if any(table.nbytes > MOST_BYTES for table in made):
            return {node.names[0]: self._planned_once(session, node)}
        ids = {one for table in made for one in _ids(table)}
        label = ids.pop() if len(ids) == 1 else None
        question = self._question(session, node, rows, label)
        found = self._answers.get(question) or self._read(question)
        if found is None:
            found = self._planned_once(session, node)
            if found.nbytes <= MOST_BYTES and not _told_elsewhere(found, label):
                self._write(question, found)
                self._answers.put(question, found)
        return {node.names[0]: _labelled(found, label) if label else found}

    def _question(self, session: Session, node: Node, rows: dict[str, pa.Table], label: str | None) -> str:
        """Return what an answer is known by: the query and what it reads, whatever the deployment is called."""
        read = self._columns_read(session, node, rows)
        digest = hashlib.sha256(repr((duckdb.__version__, session.graph.macros, node.text, node.inputs)).encode())
        for name, table in rows.items():
            columns = [column for column in table.column_names if column in read[name]] if read else table.column_names
            digest.update(str(table.num_rows).encode())
            digest.update(_content(table, tuple(columns), label))
        return digest.hexdigest()

    def _columns_read(self, session: Session, node: Node, rows: dict[str, pa.Table]) -> dict[str, set[str]] | None:
        """Return the columns of each table that DuckDB's plan of a query reads; None: it does not tell."""
        # of a table that has one more, a query of all columns reads one more
        there = tuple((name, *table.column_names) for name, table in rows.items())
        asked = (session.graph.macros, node.text, there)
        if asked not in self._reads:
            self._reads[asked] = self._kept_columns(session, node, asked)
        return self._reads[asked]

    def _kept_columns(self, session: Session, node: Node, asked: tuple[Any, ...]) -> dict[str, set[str]] | None:
        question = hashlib.sha256(repr((duckdb.__version__, *asked)).encode()).hexdigest()
        path = self.folder / f"{question}.columns" if self.folder else None
        if path and path.exists():
            os.utime(path)
            read = json.loads(path.read_text())
        else:
            try:
                read = _planned_columns(self._prepared(session, node), session, node)
            except duckdb.Error:  # running it says what is wrong
                return None
            if path:
                _put(path, json.dumps(read).encode())
        return read and {name: set(columns) for name, columns in read.items()}

    def _planned_once(self, session: Session, node: Node) -> pa.Table:
        """Run a query as ``to_arrow_table`` of a relation does, without planning it first for the names of columns."""
        with contextlib.suppress(AttributeError, TypeError, duckdb.Error, RuntimeError):
            return self._prepared(session, node)._submit(node.text, None, "arrow", ROWS_AS_PLANNED).arrow_table()
        return self._run(session, node)[node.names[0]]

    def _prepared(self, session: Session, node: Node) -> duckdb.DuckDBPyConnection:
        """Return this thread's database for all sessions, which knows the facts already, with what a query reads."""
        cursors = self._cursors.__dict__
        macros = session.graph.macros
        if macros not in cursors:
            cursors[macros] = database, _ = open_database(macros), {}
            # another worker has the other core, and threads that wait for each other take a tenth of the time
            database.execute("set threads = 1")
            lock_database(database, files=False)
        cursor, registered = cursors[macros]
        for name, table in session._columns_read(node).items():
            if registered.get(name) is not table:
                cursor.register(name, table)
                registered[name] = table
        return cursor

    def _read(self, question: str) -> pa.Table | None:
        if self.folder is None or not (path := self.folder / question).exists():
            return None
        os.utime(path)
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            table = stream.read_all()
        self._answers.put(question, table)
        return table

    def _write(self, question: str, found: pa.Table) -> None:
        if self.folder is None:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(found)
        _put(self.folder / question, sink.getvalue())

    def tidy(self) -> None:
        """Remove the answers that nobody read of late."""
        for path in self.folder.iterdir() if self.folder else ():
            if path.stat().st_mtime < time.time() - DAYS * 86400:
                path.unlink(missing_ok=True)


def _put(path: Path, content: bytes | pa.Buffer) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


def _planned_columns(cursor: duckdb.DuckDBPyConnection, session: Session, node: Node) -> dict[str, list[str]] | None:
    """Return which columns of each table the plan of a query scans, or more: a scan does not say of which table."""
    [(_, plan)] = cursor.execute(f"explain (format json) {node.text}").fetchall()
    read: dict[str, set[str]] = {name: set() for name in node.inputs}
    waiting = json.loads(plan)
    while waiting:
        step = waiting.pop()
        waiting += step["children"]
        if "SCAN" in step["name"] and step["name"] not in OF_THE_PLAN:
            scanned = step["extra_info"].get("Projections")
            if step["name"] != ROWS or scanned is None:
                return None
            columns = {scanned} if isinstance(scanned, str) else set(scanned)
            for name in node.inputs:
                if columns <= set(session._fetch(name).column_names):
                    read[name] |= columns
    return {name: sorted(columns) for name, columns in read.items()}


def _ids(table: pa.Table) -> list[str]:
    """Return the deployments of a table."""
    if LABEL not in table.column_names:
        return []
    return memoised((table,), "deployments", lambda: pc.unique(table[LABEL]).to_pylist())


def _labelled(table: pa.Table, label: str | None) -> pa.Table:
    """Return a table of one deployment under another name of it."""
    if LABEL not in table.column_names or not table.num_rows:
        return table
    place = table.column_names.index(LABEL)
    return table.set_column(
        place, table.schema.field(place), pa.array([label] * table.num_rows, table.schema.types[place])
    )


def _content(table: pa.Table, columns: tuple[str, ...], label: str | None) -> bytes:
    """Return what tells rows from others but for columns that are not read, and for the name of their deployment."""
    if label is None and len(columns) == table.num_columns:
        return content_digest(table)

    def digest() -> bytes:
        read = table.select(list(columns))
        return content_digest(_labelled(read, "") if label else read)

    return memoised((table,), ("content of columns", columns, bool(label)), digest)


def _told_elsewhere(table: pa.Table, label: str | None) -> bool:
    """Tell whether another column than ``deployment_id`` holds the name of the deployment."""
    if label is None:
        return False
    texts = [
        name for name, type_ in zip(table.column_names, table.schema.types, strict=True) if pa.types.is_string(type_)
    ]
    others = (table[name] for name in texts if name != LABEL)
    return any(pc.any(pc.match_substring(column, label)).as_py() for column in others)


def asked_anew(path: Path) -> bool:
    """Tell whether the tests of a file ask every query anew."""
    return path.is_relative_to(HERE) and any(path.is_relative_to(HERE / name) for name in ANEW)
