"""Caches values computed from Arrow tables for as long as the tables exist: tables are immutable."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

import pyarrow as pa

Read = TypeVar("Read")

_kept: dict[tuple[int, ...], dict[Hashable, object]] = {}


def remembered(tables: tuple[pa.Table, ...], key: Hashable, read: Callable[[], Read]) -> Read:
    """Return ``read()``, called once for these table objects and this key; callers must not modify the result.

    >>> numbers = pa.table({"n": [1, 2, 3]})
    >>> first = remembered((numbers,), "as list", lambda: numbers["n"].to_pylist())
    >>> remembered((numbers,), "as list", lambda: numbers["n"].to_pylist()) is first
    True
    """
    place = tuple(map(id, tables))
    if place not in _kept:
        _kept[place] = {}
        for table in tables:
            # id() may be reused after the table is deleted
            weakref.finalize(table, _kept.pop, place, None)
    found = _kept[place]
    if key not in found:
        found[key] = read()
    return found[key]  # type: ignore[return-value]
