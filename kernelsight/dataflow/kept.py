"""Tables kept on disk between processes, by the hash of all that they are made from.

What a table is made from: the program with its facts and queries, and the contents of the given tables that its node
depends on. Nothing has to be declared stale: another hash is another file. The folder is ours alone, or none
is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from kernelsight.dataflow.cache import remembered
from kernelsight.dataflow.durable import is_private

# names the folder; empty: nothing is kept
VARIABLE = "KERNELSIGHT_CACHE"
LARGEST_TABLE = 16 * 2**20
LARGEST_FOLDER = 512 * 2**20
PROGRAM_FILES = (".py", ".csv", ".jsonl", ".parquet", ".sql", ".json")
# what this process wrote since it looked at the folder's size
_written = {"bytes": 0}
_DIGEST_BYTES = hashlib.sha256().digest_size


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
        self.tables, self.by_content, self.program = frozenset(tables), frozenset(by_content), program
        self.passing = frozenset(passing)

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

    >>> program_digest(Path(__file__).parent) == program_digest(Path(__file__).parent.parent)
    False
    """
    libraries = (duckdb.__version__, pa.__version__, np.__version__, platform.machine(), platform.node())
    digest = hashlib.sha256(" ".join(libraries).encode())
    for folder in folders:
        for path in sorted(_files(str(folder))):
            content = Path(path).read_bytes()
            digest.update(f"\n{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name.endswith(PROGRAM_FILES):
            yield entry.path
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _files(entry.path)


@cache
def kept_folder(named: str | None) -> Path | None:
    """Return the folder of kept files, made where it is not there yet; None where it cannot be ours alone.

    ``named``: what the environment variable KERNELSIGHT_CACHE says, None where it is unset.
    """
    if named == "":
        return None
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        place = Path(named) if named else home / "kernelsight" / "kept"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where nobody has a home
        return None
    if not is_private(place):
        return None
    _prune(place)
    return place


def _prune(place: Path) -> None:
    """Remove the files that were not read for longest, until the folder is as small as it may be."""
    with contextlib.suppress(OSError):
        found = [(entry.stat(), entry.path) for entry in os.scandir(place)]
        size = sum(stat.st_size for stat, _ in found)
        for stat, path in sorted(found, key=lambda each: each[0].st_mtime):
            if size <= LARGEST_FOLDER:
                return
            os.unlink(path)
            size -= stat.st_size


def read_kept(key: str) -> bytes | None:
    """Return what was kept under a key, or None; a damaged file is as good as none."""
    place = kept_folder(os.environ.get(VARIABLE))
    if place is None:
        return None
    with contextlib.suppress(OSError):
        content = (place / key).read_bytes()
        if content[:_DIGEST_BYTES] == hashlib.sha256(content[_DIGEST_BYTES:]).digest():
            os.utime(place / key)
            return content[_DIGEST_BYTES:]
    return None


def keep(key: str, content: bytes) -> None:
    """Keep bytes under a key; a disk that refuses is no fault: they are made again."""
    place = kept_folder(os.environ.get(VARIABLE))
    if place is None:
        return
    draft = place / f".{key}.{os.getpid()}"
    with contextlib.suppress(OSError):
        draft.write_bytes(hashlib.sha256(content).digest() + content)
        os.replace(draft, place / key)
    _written["bytes"] += len(content)
    if _written["bytes"] > LARGEST_FOLDER // 8:
        _written["bytes"] = 0
        _prune(place)


def read_table(key: str) -> pa.Table | None:
    """Return the table kept under a key, or None."""
    content = read_kept(key)
    return None if content is None else pa.ipc.open_stream(content).read_all()


def keep_table(key: str, table: pa.Table) -> None:
    """Keep a table, unless it is a large one."""
    if table.nbytes <= LARGEST_TABLE:
        keep(key, bytes(_serialised(table)))
