"""A client of OpenAI's API that notes when each token arrives: little work while it runs, all parsing afterwards."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

import numpy as np

EVENT = re.compile(rb"data: (\{.*?\})\n\n")
STATUS = re.compile(rb"HTTP/1\.1 (\d+)")


class Asked(NamedTuple):
    """Lengths of a request, and how its client behaves."""

    prompt_tokens: int
    output_tokens: int
    leaves: bool = False  # when the first token is there
    pause_s: float = 0.0  # reads nothing for so long after the first token


class Answered(NamedTuple):
    """What a client saw: moments in seconds of the event loop's clock, and the tokens that each one brought."""

    asked: Asked
    sent_s: float
    status: int
    times_s: np.ndarray
    tokens: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether all tokens have arrived."""
        return self.status == 200 and int(self.tokens.sum()) == self.asked.output_tokens


class _Connection(asyncio.Protocol):
    """Keeps what arrives, and when."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.loop = asked, asyncio.get_running_loop()
        self.received: list[tuple[float, bytes]] = []
        self.closed = self.loop.create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        first = b"data: " in data and not any(b"data: " in each for _, each in self.received[:2])
        self.received.append((self.loop.time(), data))
        if first and self.asked.leaves:
            self.transport.abort()
        elif first and self.asked.pause_s:
            self.transport.pause_reading()
            self.loop.call_later(self.asked.pause_s, self.transport.resume_reading)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def ask(port: int, asked: Asked, dice: np.random.Generator) -> Answered:
    """Send a completion of drawn token ids, and wait for its end."""
    body = {"prompt": dice.integers(0, 100_000, asked.prompt_tokens).tolist(), "max_tokens": asked.output_tokens}
    content = json.dumps(body | {"stream": True}).encode()
    loop = asyncio.get_running_loop()
    transport, own = await loop.create_connection(lambda: _Connection(asked), "127.0.0.1", port)
    sent_s = loop.time()
    head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\ncontent-type: application/json\r\n"
    transport.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    await own.closed
    return _read(asked, sent_s, own.received)


def _read(asked: Asked, sent_s: float, received: Sequence[tuple[float, bytes]]) -> Answered:
    """Return the tokens of what arrived; an event has the time of its last byte."""
    content = b"".join(data for _, data in received)
    ends = np.cumsum([len(data) for _, data in received])
    times_s, tokens = [], []
    for event in EVENT.finditer(content):
        choices = json.loads(event[1])["choices"]
        if choices and choices[0]["text"]:
            times_s.append(received[int(np.searchsorted(ends, event.end()))][0])
            tokens.append(choices[0]["text"].count(" "))
    status = STATUS.match(content)
    return Answered(asked, sent_s, int(status[1]) if status else 0, np.array(times_s), np.array(tokens, np.int64))


async def closed_loop(port: int, streams: int, requests: Sequence[Asked], seed: int) -> list[Answered]:
    """Send requests over ``streams`` streams, each the next one when its last has ended."""
    waiting, answers = list(reversed(requests)), []
    dice = np.random.default_rng(seed)

    async def stream() -> None:
        while waiting:
            answers.append(await ask(port, waiting.pop(), dice))

    await asyncio.gather(*(stream() for _ in range(streams)))
    return answers


async def late_ms(of: Awaitable[Any], every_s: float = 0.02) -> tuple[Any, np.ndarray]:
    """Return what ``of`` returns, and how late a timer of this process was meanwhile, in milliseconds."""
    loop, lateness = asyncio.get_running_loop(), []
    task = asyncio.ensure_future(of)
    while not task.done():
        due_s = loop.time() + every_s
        await asyncio.sleep(every_s)
        lateness.append((loop.time() - due_s) * 1e3)
    return task.result(), np.array(lateness)
