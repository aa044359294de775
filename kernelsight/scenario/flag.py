"""A flag of a scenario: its name, the kind of its values, its help and its column of ``deployments``."""

from __future__ import annotations

from typing import NamedTuple

LARGEST_PARALLEL_SIZE = 1024
LARGEST_WHOLE_NUMBER = 2**53
# the simulated clock counts nanoseconds in 64 bits, enough for 290 years
LONGEST_LOAD_S = 1e9


class Flag(NamedTuple):
    """One flag. ``kind``: text, whole, positive, share, share_or_none, not_negative, span, word, switch, yes, tiers."""

    name: str
    kind: str = "text"
    help: str | None = None
    metavar: str | None = None
    column: str | None = None
    least: float = 1
    most: float = LARGEST_WHOLE_NUMBER
    choices: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options that set it."""
        return self.spellings or ("--" + self.name.replace("_", "-"),)
