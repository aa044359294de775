"""Log files as readers see them: decompressed, with container format and field names; refuses what cannot be read."""

from __future__ import annotations

import glob
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from kernelsight.dataflow.databases import literal
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import check_file, decoded, open_file, unpacked_file
from kernelsight.files.bounded_values import is_object, json_values
from kernelsight.files.budget import WHOLE
from kernelsight.files.parquet_files import read_schema
from kernelsight.files.row_files import cells_of
from kernelsight.logs.json_outline import outline

HEAD_BYTES, PIECE_BYTES = 1 << 18, 1 << 20
LONGEST_LINE = 1 << 25
DAMAGED, UNPACK = "Copy or write it again.", "Where it is sound, unpack it first."
_REFUSED = tuple((re.compile(start, re.IGNORECASE), reason, advice) for start, reason, advice in (
    (rb"\x80[\x02-\x05]", "is a Python pickle, which can run code when it is read",
     "For SGLang, use --export-metrics-to-file instead of --dump-requests-folder."),
    (rb"\s*<(!doctype|html|\?xml)", "is an HTML or XML page, often that of an error",
     "Download the file again, and look at its first lines."),
    (rb"PK\x03\x04", "is a zip archive", "Unpack it, and give the files."),
    (rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ", "is compressed with something else than gzip", "Decompress it first."),
))  # fmt: skip


@dataclass(frozen=True)
class LogFile:
    """A log file: ``head``, its first decompressed bytes; ``kind``: json, parquet, sqlite or text; ``size``: in bytes.

    ``size`` is decompressed; ``whole``: ``fields`` are those of the whole file instead of its first bytes.
    """

    path: Path
    head: bytes
    kind: str
    compressed: bool
    size: int = 0
    whole: bool = False

    @cached_property
    def fields(self) -> frozenset[str]:
        """Field names in the first bytes: ``a.b`` inside objects, ``a[].b`` inside lists; column names of a table.

        With ``whole``, those of the whole file, which is read once in pieces.
        """
        if self.kind == "json":
            return outline(self.pieces() if self.whole else self.head)
        if self.kind == "parquet":
            return frozenset(_parquet_columns(self.path))
        return frozenset(self.columns) if self.kind == "text" else frozenset()

    @cached_property
    def columns(self) -> list[str]:
        """Column names of a text's first line that is not empty, read as a CSV header."""
        first_line = next((line for line in self.text.splitlines() if line.strip()), "")
        return [name.strip() for name in cells_of(first_line)]

    @cached_property
    def text(self) -> str:
        """First decompressed bytes as text."""
        return self.head.decode("utf-8-sig", "replace")

    @cached_property
    def by_line(self) -> bool:
        """Whether the file is JSON lines: one object per line."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        in_list = bool(lines) and lines[0].lstrip().startswith("[") and lines[0].rstrip().endswith(("[", ","))
        second = len(lines) > 1 and not in_list and lines[1].lstrip().startswith('{"')
        return bool(lines) and (is_object(lines[0]) or second)

    @property
    def name(self) -> str:
        """File name without known extensions."""
        name = self.path.name
        for ending in (".gz", ".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".yaml", ".yml", ".log", ".txt"):
            name = name.removesuffix(ending)
        return name or self.path.name

    @property
    def sql_path(self) -> str:
        """Path as an SQL literal for DuckDB, with brackets and stars escaped, which it would take as patterns."""
        return literal(glob.escape(str(self.path)))

    def open(self) -> BinaryIO:
        """Open the decompressed file."""
        check_file(self.path, self.refuse)
        return gzip.open(self.path, "rb") if self.compressed else open_file(self.path, self.refuse)  # type: ignore[return-value]

    def read(self) -> bytes:
        """Return the decompressed file; InvalidInput: damaged compression, or more than WHOLE.bytes."""
        if self.size > WHOLE.bytes:
            raise unusable(self.path, f"has more than {WHOLE.bytes >> 30} GiB in one document", "Give a part of it.")
        return b"".join(self.pieces())

    def text_of_all(self) -> str:
        """Return the decompressed file as text; InvalidInput: not UTF-8, or as of ``read``."""
        return decoded(self.read(), self.refuse)

    def refuse(self, problem: str) -> InvalidInput:
        """Return the error for this file; ``problem``: what is wrong with it, as a predicate."""
        return unusable(self.path, problem, DAMAGED)

    def entire(self) -> LogFile:
        """Return the file with ``fields`` of all of it, if its first bytes are not the whole file."""
        return replace(self, whole=True) if self.kind == "json" and len(self.head) == HEAD_BYTES else self

    def pieces(self) -> Iterator[bytes]:
        """Yield the decompressed file in pieces; InvalidInput: damaged compression."""
        try:
            if self.compressed:
                yield from unpacked_file(self.path, self.refuse)
                return
            with self.open() as file:
                while chunk := file.read(PIECE_BYTES):
                    yield chunk
        except (OSError, EOFError, zlib.error) as problem:
            raise unusable(self.path, f"cannot be decompressed ({problem})", DAMAGED) from None

    def lines(self) -> Iterator[str]:
        """Yield the lines of a text; InvalidInput: damaged compression, or a line longer than LONGEST_LINE."""
        try:
            with io.TextIOWrapper(self.open(), encoding="utf-8-sig", errors="replace") as file:
                while line := file.readline(LONGEST_LINE):
                    if len(line) == LONGEST_LINE:
                        raise self.refuse(f"has a line of more than {LONGEST_LINE >> 20} MiB")
                    yield line
        except (OSError, EOFError, zlib.error) as problem:
            raise unusable(self.path, f"cannot be decompressed ({problem})", DAMAGED) from None


def unusable(path: object, problem: str, advice: str) -> InvalidInput:
    """Return the error for a log that cannot be used; ``problem``: a predicate, ``advice``: what to do."""
    return InvalidInput(f"log {path} {problem}. {advice}".rstrip())


def open_log(path: str | os.PathLike[str]) -> LogFile:
    """Return a log file after reading its first bytes; InvalidInput: missing, empty, damaged, or a refused kind."""
    path = Path(path)
    try:
        with open_file(path, lambda reason: unusable(path, reason, "Give the path to a file.")) as file:
            head, size = file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size
        compressed = head[:2] == b"\x1f\x8b"
        if compressed:  # unpacked once to check its size: readers of formats need not
            head, size = b"", 0
            for piece in unpacked_file(path, lambda reason: unusable(path, reason, UNPACK)):
                head, size = head + piece[: HEAD_BYTES - len(head)], size + len(piece)
    except (OSError, EOFError, zlib.error) as problem:
        raise unusable(path, f"cannot be read ({problem})", DAMAGED) from None
    if not head.strip():
        raise unusable(path, "is empty", "Give a file with at least one request.")
    for pattern, reason, advice in _REFUSED:
        if pattern.match(head):
            raise unusable(path, reason, advice)
    return LogFile(path, head, _kind(head), compressed, size)


def _kind(head: bytes) -> str:
    """Return the container format of a file's first bytes: parquet, sqlite, json or text."""
    if head[:4] == b"PAR1":
        return "parquet"
    if head.startswith(b"SQLite format 3\x00"):
        return "sqlite"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return "json" if start[:1] == b"{" or re.match(rb"\[\s*[\[{\]\"0-9]", start) else "text"


def _parquet_columns(path: Path) -> list[str]:
    return read_schema(path, lambda problem: unusable(path, problem, DAMAGED)).names


def documents(file: LogFile) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of every JSON document in a file: one, or several separated by white space.

    Places are "document N", from 1. InvalidInput: not JSON, with the place and byte.
    """
    number = 0
    try:
        for number, (value, _) in enumerate(json_values(file.text_of_all()), 1):
            yield f"document {number}", value
    except json.JSONDecodeError as problem:
        location = f"document {number + 1}, byte {problem.pos} of {len(problem.doc)}"
        raise unusable(file.path, f"is damaged or cut off ({location}: {problem.msg})", DAMAGED) from None
