"""Pinned samples of results, computed in seconds: functions that return figures by name, used by `samples.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any


def first_by_hash(rows: list[Any], name: Callable[[Any], str], count: int) -> list[Any]:
    """Return the first ``count`` rows by the SHA-256 of their names, independent of the order of the rows."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"sample|{name(row)}".encode()).hexdigest())[:count]
