"""In-memory caches: values computed from Arrow tables, for as long as those exist, and recently used values (LRU)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import pyarrow as pa

Read = TypeVar("Read")

_memoised: dict[tuple[int, ...], dict[Hashable, object]] = {}


def memoised(tables: tuple[pa.Table, ...], key: Hashable, read: Callable[[], Read]) -> Read:
    """Return ``read()``, memoised for these table objects (immutable) and this key; callers must not modify it."""
    place = tuple(map(id, tables))
    if place not in _memoised:
        _memoised[place] = {}
        for table in tables:
            # id() may be reused after the table is deleted
            weakref.finalize(table, _memoised.pop, place, None)
    values = _memoised[place]
    if key not in values:
        values[key] = read()
    return values[key]  # type: ignore[return-value]


class LruCache(Generic[Read]):
    """A least-recently-used (LRU) cache of at most ``most`` values, which threads may share.

    ``weigh``: the weight of a value, such as its bytes (default: 1); one heavier than ``most`` by itself is not kept.

    >>> last = LruCache(2)
    >>> for key in ("a", "b", "a", "c"):
    ...     last.put(key, key.upper())
    >>> [last.get(key) for key in "abc"]
    ['A', None, 'C']
    """

    def __init__(self, most: int, weigh: Callable[[Read], int] = lambda _: 1) -> None:
        self._most, self._weigh, self._held = most, weigh, 0
        self._values, self._lock = dict[Hashable, Read](), threading.Lock()

    def get(self, key: Hashable) -> Read | None:
        """Return the value of a key, or None, and mark it as the most recently used."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def put(self, key: Hashable, value: Read) -> None:
        """Keep a value as the most recently used; the least recently used ones are evicted above the limit."""
        with self._lock:
            if key in self._values:
                self._held -= self._weigh(self._values.pop(key))
            self._values[key] = value
            self._held += self._weigh(value)
            while self._held > self._most:
                self._held -= self._weigh(self._values.pop(next(iter(self._values))))
