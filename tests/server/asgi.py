"""A client that calls an ASGI application in this process, and can leave in the middle of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.types import ASGIApp


class Reply(NamedTuple):
    """What was answered; ``parts``: the body as it was sent, ``times_s``: when, by the event loop's clock."""

    status: int
    parts: list[bytes]
    times_s: list[float]

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the events of a stream, the mark of its end included."""
        data = [line[6:] for line in self.body.decode().split("\n\n") if line]
        return [json.loads(line) if line != "[DONE]" else line for line in data]


async def ask(
    app: ASGIApp, method: str, path: str, content: Any = None, leave_after: int | None = None, slow_s: float = 0.0
) -> Reply:
    """Send one request; ``leave_after``: parts of the answer after which the client disconnects."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    scope = {
        **{"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "http_version": "1.1"},
        **{"raw_path": path.encode(), "root_path": "", "scheme": "http", "server": ("test", 80), "client": ("t", 1)},
    }
    sent, left, parts, times_s, status = False, asyncio.Event(), [], [], []

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])
        elif message.get("body"):
            parts.append(message["body"])
            times_s.append(asyncio.get_running_loop().time())
            if slow_s:
                await asyncio.sleep(slow_s)
        if leave_after is not None and len(parts) >= leave_after:
            left.set()

    await app(scope, receive, send)
    return Reply(status[0], parts, times_s)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do: no machine is too slow."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now_s = max(self.now_s, self._scheduled[0].when())
        super()._run_once()


def on_loop(app: ASGIApp, main: Callable[[], Awaitable[Any]], loop: Callable[[], Any] = VirtualLoop) -> Any:
    """Run a coroutine while an application is up; ``loop`` makes the event loop."""

    async def run() -> Any:
        async with app.router.lifespan_context(app):
            return await main()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(run())
