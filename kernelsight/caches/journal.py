"""Append-only journals of long runs, beside their results: one durable, checksummed line per record.

A killed run loses only the record that it was writing. A line is the CRC-32 of its JSON in eight hexadecimal digits, a
space, and the JSON object. The first line holds the kind of the journal and a header, which says what its records
belong to. Reading ends at the first line that is truncated or damaged.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from kernelsight.caches.durable import draft_of
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_bytes
from kernelsight.files.budget import ROWS
from kernelsight.files.own import own_json

SUFFIX = ".journal"


def journal_path(target: Path) -> Path:
    """Return the path of a result's journal."""
    return target.with_name(target.name + SUFFIX)


class Records(NamedTuple):
    """The content of a journal: its header, which says what its records belong to, and the records."""

    header: Any
    records: list[dict[str, Any]]


class Journal:
    """A journal that is open for appending records."""

    def __init__(self, path: Path, kind: str, header: Any, records: Iterable[Mapping[str, Any]] = ()) -> None:
        """Start a journal with the ``records`` of an earlier one, which it replaces atomically; OSError: a full disk.

        Drafts that a killed run left of the journal and of its result are removed.
        """
        for draft in path.parent.glob(".*.draft"):
            if draft.name.startswith(f".{path.name.removesuffix(SUFFIX)}."):
                draft.unlink(missing_ok=True)
        with draft_of(path) as draft, draft.open("wb") as file:
            file.writelines(map(_line, [{kind: header}, *records]))
        self.path = path
        self._file: IO[bytes] = path.open("ab")

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record and flush it to the disk (fsync)."""
        self._file.write(_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, which stays on the disk."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: Path, kind: str) -> Records:
    """Read a journal of a kind up to its first damaged line; InvalidInput: it is not a journal of that kind."""
    data = read_bytes(path, lambda records: InvalidInput(f"the journal {path} {records}; use another -o FILE."), ROWS)
    records: list[dict[str, Any]] = []
    for line in data.split(b"\n")[:-1]:
        record = _parsed(line)
        if record is None:
            break
        records.append(record)
    if not records or list(records[0]) != [kind]:
        raise InvalidInput(f"{path} is not the journal of a {kind}; use another -o FILE.")
    return Records(records[0][kind], records[1:])


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, default=_plain).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _plain(value: Any) -> Any:
    """Return numpy numbers and arrays, and any mapping, as plain Python values."""
    return dict(value) if isinstance(value, Mapping) else value.tolist()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None where the line is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        record = own_json(text)
        return record if isinstance(record, dict) else None
    return None
