"""Appended lines of a growing log since it was last read, also across rotation and truncation."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import polars as pl

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import open_file
from kernelsight.files.budget import GROWING
from kernelsight.files.row_faults import Faults
from kernelsight.logs.files import unusable
from kernelsight.logs.log_run import rules
from kernelsight.logs.read_logs import read_requests

# bytes that are read at once; bytes of a file's beginning that identify it
MOST_BYTES, HEAD_BYTES = 1 << 24, 256
# readings of one part, which is halved again and again around lines that its reader refuses
MOST_READINGS = 64
_PLACE = re.compile(r"^(row|line) (\d+)")


class Position(NamedTuple):
    """Position up to which a log was read: file (inode), byte offset, number of lines.

    ``head``: digest of the file's first bytes; ``header``: first line of a CSV, "" of JSON lines.
    """

    inode: int = 0
    offset: int = 0
    head: str = ""
    header: str = ""
    line: int = 0


class Appended(NamedTuple):
    """Complete appended lines, the position after them, and what happened before: "", "rotated" or "truncated"."""

    lines: bytes
    place: Position
    event: str = ""


def appended(path: Path, position: Position, most: int = MOST_BYTES) -> Iterator[Appended]:
    """Yield the lines appended to a log after a position, at most ``most`` bytes at once; nothing while it is missing.

    A file with another inode was rotated: the rest of the old file is read if it lies beside the new one. A file that
    is shorter than the position, or has another beginning, was truncated, and is read from its beginning.
    InvalidInput: the log is no regular file, or a line is longer than ``most`` bytes.
    """
    if not path.exists():
        return
    with _open(path) as file:
        status, event = os.fstat(file.fileno()), ""
        if position.offset and status.st_ino != position.inode:
            event = "rotated"
            for appended_part in _rest_of_rotated(path, position, most):
                yield appended_part
            position = Position()
        elif position.offset and (status.st_size < position.offset or _digest(file, position.offset) != position.head):
            event, position = "truncated", Position()
        is_first = True
        for appended_part in _lines_after(file, path, position._replace(inode=status.st_ino), most):
            yield appended_part._replace(event=event if is_first else "")
            is_first = False
        if is_first and event:
            yield Appended(b"", Position(), event)


def requests_of(
    appended_part: Appended, path: Path, log_format: str, columns: Mapping[str, str] | None
) -> tuple[list[pl.DataFrame], Faults]:
    """Return the requests in appended lines, with times of the log's own clock, and the lines that are none.

    Where the reader refuses the lines they are halved until those at fault are found; see ``read_requests``.
    """
    lines, has_header = appended_part.lines.splitlines(keepends=True), bool(appended_part.place.header)
    before, frames, unused = appended_part.place.line - len(lines), [], Faults()
    halves, readings = [(0, len(lines))], 0
    while halves:
        begin, end = halves.pop()
        if not b"".join(lines[begin:end]).strip():
            continue
        readings += 1
        try:
            requests, faults = _read(lines[begin:end], appended_part.place.header, path, log_format, columns)
        except InvalidInput as refused:
            if end - begin > 1 and readings < MOST_READINGS:
                middle = (begin + end) // 2
                halves += [(middle, end), (begin, middle)]
            else:
                reason = str(refused).rstrip(".")
                unused.add(reason, end - begin, f"line {before + begin + 1}", reason)
            continue
        frames.append(requests)
        for rule, (count, example, more) in faults.counted.items():
            if rules()[rule][0] == "dropped" and (place := _PLACE.match(example or "")):
                # readers count rows after a header, and lines with it
                own = int(place[2]) - (1 if has_header and place[1] == "line" else 0)
                unused.add(rule, count, f"line {before + begin + own}", f"{rules()[rule][1]}{more}")
    return frames, unused


def _read(
    lines: list[bytes], header: str, path: Path, log_format: str, columns: Mapping[str, str] | None
) -> tuple[pl.DataFrame, Faults]:
    """Read lines as a file of their own; errors name the log instead."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name.removesuffix(".gz")
        file.write_bytes(header.encode() + b"".join(lines))
        try:
            return read_requests(file, log_format, columns)
        except InvalidInput as refused:
            raise InvalidInput(str(refused).replace(str(file), str(path))) from None


def _open(path: Path) -> BinaryIO:
    return open_file(path, partial(unusable, path, advice="Give the path to a file."), GROWING)


def _rest_of_rotated(path: Path, position: Position, most: int) -> Iterator[Appended]:
    """Yield the lines after a position of a rotated file, if it lies beside the new one."""
    old = _rotated_file(path, position)
    if old is not None:
        with _open(old) as file:
            yield from _lines_after(file, old, position, most, is_last=True)


def _lines_after(
    file: BinaryIO, path: Path, position: Position, most: int, is_last: bool = False
) -> Iterator[Appended]:
    """Yield the complete lines after a position; ``is_last``: the file is finished, its last line needs no newline."""
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
        offset, line = start + end, position.line + lines.count(b"\n")
        header, _, others = lines.partition(b"\n")
        if lines[:1] == b"{" or (not start and others[:1] == b"{"):  # JSON lines; the first one may be cut off
            position = position._replace(header="")
        elif not start and lines[:1] != b"[":
            position, lines = position._replace(header=header.decode("utf-8", "replace") + "\n"), others
        position = position._replace(offset=offset, head=_digest(file, offset), line=line)
        file.seek(offset)
        yield Appended(lines, position)


def _rotated_file(path: Path, position: Position) -> Path | None:
    """Return the rotated file that was read before: in the log's folder, with its inode and first bytes; else None."""
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and entry.inode() == position.inode:
                with _open(Path(entry.path)) as old:
                    return Path(entry.path) if _digest(old, position.offset) == position.head else None
    return None


def _digest(file: BinaryIO, offset: int) -> str:
    """Return the SHA-256 of a file's first HEAD_BYTES bytes, or of those before ``offset``."""
    file.seek(0)
    return hashlib.sha256(file.read(min(offset, HEAD_BYTES))).hexdigest()
