"""Appended lines of a growing log since it was last read, also across rotation and truncation."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import polars as pl

from kernelsight.errors import InvalidInput
from kernelsight.logs.files import unusable
from kernelsight.logs.read_logs import read_requests

# bytes that are read at once; bytes of a file's beginning that identify it
MOST_BYTES, HEAD_BYTES = 1 << 24, 256


class Position(NamedTuple):
    """Position up to which a log was read: file (inode), byte offset.

    ``head``: digest of the file's first bytes; ``header``: first line of a CSV, "" of JSON lines.
    """

    inode: int = 0
    offset: int = 0
    head: str = ""
    header: str = ""


class Appended(NamedTuple):
    """Complete appended lines, the position after them, and what happened before: "", "rotated" or "truncated"."""

    lines: bytes
    place: Position
    event: str = ""


def appended(path: Path, position: Position, most: int = MOST_BYTES) -> Iterator[Appended]:
    """Yield the lines appended to a log after a position, at most ``most`` bytes at once; nothing while it is missing.

    A file with another inode was rotated: the rest of the old file is read if it lies beside the new one. A file that
    is shorter than the position, or has another beginning, was truncated, and is read from its beginning.
    InvalidInput: a line is longer than ``most`` bytes.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    event = ""
    if position.offset and status.st_ino != position.inode:
        event = "rotated"
        old = _rotated_file(path, position)
        if old is not None:
            for appended_part in _lines_after(old, position, most, is_last=True):
                yield appended_part
                position = appended_part.place
        position = Position()
    elif position.offset and (status.st_size < position.offset or _digest(path, position.offset) != position.head):
        event, position = "truncated", Position()
    is_first = True
    for appended_part in _lines_after(path, position._replace(inode=status.st_ino), most):
        yield appended_part._replace(event=event if is_first else "")
        is_first = False
    if is_first and event:
        yield Appended(b"", Position(), event)


def rows_of(appended_part: Appended, path: Path, log_format: str, columns: Mapping[str, str] | None) -> pl.DataFrame:
    """Return the requests in appended lines, with times of the log's own clock; see ``read_requests``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name.removesuffix(".gz")
        file.write_bytes(appended_part.place.header.encode() + appended_part.lines)
        try:
            return read_requests(file, log_format, columns)
        except InvalidInput as refused:
            raise InvalidInput(str(refused).replace(str(file), str(path))) from None


def _lines_after(path: Path, position: Position, most: int, is_last: bool = False) -> Iterator[Appended]:
    """Yield the complete lines after a position; ``is_last``: the file is finished, its last line needs no newline."""
    with path.open("rb") as file:
        file.seek(position.offset)
        while chunk := file.read(most):
            end = chunk.rfind(b"\n") + 1
            if is_last and len(chunk) < most and end < len(chunk):
                chunk, end = chunk + b"\n", len(chunk) + 1
            if not end:
                if len(chunk) == most:
                    raise unusable(path, f"has a line of more than {most >> 20} MiB", "Give a log of requests by line.")
                return
            lines, start = chunk[:end], position.offset
            if not start and lines[:1] not in (b"{", b"["):
                header, _, lines = lines.partition(b"\n")
                position = position._replace(header=header.decode("utf-8", "replace") + "\n")
            offset = start + end
            position = position._replace(offset=offset, head=_digest(path, offset))
            file.seek(offset)
            yield Appended(lines, position)


def _rotated_file(path: Path, position: Position) -> Path | None:
    """Return the rotated file that was read before: in the log's folder, with its inode and first bytes; else None."""
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.inode() == position.inode:
                old = Path(entry.path)
                return old if _digest(old, position.offset) == position.head else None
    return None


def _digest(path: Path, offset: int) -> str:
    """Return the SHA-256 of a file's first HEAD_BYTES bytes, or of those before ``offset``."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(offset, HEAD_BYTES))).hexdigest()
