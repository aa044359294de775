"""Opens log files for readers: decompressed, with the fields of their first bytes, or of all of them."""

from __future__ import annotations

import csv
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

from kernelsight.dataflow.bounded_files import TOO_MUCH_MEMORY, WHOLE_BYTES, check_file, decoded, unpacked_file
from kernelsight.dataflow.parquet_files import read_schema
from kernelsight.errors import InvalidInput
from kernelsight.logs.outline import outline

HEAD_BYTES, PIECE_BYTES = 1 << 18, 1 << 20
LONGEST_LINE = 1 << 25
DAMAGED, UNPACK = "Copy or write it again.", "Where it is sound, unpack it first."
_REFUSED = (
    (re.compile(rb"\x80[\x02-\x05]"), "is a Python pickle, which can run code when it is read"),
    (re.compile(rb"\s*<(!doctype|html|\?xml)", re.IGNORECASE), "is an HTML or XML page, often that of an error"),
    (re.compile(rb"PK\x03\x04"), "is a zip archive"),
    (re.compile(rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ"), "is compressed with something else than gzip"),
)
_ADVICE = {
    "pickle": "For SGLang, use --export-metrics-to-file instead of --dump-requests-folder.",
    "page": "Download the file again, and look at its first lines.",
    "archive": "Unpack it, and give the files.",
    "gzip": "Decompress it first.",
}


_REASONS = {RecursionError: "it nests too deep", MemoryError: TOO_MUCH_MEMORY}


@dataclass(frozen=True)
class LogFile:
    """A file, its first decompressed bytes, its container (json, parquet, sqlite or text), its decompressed size."""

    path: Path
    head: bytes
    kind: str
    compressed: bool
    size: int = 0
    whole: bool = False

    @cached_property
    def fields(self) -> frozenset[str]:
        """The fields in the first bytes: ``a.b`` inside objects, ``a[].b`` inside lists; the columns of a table.

        With ``whole``, those of the whole file, which is read once from end to end, piece by piece.
        """
        if self.kind == "json":
            return outline(self.pieces() if self.whole else self.head)
        if self.kind == "parquet":
            return frozenset(_parquet_columns(self.path))
        return frozenset(self.columns) if self.kind == "text" else frozenset()

    @cached_property
    def columns(self) -> list[str]:
        """The fields of the first line of a text, as that of a CSV file."""
        first_line_text = next((line for line in self.text.splitlines() if line.strip()), "")
        try:
            return [name.strip() for name in next(csv.reader([first_line_text]), [])]
        except csv.Error:
            return []

    @cached_property
    def text(self) -> str:
        """The first bytes as text."""
        return self.head.decode("utf-8-sig", "replace")

    @cached_property
    def by_line(self) -> bool:
        """Whether each line is a JSON object."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return bool(lines) and (_is_object(lines[0]) or (len(lines) > 1 and lines[1].lstrip().startswith('{"')))

    @property
    def name(self) -> str:
        """The file's name without endings."""
        name = self.path.name
        for ending in (".gz", ".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".yaml", ".yml", ".log", ".txt"):
            name = name.removesuffix(ending)
        return name or self.path.name

    @property
    def sql_path(self) -> str:
        """The path as SQL text, by which DuckDB reads this file alone: it takes brackets and stars for patterns."""
        return "'" + glob.escape(str(self.path)).replace("'", "''") + "'"

    def open(self) -> BinaryIO:
        """Open the decompressed file."""
        return gzip.open(self.path, "rb") if self.compressed else self.path.open("rb")  # type: ignore[return-value]

    def read(self) -> bytes:
        """Return the decompressed file; InvalidInput: its compression is damaged, or it is too large for one piece."""
        if self.size > WHOLE_BYTES:
            raise unusable(self.path, f"has more than {WHOLE_BYTES >> 30} GiB in one document", "Give a part of it.")
        return b"".join(self.pieces())

    def text_of_all(self) -> str:
        """Return the decompressed file as text; InvalidInput: it is not UTF-8, and what ``read`` refuses."""
        return decoded(self.read(), self.refuse)

    def refuse(self, problem: str) -> InvalidInput:
        """Build the error for a file of which ``problem`` says what is wrong."""
        return unusable(self.path, problem, DAMAGED)

    def entire(self) -> LogFile:
        """Return the file with the fields of all of it, where its first bytes are not all."""
        return replace(self, whole=True) if self.kind == "json" and len(self.head) == HEAD_BYTES else self

    def pieces(self) -> Iterator[bytes]:
        """Yield the decompressed file in pieces; InvalidInput: its compression is damaged."""
        try:
            if self.compressed:
                yield from unpacked_file(self.path, self.refuse)
                return
            with self.path.open("rb") as file:
                while chunk := file.read(PIECE_BYTES):
                    yield chunk
        except (OSError, EOFError, zlib.error) as problem:
            raise unusable(self.path, f"cannot be decompressed ({problem})", DAMAGED) from None

    def lines(self) -> Iterator[str]:
        """Yield the lines of a text; InvalidInput: its compression is damaged."""
        try:
            with io.TextIOWrapper(self.open(), encoding="utf-8-sig", errors="replace") as file:
                while line := file.readline(LONGEST_LINE):
                    if len(line) == LONGEST_LINE:
                        raise self.refuse(f"has a line of more than {LONGEST_LINE >> 20} MiB")
                    yield line
        except (OSError, EOFError, zlib.error) as problem:
            raise unusable(self.path, f"cannot be decompressed ({problem})", DAMAGED) from None


def unusable(path: object, problem: str, advice: str) -> InvalidInput:
    """Build the error for a log that cannot be used.

    >>> str(unusable("a.json", "is empty", "Give a file with requests."))
    'log a.json is empty. Give a file with requests.'
    """
    return InvalidInput(f"log {path} {problem}. {advice}".rstrip())


def open_log(path: str | os.PathLike[str]) -> LogFile:
    """Look at the first bytes of a file; InvalidInput: it is missing, empty, damaged, or of a kind that is not read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "run.json"
    ...     _ = file.write_text('{"ttfts": [0.1], "server": {"tp": 2}}')
    ...     log = open_log(file)
    ...     log.kind, log.name, sorted(log.fields)
    ('json', 'run', ['server', 'server.tp', 'ttfts'])
    """
    path = Path(path)
    size = check_file(path, lambda reason: unusable(path, reason, "Give the path to a file."))
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        if compressed:  # once from end to end: no reader of a format meets more than a log can have
            size = sum(map(len, unpacked_file(path, lambda reason: unusable(path, reason, UNPACK))))
        with gzip.open(path) if compressed else path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as problem:
        raise unusable(path, f"cannot be read ({problem})", DAMAGED) from None
    if not head.strip():
        raise unusable(path, "is empty", "Give a file with at least one request.")
    for (pattern, reason), advice in zip(_REFUSED, _ADVICE.values(), strict=True):
        if pattern.match(head):
            raise unusable(path, reason, advice)
    return LogFile(path, head, _kind(head), compressed, size)


def _kind(head: bytes) -> str:
    if head[:4] == b"PAR1":
        return "parquet"
    if head.startswith(b"SQLite format 3\x00"):
        return "sqlite"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return "json" if start[:1] == b"{" or re.match(rb"\[\s*[\[{\]\"0-9]", start) else "text"


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parquet_columns(path: Path) -> list[str]:
    return read_schema(path, lambda problem: unusable(path, problem, DAMAGED)).names


def documents(file: LogFile) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of every JSON document in a file: one, or several with space between them.

    Raises InvalidInput with the place of what is not JSON; places count documents from 1.
    """
    text = file.text_of_all()
    decoder, position, number = json.JSONDecoder(), 0, 0
    space = re.compile(r"\s*")
    while (position := space.match(text, position).end()) < len(text):  # type: ignore[union-attr]
        number += 1
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError, MemoryError) as problem:
            reason = _REASONS.get(type(problem)) or getattr(problem, "msg", "a number has thousands of digits")
            where = f"document {number}, byte {getattr(problem, 'pos', position)} of {len(text)}"
            raise unusable(file.path, f"is damaged or cut off ({where}: {reason})", DAMAGED) from None
        yield f"document {number}", value
