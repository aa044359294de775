"""Reads untrusted files within limits: regular files only, up to a size in bytes, gzip unpacked piece by piece.

A fault of a file is a predicate, such as "is a pipe", which each reader completes to a sentence.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from kernelsight.files.budget import LOG, SETTINGS, WHOLE, Budget
from kernelsight.number_format import number

Refuse = Callable[[str], Exception]
"""Makes a reader's error from a fault of its file, stated as a predicate."""

# most bytes of a pipe, whose size is unknown until it ends
PIPED_BYTES = 1 << 30
# a compressed file may unpack to FREE_UNPACKED bytes, or MOST_RATIO times its size: logs and traces stay below 40 times
FREE_UNPACKED, MOST_RATIO = 1 << 24, 100
# a packed table to these, or MOST_RATIO times its size
FREE_TABLE = 1 << 28
PIECE_BYTES = 1 << 16
TOO_MUCH_MEMORY = "does not fit into the memory of this machine"
# folders below which untrusted files are read; empty: anywhere
_ROOTS: list[Path] = []
_PIPED = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")
_KINDS = {
    stat.S_IFDIR: "is a folder",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def confine(root: Path) -> None:
    """Let this process read untrusted files below ``root`` alone, and those of the package, from now on."""
    _ROOTS[:] = [root.resolve(), Path(__file__).resolve().parents[1]]


def check_place(path: str | os.PathLike[str], refuse: Refuse) -> None:
    """Raise the error of ``refuse`` for a path that this process may not read, see :func:`confine`; follows links."""
    if _ROOTS:
        try:
            place = Path(path).expanduser().resolve()
        except (OSError, ValueError, RuntimeError):
            raise refuse(f"lies outside of {_ROOTS[0]}, below which files are read") from None
        if not any(place.is_relative_to(root) for root in _ROOTS):
            raise refuse(f"lies outside of {_ROOTS[0]}, below which files are read")


def check_file(path: str | os.PathLike[str], refuse: Refuse, budget: Budget = LOG) -> int:
    """Return the size in bytes of a regular file within a budget, without opening it: a pipe would block.

    ``refuse`` makes the error that is raised for any other file.
    """
    check_place(path, refuse)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise refuse("does not exist") from None
    except (OSError, ValueError) as problem:
        raise refuse(_unreadable(problem)) from None
    if not stat.S_ISREG(status.st_mode):
        raise refuse(_KINDS.get(stat.S_IFMT(status.st_mode), "is not a file"))
    if status.st_size > budget.bytes:
        raise refuse(_too_large(budget.bytes))
    return status.st_size


def read_bytes(
    path: str | os.PathLike[str], refuse: Refuse, budget: Budget = SETTINGS, *, piped: bool = False
) -> bytes:
    """Return the bytes of a regular file within a budget; ``refuse`` makes the error that is raised.

    With ``piped``, a path such as /dev/stdin is read too, to its end.
    """
    if piped and _PIPED.fullmatch(os.fspath(path)):
        return _piped_bytes(path, refuse, budget.bytes)
    with open_file(path, refuse, budget) as file:
        try:
            return _all_of(file, os.fstat(file.fileno()).st_size, refuse, budget.bytes)
        except (OSError, MemoryError) as problem:
            raise refuse(_unreadable(problem)) from None


def open_file(path: str | os.PathLike[str], refuse: Refuse, budget: Budget = LOG) -> BinaryIO:
    """Open a regular file within a budget to read it; ``refuse`` makes the error that is raised."""
    check_file(path, refuse, budget)
    try:
        # non-blocking: the path may have become a pipe since the check
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as problem:
        raise refuse(_unreadable(problem)) from None
    file = os.fdopen(handle, "rb")
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            if hasattr(os, "pread"):
                os.pread(handle, 1, 0)  # files of /proc that are streams cannot, or have nothing yet
            return file
    except OSError as problem:
        file.close()
        raise refuse(_unreadable(problem)) from None
    file.close()
    raise refuse("is no longer a file")


def _piped_bytes(path: str | os.PathLike[str], refuse: Refuse, most: int) -> bytes:
    check_place(path, refuse)
    try:
        with open(path, "rb", buffering=0) as file:
            kind = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or file.isatty()):
                raise refuse(_KINDS.get(stat.S_IFMT(kind), "is not a file"))
            return _all_of(file, 0, refuse, min(most, PIPED_BYTES))
    except (OSError, MemoryError) as problem:
        raise refuse(_unreadable(problem)) from None


def _all_of(file: BinaryIO, size: int, refuse: Refuse, most: int) -> bytes:
    """Return the bytes of an open file to its end; ``size``: its size when it was checked, since when it may grow."""
    pieces: list[bytes] = []
    total, step = 0, max(size, PIECE_BYTES)
    while piece := file.read(min(step, most + 1 - total)):
        pieces.append(piece)
        total, step = total + len(piece), 1 << 20
        if total > most:
            raise refuse(_too_large(most))
    return b"".join(pieces)


def read_text(path: str | os.PathLike[str], refuse: Refuse, budget: Budget = SETTINGS, *, piped: bool = False) -> str:
    """Return the UTF-8 text of a regular file, without byte order mark; see :func:`read_bytes`."""
    return decoded(read_bytes(path, refuse, budget, piped=piped), refuse)


def decoded(data: bytes, refuse: Refuse) -> str:
    """Decode UTF-8 text, without byte order mark; the error names the line that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise refuse(f"is not UTF-8 (line {data.count(10, 0, problem.start) + 1})") from None


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Yield bytes in pieces of ``PIECE_BYTES``, as :func:`unpacked` takes them."""
    return (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))


def unpacked(pieces: Iterable[bytes], packed: int, refuse: Refuse) -> Iterator[bytes]:
    """Decompress gzip members of ``packed`` bytes together, and refuse them once the ratio is that of a zip bomb.

    EOFError: the last member is truncated. zlib.error: it is damaged, or something else follows.
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
            content = member.decompress(piece, most + 1 - total)
            total += len(content)
            if total > most:
                raise refuse(_too_dense(packed))
            yield content
            piece = member.unused_data
    if not member.eof:
        raise EOFError("it ends too early")


def within_ratio(pieces: Iterable[bytes], packed: int, refuse: Refuse) -> Iterator[bytes]:
    """Pass on what ``packed`` bytes of another compression unpack to, and refuse it once the ratio is too high."""
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > _most_unpacked(packed):
            raise refuse(_too_dense(packed))
        yield piece


def unpacked_file(path: Path, refuse: Refuse) -> Iterator[bytes]:
    """Decompress a gzip file, as :func:`unpacked` does; OSError: it cannot be read."""
    with open_file(path, refuse) as file:
        pieces = iter(functools.partial(file.read, PIECE_BYTES), b"")
        yield from unpacked(pieces, os.fstat(file.fileno()).st_size, refuse)


def most_of_table(size: int) -> int:
    """Return the bytes that a packed table may unpack to: FREE_TABLE, more if it is large itself.

    >>> most_of_table(25_000), most_of_table(50_000_000), most_of_table(1 << 40)
    (268435456, 5000000000, 8589934592)
    """
    return max(FREE_TABLE, min(MOST_RATIO * size, WHOLE.bytes))


def too_many_rows(rows: int, unpacked: int, most: int, than: str = "") -> str:
    """Return the predicate of a packed table that unpacks to more than ``most`` bytes; see :func:`most_of_table`.

    ``than``: such as "more than ", where not all of it was counted.
    """
    size, limit = (f"{number(count / 1e9, 3)} GB" for count in (unpacked, most))
    return f"holds {rows:,} rows, which unpack to {than}{size}; the most for a file of its size is {limit}"


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
