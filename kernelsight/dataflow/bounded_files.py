"""Files that other people wrote, read within limits: regular files alone, up to a size, unpacked step by step.

What is wrong with a file is said as a predicate, such as "is a pipe": each reader makes its sentence of it.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from kernelsight.errors import KernelSightError

Refuse = Callable[[str], KernelSightError]
"""Makes the error of a reader from what is wrong with its file."""

# the most bytes of a file of settings; of rows that are read whole; of a trace or a document of a log; of any log
SETTINGS_BYTES, ROWS_BYTES, WHOLE_BYTES, LOG_BYTES = 1 << 24, 1 << 30, 1 << 33, 1 << 36
# of what is piped in, which has no size before it ends
PIPED_BYTES = 1 << 30
# a packed file may unpack to the first, or to so many times its size: logs and traces stay below 40 times
FREE_UNPACKED, MOST_RATIO = 1 << 24, 100
PIECE_BYTES = 1 << 16
TOO_MUCH_MEMORY = "does not fit into the memory of this machine"
_PIPED = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")
_KINDS = {
    stat.S_IFDIR: "is a folder",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def check_file(path: str | os.PathLike[str], refuse: Refuse, most: int = LOG_BYTES) -> int:
    """Return the size of a regular file of at most ``most`` bytes; nothing is opened, so that nothing waits.

    >>> from kernelsight.errors import InvalidInput
    >>> check_file("/", lambda found: InvalidInput(f"the grid / {found}."))
    Traceback (most recent call last):
    kernelsight.errors.InvalidInput: the grid / is a folder.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise refuse("does not exist") from None
    except (OSError, ValueError) as problem:
        raise refuse(_unreadable(problem)) from None
    if not stat.S_ISREG(status.st_mode):
        raise refuse(_KINDS.get(stat.S_IFMT(status.st_mode), "is not a file"))
    if status.st_size > most:
        raise refuse(_too_large(most))
    return status.st_size


def read_bytes(
    path: str | os.PathLike[str], refuse: Refuse, most: int = SETTINGS_BYTES, *, piped: bool = False
) -> bytes:
    """Return the bytes of a regular file; with ``piped``, also what is piped into this program as /dev/stdin."""
    if piped and _PIPED.fullmatch(os.fspath(path)):
        return _piped_bytes(path, refuse, most)
    size = check_file(path, refuse, most)
    try:
        # what has become a pipe since does not wait for a writer
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb", buffering=0) as file:
            return _all_of(file, size, refuse, most)
    except (OSError, MemoryError) as problem:
        raise refuse(_unreadable(problem)) from None


def _piped_bytes(path: str | os.PathLike[str], refuse: Refuse, most: int) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            kind = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or file.isatty()):
                raise refuse(_KINDS.get(stat.S_IFMT(kind), "is not a file"))
            return _all_of(file, 0, refuse, min(most, PIPED_BYTES))
    except (OSError, MemoryError) as problem:
        raise refuse(_unreadable(problem)) from None


def _all_of(file: IO[bytes], size: int, refuse: Refuse, most: int) -> bytes:
    """Return what a file has until its end, which may have grown; ``size``: what it had."""
    pieces: list[bytes] = []
    total, step = 0, max(size, PIECE_BYTES)
    while piece := file.read(min(step, most + 1 - total)):
        pieces.append(piece)
        total, step = total + len(piece), 1 << 20
        if total > most:
            raise refuse(_too_large(most))
    return b"".join(pieces)


def read_text(path: str | os.PathLike[str], refuse: Refuse, most: int = SETTINGS_BYTES, *, piped: bool = False) -> str:
    """Return the UTF-8 text of a regular file, without byte order mark; see :func:`read_bytes`."""
    return decoded(read_bytes(path, refuse, most, piped=piped), refuse)


def decoded(data: bytes, refuse: Refuse) -> str:
    """Return UTF-8 text without byte order mark; what is refused names the line.

    >>> from kernelsight.errors import InvalidInput
    >>> decoded(b"a,b" + bytes([10, 255]), lambda found: InvalidInput(f"rows.csv {found}."))
    Traceback (most recent call last):
    kernelsight.errors.InvalidInput: rows.csv is not UTF-8 (line 2).
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise refuse(f"is not UTF-8 (line {data.count(10, 0, problem.start) + 1})") from None


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Yield bytes in pieces, for :func:`unpacked`."""
    return (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))


def unpacked(pieces: Iterable[bytes], packed: int, refuse: Refuse) -> Iterator[bytes]:
    """Yield the content of gzip members of ``packed`` bytes, never much more than what is refused as too much.

    EOFError: the last member ends too early. zlib.error: it is damaged, or something else follows.

    >>> import gzip
    >>> b"".join(unpacked([gzip.compress(b"a" * 3), gzip.compress(b"b")], 46, ValueError))
    b'aaab'
    """
    most = _most_unpacked(packed)
    total, member = 0, zlib.decompressobj(wbits=31)
    for piece in pieces:
        while piece:
            if member.eof:
                piece = piece.lstrip(b"\0")  # members may be padded, as by tapes
                if not piece:
                    break
                member = zlib.decompressobj(wbits=31)
            made = member.decompress(piece, most + 1 - total)
            total += len(made)
            if total > most:
                raise refuse(_too_dense(packed))
            yield made
            piece = member.unused_data
    if not member.eof:
        raise EOFError("it ends too early")


def within_ratio(pieces: Iterable[bytes], packed: int, refuse: Refuse) -> Iterator[bytes]:
    """Yield what ``packed`` bytes of another compression unpack to, up to what is refused as too much."""
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > _most_unpacked(packed):
            raise refuse(_too_dense(packed))
        yield piece


def unpacked_file(path: Path, refuse: Refuse) -> Iterator[bytes]:
    """Yield the content of a gzip file, as :func:`unpacked` does; OSError: it cannot be read."""
    packed = check_file(path, refuse)
    with path.open("rb") as file:
        yield from unpacked(iter(functools.partial(file.read, PIECE_BYTES), b""), packed, refuse)


def _most_unpacked(packed: int) -> int:
    return max(FREE_UNPACKED, MOST_RATIO * packed)


def _too_dense(packed: int) -> str:
    limit = f"{MOST_RATIO} times its size" if MOST_RATIO * packed > FREE_UNPACKED else f"{FREE_UNPACKED >> 20} MiB"
    return f"unpacks to more than {limit}, unlike logs and traces"


def _too_large(most: int) -> str:
    return f"has more than {most >> 20:,} MiB"


def _unreadable(problem: Exception) -> str:
    if isinstance(problem, MemoryError):
        return TOO_MUCH_MEMORY
    return f"cannot be read ({getattr(problem, 'strerror', None) or problem})"
