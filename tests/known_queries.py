"""What queries of nodes gave is kept for the next tests, of other workers and runs too: asked once over equal rows.

Most of the time of commands over few rows is DuckDB's, which plans thirty queries for each of them. An answer is known
by its text, its macros, the rows that it reads and the version of DuckDB: whatever changes one of them asks anew. Tests
whose subject is that a query gives the same again, or leaves nothing behind, are without (``asked_anew``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kernelsight.dataflow.cache import Recent
from kernelsight.dataflow.engine import Database
from kernelsight.dataflow.graph import Node
from kernelsight.dataflow.kept import content_digest
from kernelsight.dataflow.session import Session

HERE = Path(__file__).resolve().parent
ANEW = ("dataflow", "invariants", "safety/test_growth.py", "sweeps/test_memory.py")
# tables beyond this, other than facts, take longer to compare than a query to plan
MOST_BYTES = 1 << 20
# answers that no run read for so long are removed
DAYS = 3
ROWS_AS_PLANNED = 131072


class KnownQueries:
    """Answers queries of nodes with what they gave before, unless ``anew``; ``folder`` keeps it for other processes."""

    def __init__(self) -> None:
        self.anew = False
        self.folder: Path | None = None
        self._answers: Recent[dict[str, pa.Table]] = Recent(4000)
        self._databases: dict[tuple[str, bool], duckdb.DuckDBPyConnection] = {}
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
        if self.anew or any(table.nbytes > MOST_BYTES for table in made):
            return self._run(session, node)
        question = _digest(session.graph.macros, node, map(content_digest, rows.values()))
        found = self._answers.get(question) or self._read(question, node)
        if found is None:
            found = self._planned_once(session, node)
            if all(table.nbytes <= MOST_BYTES for table in found.values()):
                self._write(question, found)
                self._answers.put(question, found)
        return found

    def _planned_once(self, session: Session, node: Node) -> dict[str, pa.Table]:
        """Run a query as ``to_arrow_table`` of a relation does, without planning it first for the names of columns."""
        for name in node.inputs:
            session._register(name)
        with contextlib.suppress(AttributeError, TypeError, duckdb.Error, RuntimeError):
            return {node.names[0]: session._connection._submit(node.text, None, "arrow", ROWS_AS_PLANNED).arrow_table()}
        return self._run(session, node)

    def _read(self, question: str, node: Node) -> dict[str, pa.Table] | None:
        if self.folder is None or not (path := self.folder / question).exists():
            return None
        os.utime(path)
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            table = stream.read_all()
        self._answers.put(question, {node.names[0]: table})
        return {node.names[0]: table}

    def _write(self, question: str, found: dict[str, pa.Table]) -> None:
        if self.folder is None:
            return
        [table] = found.values()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(table)
        part = self.folder / f"{question}.{os.getpid()}"
        part.write_bytes(sink.getvalue())
        part.replace(self.folder / question)

    def tidy(self) -> None:
        """Remove the answers that nobody read of late."""
        for path in self.folder.iterdir() if self.folder else ():
            if path.stat().st_mtime < time.time() - DAYS * 86400:
                path.unlink(missing_ok=True)


def _digest(macros: str, node: Node, contents: map) -> str:
    digest = hashlib.sha256(repr((duckdb.__version__, macros, node.text, node.inputs)).encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def asked_anew(path: Path) -> bool:
    """Tell whether the tests of a file ask every query anew."""
    return path.is_relative_to(HERE) and any(path.is_relative_to(HERE / name) for name in ANEW)
