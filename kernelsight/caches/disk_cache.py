"""The on-disk cache of computed tables, shared by processes and keyed by a hash of everything they are computed from.

The key covers the program with its facts and queries, and the contents of the given tables that the node depends on.
Nothing is ever invalidated: a changed input is another key, hence another file. The folder must be writable by its user
alone; otherwise no cache is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pickle
import platform
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from kernelsight.caches.memory_cache import LruCache, memoised
from kernelsight.caches.private_folder import Damaged, PrivateFolder, user_cache

Read = TypeVar("Read")

# environment variable with the parent folder of the cache; empty: no cache
VARIABLE = "KERNELSIGHT_CACHE"
LARGEST_TABLE = 16 * 2**20
LARGEST_FOLDER = 512 * 2**20
# bytes of recently read tables that stay in memory
MOST_READ = 64 * 2**20
PROGRAM_FILES = (".py", ".csv", ".jsonl", ".parquet", ".sql", ".json")

_recent_tables: LruCache[tuple[bytes, pa.Table]] = LruCache(MOST_READ, weigh=lambda held: len(held[0]))


class CachePolicy:
    """The cache policy of a graph: ``tables`` are cached; ``by_content`` tables enter keys by their own rows.

    A node that reads files is of ``by_content``: its input tables do not say what the files hold. ``uncached``: tables
    that, where they are given, differ from call to call: nothing computed from them is cached.
    """

    def __init__(
        self,
        tables: Collection[str],
        by_content: Collection[str],
        program: Callable[[], str],
        uncached: Collection[str] = (),
    ) -> None:
        self.tables: frozenset[str] = frozenset(tables)
        self.by_content: frozenset[str] = frozenset(by_content)
        self.uncached: frozenset[str] = frozenset(uncached)
        self.program: Callable[[], str] = program

    def key(self, name: str, roots: dict[str, pa.Table | None]) -> str:
        """Return the cache key of a table: a hash of the program, its name, and its root tables' rows.

        ``roots``: as ``Graph.roots`` lists them; None for a fact, which the hash of the program covers.
        """
        digest = hashlib.sha256(f"{self.program()} {name}".encode())
        for root, rows in sorted(roots.items()):
            digest.update(f"\n{root} ".encode() + (content_digest(rows) if rows is not None else b""))
        return digest.hexdigest()


def content_digest(table: pa.Table) -> bytes:
    """Return the SHA-256 of a table's schema and rows."""
    return memoised((table,), "content digest", lambda: hashlib.sha256(_serialised(table)).digest())


def _serialised(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def program_digest(*folders: Path) -> str:
    """Return the SHA-256 of the program's files in folders, the versions of numeric libraries, and the machine's name.

    A file enters by its size, modification and status-change times, of which no writer can set the last: to read all
    files would take ten times as long.
    """
    libraries = (*map(library_stamp, ("duckdb", "pyarrow", "numpy")), platform.machine(), platform.node())
    digest = hashlib.sha256(" ".join(libraries).encode())
    for folder in folders:
        for entry in sorted(_files(str(folder)), key=lambda entry: entry.path):
            digest.update(f"\n{entry.path} {_stamp(entry.stat())}".encode())
    return digest.hexdigest()


@cache
def library_stamp(name: str) -> str:
    """Return a stamp of a library's installed version, without importing it: path, size and times of its first file."""
    spec = importlib.util.find_spec(name)
    return f"{spec.origin} {_stamp(os.stat(spec.origin))}" if spec and spec.origin else name


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    for entry in os.scandir(folder):
        if entry.name.endswith(PROGRAM_FILES):
            yield entry
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _files(entry.path)


def cache_folder() -> Path | None:
    """Return the path of the cache folder; None where the environment variable KERNELSIGHT_CACHE is set to nothing.

    OSError: the user has no home folder.
    """
    variable = os.environ.get(VARIABLE)
    if variable == "":
        return None
    return (Path(variable) if variable else user_cache()) / "kernelsight" / "kept"


def open_cache_folder(path: Path) -> PrivateFolder:
    """Open the cache folder. OSError: others than its user could write it."""
    return PrivateFolder(path, LARGEST_FOLDER)


@cache
def _folder(variable: str | None) -> PrivateFolder | None:
    """Return the cache folder, opened once for each value of the environment variable; None where there is none."""
    with contextlib.suppress(OSError):
        if (path := cache_folder()) is not None:
            return open_cache_folder(path)
    return None


def has_cache_folder() -> bool:
    """Return whether there is a cache folder."""
    return _folder(os.environ.get(VARIABLE)) is not None


def read_cached(key: str, decode: Callable[[bytes], Read]) -> Read | None:
    """Return the decoded value of a key from the cache; None where it is absent or its file is damaged."""
    folder = _folder(os.environ.get(VARIABLE))
    if folder is None:
        return None
    with contextlib.suppress(Damaged):
        return folder.read(key, decode)
    return None


def write_cached(key: str, content: bytes) -> None:
    """Write bytes under a key to the cache; a write that fails is ignored, since the value can be computed again."""
    folder = _folder(os.environ.get(VARIABLE))
    if folder is not None:
        folder.write(key, content)


def read_cached_table(key: str, schema: pa.Schema | None = None) -> pa.Table | None:
    """Return the cached table of a key, or None; a table of another schema than ``schema`` counts as damaged.

    The file is read each time, but equal bytes give the same table object, for which ``memoised`` values hold.
    """

    def decode(content: bytes) -> pa.Table:
        recent = _recent_tables.get(key)
        if recent is not None and recent[0] == content and (schema is None or recent[1].schema.equals(schema)):
            return recent[1]
        table = pa.ipc.open_stream(content).read_all()
        if schema is not None and not table.schema.equals(schema):
            raise ValueError("the columns of another table")
        _recent_tables.put(key, (content, table))  # the table's values lie in these bytes
        return table

    return read_cached(key, decode)


def cached_for_program(program: str, name: str, make: Callable[[], Read]) -> Read:
    """Return ``make()``, a value that depends on the program's files alone, cached by their digest ``program``.

    A table is stored as an Arrow IPC stream, any other value as a pickle.
    """
    key = hashlib.sha256(f"{program} {name}".encode()).hexdigest()
    value = read_cached(key, _decoded)
    if value is None:
        value = make()
        write_cached(
            key, bytes(_serialised(value)) + b"A" if isinstance(value, pa.Table) else pickle.dumps(value) + b"P"
        )
    return value


def _decoded(content: bytes) -> Any:
    arrow = memoryview(content)[:-1]  # the format mark is at the end, so that the Arrow stream is aligned in memory
    return pa.ipc.open_stream(arrow).read_all() if content.endswith(b"A") else pickle.loads(arrow)


def write_cached_table(key: str, table: pa.Table) -> None:
    """Write a table to the cache, unless it has more than ``LARGEST_TABLE`` bytes."""
    if table.nbytes <= LARGEST_TABLE:
        write_cached(key, bytes(_serialised(table)))
