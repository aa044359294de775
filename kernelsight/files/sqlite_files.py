"""Asks an untrusted SQLite file: opened read-only, with limits on the length of a value and on the work of a query."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from kernelsight.files.bounded_files import Refuse, check_file

# instructions of SQLite's machine for a query: these, and as many for each byte of the file (a sorted row needs a few)
FREE_INSTRUCTIONS, PER_BYTE, ASKED_EVERY = 10_000_000, 100, 1_000_000


def query_sqlite(path: Path, query: str, refuse: Refuse) -> list[tuple[Any, ...]]:
    """Return the rows of a query over a file; ``refuse`` makes the error that is raised: no such table, or too much.

    A signal, such as Ctrl-C, ends the query.
    """
    most = FREE_INSTRUCTIONS + PER_BYTE * check_file(path, refuse)
    done = 0

    def count() -> bool:
        nonlocal done
        done += ASKED_EVERY
        return done > most

    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 24)
        connection.execute("pragma trusted_schema = off")
        connection.set_progress_handler(count, ASKED_EVERY)
        return connection.execute(query).fetchall()
    except sqlite3.Error as problem:
        if done > most:
            raise refuse("needs far more work than its size explains, as with a view that does not end") from None
        raise refuse(f"cannot be asked ({problem})") from None
    finally:
        connection.close()
