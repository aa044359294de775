"""In-memory DuckDB databases: one per session, with the macros that queries call, and a private one for checks."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernelsight.errors import KernelSightError
from kernelsight.files.own import own_text

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# no replacement scans: a misspelt table name would silently read a Python variable
# no extensions: DuckDB would fetch one as soon as a query names an address or a function of it
SETTINGS = {
    "python_enable_replacements": False,
    "preserve_insertion_order": True,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_persistent_secrets": False,
}
INTERRUPTED_AGAIN_S = 0.1
# subfolder of sql/ whose files are CREATE MACRO statements, not nodes
MACROS = "macros"


def open_database(macros: str = "") -> duckdb.DuckDBPyConnection:
    """Open an in-memory database and run ``macros``, CREATE MACRO statements whose macros every cursor then has."""
    import tempfile

    import duckdb

    # what does not fit into memory goes to a folder of this database alone, not into the one where it was asked
    spilled = f"{tempfile.gettempdir()}/kernelsight-{os.urandom(8).hex()}"
    database = duckdb.connect(":memory:", config=SETTINGS | {"temp_directory": spilled})
    if macros:
        database.execute(macros)
    return database


def lock_database(database: duckdb.DuckDBPyConnection, *, files: bool) -> None:
    """Lock the settings of a database; without ``files``, its queries can read no file but the attached ones.

    >>> import duckdb
    >>> database = open_database()
    >>> lock_database(database, files=False)
    >>> try:
    ...     database.sql("select * from 'mine.csv'")
    ... except duckdb.PermissionException as error:
    ...     print(first_line(error))
    Permission Error: Cannot access file "mine.csv" - file system operations are disabled by configuration
    """
    if not files:
        database.execute("set enable_external_access = false")
    database.execute("set lock_configuration = true")


def rows_of(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """Run a query and return its rows; it is bound once, where a DuckDB relation binds it twice: made, and run.

    Binding is a fifth of the time of a query over few tables; the copy of the rows that DuckDB warns of takes far less.
    """
    warnings.filterwarnings("ignore", "Arrow output on a DB-API result makes an extra copy")
    return interruptible(connection, lambda: connection.execute(query).to_arrow_table())


def interruptible(connection: duckdb.DuckDBPyConnection, fetch: Callable[[], pa.Table]) -> pa.Table:
    """Return the rows that ``fetch`` reads from a connection; a signal such as Ctrl-C interrupts the query.

    A worker thread runs the query: while the main thread runs one, DuckDB may not look for signals until it ends.
    """
    if threading.current_thread() is not threading.main_thread():
        return fetch()
    rows = _query_worker().submit(fetch)
    try:
        return rows.result()
    finally:
        while not rows.done():  # a signal came: Ctrl-C, or one that ends the command
            connection.interrupt()  # lost where the query has not begun yet: asked again
            wait([rows], INTERRUPTED_AGAIN_S)


@cache
def _query_worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "query")


if hasattr(os, "register_at_fork"):  # a fork has no threads but its own; Windows does not fork
    os.register_at_fork(after_in_child=_query_worker.cache_clear)


def read_macros(sql_folder: Path) -> str:
    """Return the CREATE MACRO statements of a folder's ``macros/*.sql``, which its queries may call."""
    return "\n".join(own_text(path) for path in sorted((sql_folder / MACROS).glob("*.sql")))


class Database:
    """An in-memory database, opened by the first query of the session and the forks that share it.

    ``macros``: returns the statements for ``open_database``; ``files``: as ``lock_database`` takes it.
    """

    def __init__(self, macros: Callable[[], str], *, files: bool) -> None:
        self._macros, self._files, self._opening = macros, files, threading.Lock()
        self._opened: duckdb.DuckDBPyConnection | None = None

    def cursor(self, prepare: Callable[[duckdb.DuckDBPyConnection], None] | None = None) -> duckdb.DuckDBPyConnection:
        """Return a new cursor; ``prepare`` is called with the first one, before the database is locked."""
        with self._opening:
            if self._opened is not None:
                return self._opened.cursor()
            opened = open_database(self._macros())
            first = opened.cursor()
            if prepare is not None:
                prepare(first)
            lock_database(opened, files=self._files)
            self._opened = opened
            return first


@cache
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(":memory:", config=SETTINGS)


def private_cursor() -> duckdb.DuckDBPyConnection:
    """Return a cursor of the internal database; tables registered on it are visible to no other cursor."""
    return _database().cursor()


@cache
def _database_of_values() -> duckdb.DuckDBPyConnection:
    return open_database()


def cursor_for_values() -> duckdb.DuckDBPyConnection:
    """Return a cursor of a database for untrusted values, which is reopened once such a value has made it unusable.

    To open a database takes 20 ms, a cursor no time; tables registered on a cursor are visible to no other one.
    """
    import duckdb

    try:
        cursor = _database_of_values().cursor()
        cursor.execute("select 1").fetchall()
    except duckdb.Error:
        _database_of_values.cache_clear()
        cursor = _database_of_values().cursor()
    return cursor


def quote(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def first_line(error: duckdb.Error) -> str:
    """Return the first line of DuckDB's message, without the final period."""
    return str(error).strip().splitlines()[0].rstrip(".!")


def complaint(error: duckdb.Error) -> str:
    """Return DuckDB's error message and the names that it suggests, on one line."""
    suggested = [line.strip() for line in str(error).splitlines()[1:] if line.startswith(("Candidate", "Did you mean"))]
    return ", ".join([first_line(error), *suggested]).rstrip(".!")


def stop_if_interrupted(error: BaseException | None) -> None:
    """Raise KeyboardInterrupt where a library has turned a signal within a query or a table into another error."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or _says_interrupted(error):
            raise KeyboardInterrupt from None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _says_interrupted(error: BaseException) -> bool:
    """Return whether a library's error stands for a signal; our own sentences may quote such words from an input."""
    text = str(error).rstrip()
    ours = isinstance(error, KernelSightError)
    named = text.endswith("KeyboardInterrupt") or "KeyboardInterrupt:" in text or text == "Query interrupted"
    return not ours and (named or type(error).__name__ == "InterruptException")
