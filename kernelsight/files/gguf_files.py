"""Reads the metadata of an untrusted GGUF file: its head, of which numbers and texts are kept."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from kernelsight.files.bounded_files import Refuse, open_file
from kernelsight.number_format import number

# metadata of a file: its vocabulary is the largest part
MOST_BYTES, MOST_ENTRIES = 1 << 27, 1 << 22
# struct formats of GGUF's types of values by number; 8 is text, 9 a list
SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?"))) | {10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
BROKEN = "is no complete GGUF file"


def read_gguf(path: Path, refuse: Refuse) -> dict[str, Any]:
    """Return the metadata of a GGUF file: numbers and texts by key, of lists their lengths, without the architecture's
    prefix; and ``tied_embeddings``, whether it has no matrix for the output.

    ``refuse`` makes the error that is raised: no such file, or no GGUF.
    """
    with open_file(path, refuse) as file:
        try:
            content = _GgufReader(file, refuse).metadata()
        except (struct.error, UnicodeDecodeError, RecursionError):
            raise refuse(BROKEN) from None
    prefix = f"{content.get('general.architecture')}."
    return {name.removeprefix(prefix): value for name, value in content.items()}


class _GgufReader:
    """Reads the head of a GGUF file: little-endian, at most MOST_BYTES of it."""

    def __init__(self, file: BinaryIO, refuse: Refuse) -> None:
        self.file, self.refuse, self.left = file, refuse, MOST_BYTES

    def metadata(self) -> dict[str, Any]:
        """Return the values by key, and whether the output reuses the embedding."""
        if self._bytes(4) != b"GGUF":
            raise self.refuse("is no GGUF file")
        if (version := self._number("I")) not in (2, 3):
            raise self.refuse(f"is GGUF of version {version}; versions 2 and 3 are read")
        tensors, entries = self._count(), self._count()
        content: dict[str, Any] = {}
        for _ in range(entries):
            name = self._text()
            content[name] = self._read(self._number("I"))
        names = {self._tensor() for _ in range(tensors)}
        return content | {"tied_embeddings": "output.weight" not in names}

    def _tensor(self) -> str:
        """Return the name of the next matrix."""
        name, dimensions = self._text(), self._number("I")
        if dimensions > 8:
            raise self.refuse(BROKEN)
        self._bytes(8 * dimensions + 4 + 8)  # sizes, type, offset
        return name

    def _read(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind != LIST:
            if kind not in SCALARS:
                raise self.refuse(f"has values of an unknown type ({kind})")
            return self._number(SCALARS[kind])
        kind, count = self._number("I"), self._count()
        if kind in SCALARS:
            self._bytes(struct.calcsize(SCALARS[kind]) * count)
        else:
            for _ in range(count):
                self._read(kind)
        return count

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode()

    def _count(self) -> int:
        count = self._number("Q")
        if count > MOST_ENTRIES:
            raise self.refuse(f"states {number(count)} entries of one list, more than {number(MOST_ENTRIES)}")
        return count

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, count: int) -> bytes:
        if count > self.left:
            raise self.refuse(f"has more than {number(MOST_BYTES >> 20)} MiB of metadata")
        self.left -= count
        data = self.file.read(count)
        if len(data) < count:
            raise self.refuse(BROKEN)
        return data
