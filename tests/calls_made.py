"""How much Python a piece of work runs: what is done in bulk makes few calls, however many rows it has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls_made(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what ``work`` returns, and how many Python functions were entered on the way."""
    entered = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = work()
    finally:
        sys.setprofile(before)
    return found, entered
