"""Clock of the server: advances the engines to the present moment, and delivers each token at its time.

Simulated time is the event loop's time since the start, times ``speed``. A late wake-up does not shift the schedule:
steps begin where the last one ended, and only arrivals take their time from the clock. A turn simulates MOST_US, then
others run: on a machine that is too slow for ``speed``, simulated time passes slower, and between two turns the event
loop looks POLLS times for what else is there. One look may accept one connection: a client behind hundreds of others
would otherwise wait for as many turns.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kernelsight.server.live_engines import LAST_US, LiveEngines, Tokens

# of one engine with some requests; of more engines or requests in proportion less
MOST_US, SOME_REQUESTS = 1e6, 16
POLLS = 64


class Delivery(NamedTuple):
    """Tokens of one request, and what its engine knew of the request when it sampled them; times in simulated us."""

    time_us: float
    count: int
    engine: int
    sent_us: float
    scheduled_us: float
    cached_tokens: int  # of the prompt, found in the prefix cache


class TokenReceiver(Protocol):
    """The receiver of one request's tokens; compared by identity."""

    def give(self, tokens: Delivery) -> None:
        """Receive tokens of the request."""


class _Sent:
    """A request that was sent: its slot and engine, tokens still to sample and to deliver, and their receiver."""

    def __init__(self, slot: int, engine: int, output: int, receiver: TokenReceiver) -> None:
        self.slot, self.engine, self.receiver = slot, engine, receiver
        self.to_sample = self.to_deliver = output


class EngineDriver:
    """Driver of live engines: advances them with the event loop's clock, and delivers their tokens.

    ``speed``: simulated seconds per real second; ``now_s``: clock, None: that of the running event loop.
    """

    def __init__(self, engines: LiveEngines, speed: float, now_s: Callable[[], float] | None = None) -> None:
        self.engines, self.speed = engines, speed
        self._now_s = now_s or asyncio.get_running_loop().time
        self._start_s, self._start_us = self._now_s(), engines.reached_us
        # by slot, requests with tokens to sample; by receiver, those with tokens to deliver: the last are due later
        self._in_slot: dict[int, _Sent] = {}
        self._undelivered: dict[TokenReceiver, _Sent] = {}
        self._waiting: list[tuple[float, int, Delivery, _Sent]] = []
        self._count, self._timer = 0, None
        # whether the last turn was behind the clock; looks of the event loop before the next one
        self._late, self._polls = False, 0

    def now_us(self) -> float:
        """Return the present moment in simulated time, us, always later than what the engines have reached.

        Where they are further behind the clock than a turn may simulate, the clock is set back; between the turns of
        such a machine it stands.
        """
        if self._polls:
            return math.nextafter(self.engines.reached_us, math.inf)
        now_us = self._start_us + (self._now_s() - self._start_s) * 1e6 * self.speed
        work = max(self.engines.engines.size, len(self.engines.active) / SOME_REQUESTS)
        most_us = max(self.engines.reached_us, self.engines.next_us) + MOST_US / work
        self._late = now_us > most_us
        self._start_us -= max(now_us - most_us, 0.0)
        return max(min(now_us, most_us), math.nextafter(self.engines.reached_us, math.inf))

    def send(self, prompt: int, output: int, keys: Sequence[bytes], priority: int, receiver: TokenReceiver) -> bool:
        """Send a request now; return whether the engine takes it. See ``LiveEngines.add``.

        Tokens may be delivered before this returns: each delivery says all that its receiver needs to know.
        """
        slot, tokens = self.engines.add(self.now_us(), prompt, output, keys, priority)
        self._keep(tokens)  # of other requests: no step begins at the moment that this one is sent
        if slot >= 0:
            sent = _Sent(slot, int(self.engines.requests["replica"][slot]), output, receiver)
            self._in_slot[slot] = self._undelivered[receiver] = sent
        if not self._polls:
            self.turn()
        return slot >= 0

    def cancel(self, receiver: TokenReceiver) -> int | None:
        """Cancel the request of a receiver; return its engine, None if nothing of it was still to be delivered."""
        sent = self._undelivered.pop(receiver, None)
        if sent is None:
            return None
        if self._in_slot.get(sent.slot) is sent:
            del self._in_slot[sent.slot]
            self.engines.cancel(sent.slot)
            if not self._polls:
                self.turn()
        return sent.engine

    def _keep(self, tokens: Sequence[Tokens]) -> None:
        """Queue tokens until their time, with what the records of their requests say now."""
        for time_us, slot, count in tokens:
            sent = self._in_slot.get(slot)
            if sent is None:
                continue  # cancelled
            record = self.engines.requests[slot]
            moments = float(record["sent_us"]), float(record["scheduled_us"])
            delivery = Delivery(time_us, count, sent.engine, *moments, int(record["cached_tokens"]))
            self._count += 1
            heapq.heappush(self._waiting, (time_us, self._count, delivery, sent))
            sent.to_sample -= count
            if sent.to_sample == 0:
                del self._in_slot[slot]

    def turn(self) -> None:
        """Advance the engines, deliver due tokens, and schedule the next wake-up."""
        self._polls = 0
        now_us = self.now_us()
        self._keep(self.engines.advance(now_us))
        while self._waiting and self._waiting[0][0] <= now_us:
            _, _, delivery, sent = heapq.heappop(self._waiting)
            if self._undelivered.get(sent.receiver) is not sent:
                continue  # cancelled
            sent.to_deliver -= delivery.count
            if sent.to_deliver == 0:
                del self._undelivered[sent.receiver]
            sent.receiver.give(delivery)
        self._sleep(now_us)

    def _sleep(self, now_us: float) -> None:
        """Schedule the next call of ``turn``, at the next token or event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_us = min(self.engines.next_us, self._waiting[0][0] if self._waiting else LAST_US)
        if next_us == LAST_US:
            return
        loop = asyncio.get_running_loop()
        if self._late:
            self._polls = POLLS
            self._timer = loop.call_soon(self._poll)
        else:
            self._timer = loop.call_later(max(next_us - now_us, 0.0) / 1e6 / self.speed, self.turn)

    def _poll(self) -> None:
        self._polls -= 1
        self._timer = asyncio.get_running_loop().call_soon(self._poll if self._polls else self.turn)
