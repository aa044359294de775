"""Field names of a JSON text, scanned in pieces without parsing or keeping values."""

from __future__ import annotations

import re
from collections.abc import Iterable

# largest number of field names that is kept: some documents use values (request ids) as names
MOST_FIELDS = 10_000
# deeper containers are skipped: no format has fields there
MOST_DEPTH = 48
# longer names are cut
LONGEST_NAME = 400
_SIGN = re.compile(rb'["{}\[\]:]')
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class Outline:
    """Scanner of JSON in pieces, which collects the paths of keys: ``a.b`` inside objects, ``a[].b`` inside lists.

    Memory is that of the paths and of one piece, however long a string is.

    >>> scanner = Outline()
    >>> for piece in (b'{"a": [{"b', b'": "}{"}], "c": 1', b'}'):
    ...     scanner.feed(piece)
    >>> sorted(scanner.paths)
    ['a', 'a[].b', 'c']
    """

    def __init__(self) -> None:
        self.paths: set[str] = set()
        # (path, is an object) of each open container; then the last string and the last key
        self._stack: list[tuple[str, bool]] = [("", False)]
        self._below = 0
        self._last, self._key = b"", ""
        # first bytes of a string that continues in the next piece, and an escape that was begun
        self._open: bytes | None = None
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the text."""
        chunk, self._rest = self._rest + chunk, b""
        position, find, string = 0, _SIGN.search, _STRING.match
        if self._open is not None:
            position = self._string(chunk, 0)
        while self._open is None and (sign := find(chunk, position)):
            position = sign.end()
            mark = sign.group(0)
            if mark == b'"':
                end = string(chunk, position).end()  # type: ignore[union-attr]
                if end < len(chunk) and chunk[end] == 34:
                    self._last = chunk[position : min(end, position + LONGEST_NAME)]
                    position = end + 1
                else:
                    self._open = b""
                    position = self._string(chunk, position)
            else:
                self._sign(mark)

    def _string(self, chunk: bytes, position: int) -> int:
        """Continue a string, and return the position after its end in the piece, or the piece's length."""
        end = _STRING.match(chunk, position).end()  # type: ignore[union-attr]
        assert self._open is not None
        self._open += chunk[position : min(end, position + LONGEST_NAME - len(self._open))]
        if end < len(chunk) and chunk[end] == 34:
            self._last, self._open = self._open, None
            return end + 1
        self._rest = chunk[end:]
        return len(chunk)

    def _sign(self, mark: bytes) -> None:
        """Process a colon or bracket outside strings."""
        path, inside = self._stack[-1]
        if mark == b":":
            if inside and not self._below:
                name = self._last.decode("utf-8", "replace")
                self._key = f"{path}.{name}" if path else name
                if len(self.paths) < MOST_FIELDS:
                    self.paths.add(self._key)
        elif mark in b"{[":
            if self._below or len(self._stack) > MOST_DEPTH:
                self._below += 1
                return
            parent = self._key if inside else path
            self._stack.append((parent if mark == b"{" else f"{parent}[]", mark == b"{"))
        elif self._below:
            self._below -= 1
        elif len(self._stack) > 1:
            self._stack.pop()


def outline(chunks: bytes | Iterable[bytes]) -> frozenset[str]:
    """Return the paths of keys in a JSON text, whole or in pieces; the text may end anywhere."""
    scanner = Outline()
    for chunk in (chunks,) if isinstance(chunks, bytes) else chunks:
        scanner.feed(chunk)
    return frozenset(scanner.paths)
