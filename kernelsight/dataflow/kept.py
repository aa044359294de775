"""Tables kept on disk between processes, by the hash of all that they are made from.

What a table is made from: the program with its facts and queries, and the contents of the given tables that its node
depends on. Nothing has to be declared stale: another hash is another file. The folder is ours alone to write, or none
is used.
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

from kernelsight.dataflow.cache import Recent, remembered
from kernelsight.dataflow.private_folder import Damaged, PrivateFolder, user_cache

Read = TypeVar("Read")

# names the folder that ours is in; empty: nothing is kept
VARIABLE = "KERNELSIGHT_CACHE"
LARGEST_TABLE = 16 * 2**20
LARGEST_FOLDER = 512 * 2**20
# bytes of the tables that were read last
MOST_READ = 64 * 2**20
PROGRAM_FILES = (".py", ".csv", ".jsonl", ".parquet", ".sql", ".json")


_read: Recent[tuple[bytes, pa.Table]] = Recent(MOST_READ, weigh=lambda held: len(held[0]))


class Kept:
    """Which tables of a graph are kept, and ``by_content``: those whose own rows stand for what they are made from.

    A node that reads files is one of the latter: its inputs do not say what the files hold. ``passing``: where such a
    table is given, it differs from one call to the next, and what is made from it is not kept.
    """

    def __init__(
        self,
        tables: Collection[str],
        by_content: Collection[str],
        program: Callable[[], str],
        passing: Collection[str] = (),
    ) -> None:
        self.tables: frozenset[str] = frozenset(tables)
        self.by_content: frozenset[str] = frozenset(by_content)
        self.passing: frozenset[str] = frozenset(passing)
        self.program: Callable[[], str] = program

    def key(self, name: str, roots: dict[str, pa.Table | None]) -> str:
        """Return the hash of a table's roots: given tables by their rows; None for facts, which are the program's."""
        digest = hashlib.sha256(f"{self.program()} {name}".encode())
        for root, rows in sorted(roots.items()):
            digest.update(f"\n{root} ".encode() + (content_digest(rows) if rows is not None else b""))
        return digest.hexdigest()


def content_digest(table: pa.Table) -> bytes:
    """Return the SHA-256 of a table's schema and rows.

    >>> content_digest(pa.table({"x": [1, 2]})) == content_digest(pa.table({"x": [1]}))
    False
    """
    return remembered((table,), "content digest", lambda: hashlib.sha256(_serialised(table)).digest())


def _serialised(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def program_digest(*folders: Path) -> str:
    """Return the SHA-256 of the program's files in folders, of the libraries that compute, and of the machine's name.

    A file stands for its content by its size and by when it and its entry changed, which no writer can set: to read
    all of them takes ten times as long.

    >>> program_digest(Path(__file__).parent) == program_digest(Path(__file__).parent.parent)
    False
    """
    libraries = (*map(library_stamp, ("duckdb", "pyarrow", "numpy")), platform.machine(), platform.node())
    digest = hashlib.sha256(" ".join(libraries).encode())
    for folder in folders:
        for entry in sorted(_files(str(folder)), key=lambda entry: entry.path):
            digest.update(f"\n{entry.path} {_stamp(entry.stat())}".encode())
    return digest.hexdigest()


@cache
def library_stamp(name: str) -> str:
    """Return what stands for an installed version of a library, which is not imported: its first file, as files are."""
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


def table_folder() -> Path | None:
    """Return the folder of kept files; None where the environment variable KERNELSIGHT_CACHE is set to nothing.

    OSError: nobody has a home.
    """
    variable = os.environ.get(VARIABLE)
    if variable == "":
        return None
    return (Path(variable) if variable else user_cache()) / "kernelsight" / "kept"


def opened(path: Path) -> PrivateFolder:
    """Return the folder of kept files, opened. OSError: it cannot be ours alone."""
    return PrivateFolder(path, LARGEST_FOLDER)


@cache
def _folder(named: str | None) -> PrivateFolder | None:
    """Return the folder of kept files, opened once for each value of the environment variable; None: there is none."""
    with contextlib.suppress(OSError):
        if (path := table_folder()) is not None:
            return opened(path)
    return None


def is_kept() -> bool:
    """Tell whether there is a folder for kept files."""
    return _folder(os.environ.get(VARIABLE)) is not None


def read_kept(key: str, decode: Callable[[bytes], Read]) -> Read | None:
    """Return what was kept under a key, decoded, or None; a damaged file is as good as none."""
    folder = _folder(os.environ.get(VARIABLE))
    if folder is None:
        return None
    with contextlib.suppress(Damaged):
        return folder.read(key, decode)
    return None


def keep(key: str, content: bytes) -> None:
    """Keep bytes under a key; a disk that refuses is no fault: they are made again."""
    folder = _folder(os.environ.get(VARIABLE))
    if folder is not None:
        folder.write(key, content)


def read_table(key: str, schema: pa.Schema) -> pa.Table | None:
    """Return the table of a schema that is kept under a key, or None.

    The file is read each time; but the same bytes are the same table, of which values may be ``remembered``.
    """

    def decode(content: bytes) -> pa.Table:
        held = _read.get(key)
        if held is not None and held[0] == content and held[1].schema.equals(schema):
            return held[1]
        table = pa.ipc.open_stream(content).read_all()
        if not table.schema.equals(schema):
            raise ValueError("the columns of another table")
        _read.put(key, (content, table))  # the table's values lie in these bytes
        return table

    return read_kept(key, decode)


def of_program(program: str, name: str, make: Callable[[], Read]) -> Read:
    """Return what follows from the program's files alone, kept under their digest: made once for each version of them.

    A table is kept as Arrow writes it, any other value as Python does.

    >>> of_program("0" * 64, "a list", lambda: [1, 2])
    [1, 2]
    """
    key = hashlib.sha256(f"{program} {name}".encode()).hexdigest()
    value = read_kept(key, _decoded)
    if value is None:
        value = make()
        keep(key, bytes(_serialised(value)) + b"A" if isinstance(value, pa.Table) else pickle.dumps(value) + b"P")
    return value


def _decoded(content: bytes) -> Any:
    arrow = memoryview(content)[:-1]  # what is Arrow's begins where memory is aligned
    return pa.ipc.open_stream(arrow).read_all() if content.endswith(b"A") else pickle.loads(arrow)


def keep_table(key: str, table: pa.Table) -> None:
    """Keep a table, unless it is a large one."""
    if table.nbytes <= LARGEST_TABLE:
        keep(key, bytes(_serialised(table)))
