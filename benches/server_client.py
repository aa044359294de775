"""An OpenAI API client that records the arrival time of each token; it parses responses after they end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

import numpy as np

EVENT = re.compile(rb"data: (\{.*?\})\n\n")
STATUS = re.compile(rb"HTTP/1\.1 (\d+)")


class Request(NamedTuple):
    """A request's lengths in tokens, and its client's behaviour."""

    prompt_tokens: int
    output_tokens: int
    leaves: bool = False  # disconnects after the first token
    pause_s: float = 0.0  # stops reading for this long after the first token


class Response(NamedTuple):
    """A client's record of a response: times of chunks, s of the event loop's clock, and tokens of each."""

    request: Request
    sent_s: float
    status: int
    times_s: np.ndarray
    tokens: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether all tokens have arrived."""
        return self.status == 200 and int(self.tokens.sum()) == self.request.output_tokens


class _Connection(asyncio.Protocol):
    """Records received bytes with their times."""

    def __init__(self, request: Request) -> None:
        self.request, self.loop = request, asyncio.get_running_loop()
        self.received: list[tuple[float, bytes]] = []
        self.closed = self.loop.create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        first = b"data: " in data and not any(b"data: " in each for _, each in self.received[:2])
        self.received.append((self.loop.time(), data))
        if first and self.request.leaves:
            self.transport.abort()
        elif first and self.request.pause_s:
            self.transport.pause_reading()
            self.loop.call_later(self.request.pause_s, self.transport.resume_reading)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def send_completion(port: int, request: Request, random: np.random.Generator) -> Response:
    """Send a completion request of random token ids and return its response."""
    body = {"prompt": random.integers(0, 100_000, request.prompt_tokens).tolist(), "max_tokens": request.output_tokens}
    content = json.dumps(body | {"stream": True}).encode()
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(lambda: _Connection(request), "127.0.0.1", port)
    sent_s = loop.time()
    header = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\ncontent-type: application/json\r\n"
    transport.write(f"{header}content-length: {len(content)}\r\n\r\n".encode() + content)
    await connection.closed
    return _read(request, sent_s, connection.received)


def _read(request: Request, sent_s: float, received: Sequence[tuple[float, bytes]]) -> Response:
    """Return the parsed response; a chunk has the time of its last byte."""
    content = b"".join(data for _, data in received)
    ends = np.cumsum([len(data) for _, data in received])
    times_s, tokens = [], []
    for event in EVENT.finditer(content):
        choices = json.loads(event[1])["choices"]
        if choices and choices[0]["text"]:
            times_s.append(received[int(np.searchsorted(ends, event.end()))][0])
            tokens.append(choices[0]["text"].count(" "))
    status = STATUS.match(content)
    return Response(request, sent_s, int(status[1]) if status else 0, np.array(times_s), np.array(tokens, np.int64))


async def closed_loop(port: int, streams: int, requests: Sequence[Request], seed: int) -> list[Response]:
    """Return the responses of requests sent over ``streams`` concurrent streams."""
    waiting, responses = list(reversed(requests)), []
    random = np.random.default_rng(seed)

    async def stream() -> None:
        while waiting:
            responses.append(await send_completion(port, waiting.pop(), random))

    await asyncio.gather(*(stream() for _ in range(streams)))
    return responses


async def late_ms(awaitable: Awaitable[Any], every_s: float = 0.02) -> tuple[Any, np.ndarray]:
    """Return the result of ``awaitable``, and the delays of a timer of this process meanwhile, ms."""
    loop, lateness = asyncio.get_running_loop(), []
    task = asyncio.ensure_future(awaitable)
    while not task.done():
        due_s = loop.time() + every_s
        await asyncio.sleep(every_s)
        lateness.append((loop.time() - due_s) * 1e3)
    return task.result(), np.array(lateness)
