"""News of long work: how much of it is done, or a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """How much of some work is done: number of finished parts, of all, and what a part is.

    >>> str(Done(3, 10, "scenarios"))
    '3 of 10 scenarios'
    """

    done: int
    total: int
    what: str

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} {self.what}"


# what is called with news of work: how much is done, or a sentence
Report = Callable[[Done | str], None]
