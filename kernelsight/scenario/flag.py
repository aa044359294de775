"""Type ``Flag``: name, kind and range of values, help, column and command-line options of one flag."""

from __future__ import annotations

from typing import NamedTuple

LARGEST_PARALLEL_SIZE = 1024
LARGEST_WHOLE_NUMBER = 2**53
# the simulated clock counts nanoseconds in 64 bits, enough for 290 years
LONGEST_LOAD_S = 1e9


class Flag(NamedTuple):
    """One flag of a scenario: a keyword in Python, a column of a grid, an option of the command line.

    ``kind``: text, whole, positive, share, share_or_none, not_negative, span, word, switch, yes, tiers, weights or
    version; ``flag_values`` checks them.
    """

    name: str
    kind: str = "text"
    help: str | None = None
    metavar: str | None = None  # placeholder of the value in --help
    column: str | None = None  # of the table deployments
    least: float = 1
    most: float = LARGEST_WHOLE_NUMBER
    choices: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()  # command-line options where they differ from --name

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options that set it."""
        return self.spellings or ("--" + self.name.replace("_", "-"),)
