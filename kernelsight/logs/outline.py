"""The names of fields in JSON, found from one end to the other without parsing values or keeping them."""

from __future__ import annotations

import re
from collections.abc import Iterable

# a document that uses values as names (requests by their id) has no more fields than these
MOST_FIELDS = 10_000
# deeper containers are skipped: no format has fields there
MOST_DEPTH = 48
# longer names are cut: texts are values
LONGEST_NAME = 400
_SIGN = re.compile(rb'["{}\[\]:]')
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class Outline:
    """The paths of the keys of JSON that is given piece by piece: ``a.b`` inside objects, ``a[].b`` inside lists.

    Memory is that of the paths and of the pieces, however long a string is.

    >>> found = Outline()
    >>> for piece in (b'{"a": [{"b', b'": "}{"}], "c": 1', b'}'):
    ...     found.feed(piece)
    >>> sorted(found.paths)
    ['a', 'a[].b', 'c']
    """

    def __init__(self) -> None:
        self.paths: set[str] = set()
        # of each open container: its path, and whether it is an object; then the last string and the last key
        self._stack: list[tuple[str, bool]] = [("", False)]
        self._below = 0
        self._last, self._key = b"", ""
        # the first bytes of a string that the last piece did not end, and an escape that it began
        self._open: bytes | None = None
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Go on with the next bytes of the text."""
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
        """Go on inside a string, and return where it ends in the piece."""
        end = _STRING.match(chunk, position).end()  # type: ignore[union-attr]
        assert self._open is not None
        self._open += chunk[position : min(end, position + LONGEST_NAME - len(self._open))]
        if end < len(chunk) and chunk[end] == 34:
            self._last, self._open = self._open, None
            return end + 1
        self._rest = chunk[end:]
        return len(chunk)

    def _sign(self, mark: bytes) -> None:
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
    """Return the paths of the keys in a JSON text, whole or in pieces, which may end anywhere.

    >>> sorted(outline(b'[{"a": {"b": [1, 2]}, "c": "x'))
    ['[].a', '[].a.b', '[].c']
    """
    outline_of = Outline()
    for chunk in (chunks,) if isinstance(chunks, bytes) else chunks:
        outline_of.feed(chunk)
    return frozenset(outline_of.paths)
