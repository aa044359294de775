"""DuckDB databases in memory: those of sessions, with the macros that queries call, and a private one for checks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import duckdb

Answer = TypeVar("Answer")

# no replacement scans: a misspelt table name would silently read a Python variable
# no extensions: DuckDB would fetch one as soon as a query names an address or a function of it
SETTINGS = {
    "python_enable_replacements": False,
    "preserve_insertion_order": True,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_persistent_secrets": False,
}
# folder of a folder of queries whose files are no nodes, but CREATE MACRO statements
MACROS = "macros"


def open_database(macros: str = "") -> duckdb.DuckDBPyConnection:
    """Return a new database in memory where every cursor knows the ``macros``, as CREATE MACRO statements.

    >>> open_database("create macro twice(x) as 2 * x;").cursor().sql("select twice(21)").fetchall()
    [(42,)]
    """
    import duckdb

    database = duckdb.connect(":memory:", config=SETTINGS)
    if macros:
        database.execute(macros)
    return database


def lock_database(database: duckdb.DuckDBPyConnection, *, files: bool) -> None:
    """Fix the settings of a database for good; without ``files`` its queries read no file but what is attached.

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


def read_macros(sql_folder: Path) -> str:
    """Return the macros that queries of a folder may call: the statements of its ``macros/*.sql``.

    >>> from kernelsight.dataflow.locations import folder
    >>> "create macro gemm_flops(" in read_macros(folder("sql"))
    True
    """
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((sql_folder / MACROS).glob("*.sql")))


class Database:
    """A database in memory, opened by the first query of the session and the forks that share it.

    ``macros`` and ``files``: as ``open_database`` and ``lock_database`` take them.

    >>> Database(lambda: "create macro twice(x) as 2 * x;", files=True).cursor().sql("select twice(21)").fetchall()
    [(42,)]
    """

    def __init__(self, macros: Callable[[], str], *, files: bool) -> None:
        self._macros, self._files, self._opening = macros, files, threading.Lock()
        self._opened: duckdb.DuckDBPyConnection | None = None

    def cursor(self, prepare: Callable[[duckdb.DuckDBPyConnection], None] | None = None) -> duckdb.DuckDBPyConnection:
        """Return a new cursor; ``prepare`` does to the first what a locked database could not do any more."""
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
    """Return a cursor of the internal database; tables registered on it are visible to no other cursor.

    >>> private_cursor().execute("select 1").fetchall()
    [(1,)]
    """
    return _database().cursor()


@cache
def _database_of_values() -> duckdb.DuckDBPyConnection:
    return open_database()


def cursor_for_values() -> duckdb.DuckDBPyConnection:
    """Return a cursor of a database for values of others, which is opened anew once one has made it unusable.

    To open one takes 20 ms, a cursor none; tables and views of a cursor are its own, as those of ``private_cursor``.

    >>> cursor_for_values().execute("select 1").fetchall()
    [(1,)]
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
    """Return a name as a quoted SQL identifier.

    >>> quote("table")
    '"table"'
    """
    return '"' + name.replace('"', '""') + '"'


def first_line(error: duckdb.Error) -> str:
    """Return the first line of DuckDB's message, without the final period.

    >>> import duckdb
    >>> first_line(duckdb.ParserException("Parser Error: syntax error\\n\\nLINE 1: selct"))
    'Parser Error: syntax error'
    """
    return str(error).strip().splitlines()[0].rstrip(".!")


def complaint(error: duckdb.Error) -> str:
    """Return DuckDB's message and the names that it suggests, on one line.

    >>> import duckdb
    >>> complaint(duckdb.BinderException('Binder Error: no column "pric"\\n\\nCandidate bindings: "price"'))
    'Binder Error: no column "pric", Candidate bindings: "price"'
    """
    offers = [line.strip() for line in str(error).splitlines()[1:] if line.startswith(("Candidate", "Did you mean"))]
    return ", ".join([first_line(error), *offers]).rstrip(".!")


def stop_if_interrupted(error: Exception) -> None:
    """Raise KeyboardInterrupt where DuckDB has made another error of a Ctrl-C within a query or an Arrow table."""
    text = str(error)
    if "KeyboardInterrupt" in text or text == "Query interrupted" or type(error).__name__ == "InterruptException":
        raise KeyboardInterrupt from None


def stoppable(fetch: Callable[[], Answer], connection: duckdb.DuckDBPyConnection) -> Answer:
    """Return what ``fetch`` reads through a connection; an exception of a signal stops DuckDB's query at once.

    DuckDB looks for no signal while it computes an Arrow table, so in the main thread another one computes it.
    """
    if threading.current_thread() is not threading.main_thread():
        return fetch()
    with ThreadPoolExecutor(1, "query") as pool:
        answer = pool.submit(fetch)
        try:
            return answer.result()
        except BaseException:
            connection.interrupt()  # of a query that has ended: no effect
            raise
