"""Clock of the server: advances the engines to the present moment, and delivers each token at its time.

Simulated time is the event loop's time since the start, times ``speed``. A late wake-up does not shift the schedule:
steps begin where the last one ended, and only arrivals take their time from the clock.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kernelsight.server.live_engines import LAST_US, LiveEngines


class RequestTimes(NamedTuple):
    """Moments of a finished request in simulated time, us, and its prompt tokens found in the prefix cache."""

    sent_us: float
    scheduled_us: float
    first_token_us: float
    finish_us: float
    cached_tokens: int


class TokenReceiver(Protocol):
    """The receiver of a request's tokens."""

    target: int  # tokens that are still to come

    def give(self, count: int, time_us: float) -> None:
        """Receive ``count`` tokens that the engine sampled at ``time_us``."""


class EngineDriver:
    """Driver of live engines: advances them with the event loop's clock, and delivers their tokens.

    ``speed``: simulated seconds per real second; ``now_s``: clock, None: that of the running event loop.
    """

    def __init__(self, engines: LiveEngines, speed: float, now_s: Callable[[], float] | None = None) -> None:
        self.engines, self.speed = engines, speed
        self._now_s = now_s or asyncio.get_running_loop().time
        self._start_s, self._start_us = self._now_s(), engines.reached_us
        self._answers: dict[int, TokenReceiver] = {}
        self._waiting: list[tuple[float, int, int, int, TokenReceiver]] = []
        self._count, self._timer = 0, None

    def now_us(self) -> float:
        """Return the present moment in simulated time, us, always later than what the engines have reached."""
        passed_us = (self._now_s() - self._start_s) * 1e6 * self.speed
        return max(self._start_us + passed_us, math.nextafter(self.engines.reached_us, math.inf))

    def send(self, prompt: int, output: int, keys: Sequence[bytes], priority: int, answer: TokenReceiver) -> int:
        """Send a request now; return its slot, or -1 if the engine rejects it. See ``LiveEngines.add``."""
        slot, tokens = self.engines.add(self.now_us(), prompt, output, keys, priority)
        self._keep(tokens)
        if slot >= 0:
            self._answers[slot] = answer
        self.turn()
        return slot

    def cancel(self, slot: int, answer: TokenReceiver) -> None:
        """Cancel a request, unless its slot already belongs to another answer."""
        if self._answers.get(slot) is answer:
            del self._answers[slot]
            self.engines.cancel(slot)
            self.turn()

    def times(self, slot: int, finish_us: float) -> RequestTimes:
        """Return the moments of a request whose last token was just delivered."""
        record = self.engines.requests[slot]
        moments = (float(record[name]) for name in ("sent_us", "scheduled_us", "first_token_us"))
        return RequestTimes(*moments, finish_us, int(record["cached_tokens"]))

    def _keep(self, tokens: Sequence) -> None:
        """Queue tokens until their time."""
        for time_us, slot, count in tokens:
            answer = self._answers.get(slot)
            if answer is not None:  # not cancelled
                self._count += 1
                heapq.heappush(self._waiting, (time_us, self._count, slot, count, answer))

    def turn(self) -> None:
        """Advance the engines, deliver due tokens, and schedule the next wake-up."""
        now_us = self.now_us()
        self._keep(self.engines.advance(now_us))
        while self._waiting and self._waiting[0][0] <= now_us:
            time_us, _, slot, count, answer = heapq.heappop(self._waiting)
            if self._answers.get(slot) is answer:
                answer.target -= count
                if answer.target == 0:
                    del self._answers[slot]
                answer.give(count, time_us)
        self._sleep(now_us)

    def _sleep(self, now_us: float) -> None:
        """Schedule the next call of ``turn``, at the next token or event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_us = min(self.engines.next_us, self._waiting[0][0] if self._waiting else LAST_US)
        if next_us < LAST_US:
            delay_s = max(next_us - now_us, 0.0) / 1e6 / self.speed
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.turn)
