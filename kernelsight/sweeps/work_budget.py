"""The work budget of a search: a number of simulated requests, and a time limit."""

from __future__ import annotations

import time

# output tokens that count as one more request, for engines that are simulated token by token (pipeline stages, drafts);
# measured: 10 us per request, and 28 ns per token there
TOKENS_A_REQUEST = 360
# requests that a turn of a conversation counts as, whose prompt is looked up in the prefix cache; measured: 25 us
TURN = 2.5


class SearchEnded(Exception):
    """A search ends before it is complete; the message says why. ``for_good``: no further phase may run either."""

    for_good = False


class TimeIsOver(SearchEnded):
    """The time limit has passed."""

    for_good = True


class Work:
    """Counts simulated requests, and ends a search that has spent its allowance or its time.

    ``most``: requests; ``seconds``: wall time from now on; None: no limit.
    """

    def __init__(self, most: int | None = None, seconds: float | None = None) -> None:
        self.most, self.seconds, self.spent = most, seconds, 0
        self._until = None if seconds is None else time.monotonic() + seconds

    def take(self, requests: int) -> None:
        """Count requests that are about to be simulated; SearchEnded: time or allowance is spent."""
        if self._until is not None and time.monotonic() >= self._until:
            raise TimeIsOver(f"its time limit of {self.seconds:g} s is over")
        if self.most is not None and self.spent + requests > self.most:
            raise SearchEnded("its allowance of simulated requests is spent")
        self.spent += requests
