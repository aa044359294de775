"""ASGI application of the server: OpenAI's endpoints over live engines; models, health, version and metrics as vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kernelsight.files.budget import Budget
from kernelsight.server.engine_driver import Delivery, EngineDriver
from kernelsight.server.live_engines import LiveEngines
from kernelsight.server.metrics import Metrics, RequestTimes
from kernelsight.server.requests import STOPPED, CompletionRequest, Refused, body_budget, read_request
from kernelsight.server.responses import ENCODE, Choice, Job
from kernelsight.serving.load.prompts import block_keys
from kernelsight.version import VERSION

# a body of more bytes is read in another thread, so that others' tokens are not late
READ_AT_ONCE = 1 << 16
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Serving(NamedTuple):
    """Settings of a server.

    ``names``: model names that requests may state, the first is the default; ``tokens_of``: tokenizer; ``speed``:
    simulated seconds per real second; ``output_len``, ``range_ratio``: length of outputs without max_tokens, uniform
    from ratio x length; ``cache``: labels of ``cache_config_info``.
    """

    engines: LiveEngines
    names: list[str]
    max_model_len: int
    tokens_of: Callable[[str], np.ndarray]
    speed: float
    seed: int
    output_len: int
    range_ratio: float
    cache: dict[str, object]


class Server:
    """The endpoints and their state; ``app``: the ASGI application."""

    def __init__(self, serving: Serving) -> None:
        self.serving, self.engines = serving, serving.engines
        self.metrics = Metrics(serving.names[0], serving.engines, serving.max_model_len, serving.cache)
        self._generator, self._started = np.random.default_rng(serving.seed), int(time.time())
        self.driver: EngineDriver | None = None
        self._jobs, self._stopping = set[Job](), False
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/ping", self._health, methods=["GET", "POST"]),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
            ],
            lifespan=self._run,
            exception_handlers={404: _not_found, 405: _not_found},
        )

    @contextlib.asynccontextmanager
    async def _run(self, _: Starlette) -> AsyncIterator[None]:
        self.driver = EngineDriver(self.engines, self.serving.speed)
        yield

    async def _complete(self, request: Request) -> Response | _Stream:
        return await self._answer(request, False)

    async def _chat(self, request: Request) -> Response | _Stream:
        return await self._answer(request, True)

    async def _answer(self, request: Request, chat: bool) -> Response | _Stream:
        try:
            content = await _content_of(request, body_budget(self.serving.max_model_len))
            read = functools.partial(self._read, content, chat)
            completion, keys = read() if len(content) <= READ_AT_ONCE else await asyncio.to_thread(read)
            job = self._send(completion, keys, request.headers.get("x-request-id") or uuid.uuid4().hex)
        except Refused as refused:
            return _json(refused.as_dict(), refused.status)
        except ClientDisconnect:
            return Response(status_code=499)
        return _Stream(self, job)

    def _read(self, content: bytes, chat: bool) -> tuple[CompletionRequest, list[list[bytes]]]:
        """Return the request of a body, and the keys of each prompt's hash blocks. Refused: it cannot be served."""
        serving = self.serving
        completion = read_request(content, chat, serving.names, serving.max_model_len, serving.tokens_of)
        return completion, [block_keys(prompt, self.engines.hash_tokens) for prompt in completion.prompts]

    def _send(self, request: CompletionRequest, keys: list[list[bytes]], name: str) -> Job:
        """Send all choices of a request to the engines, and return it as a job.

        Refused: the queue is full, a choice does not fit into the KV cache, or the server is being stopped.
        """
        assert self.driver is not None
        job = Job(request, name, self._note)
        if self._stopping:
            raise STOPPED
        if len(request.prompts) * request.choices > self.engines.free:
            raise Refused(
                f"{len(self.engines.active)} requests wait or run, as many as this server keeps; try again later.",
                429, "TooManyRequestsError",
            )  # fmt: skip
        for prompt, prompt_keys in zip(request.prompts, keys, strict=True):
            for _ in range(request.choices):
                output, reason = self._length(request, prompt.size)
                choice = Choice(len(job.choices), prompt.size, output, reason, job)
                job.choices.append(choice)
                if not self.driver.send(prompt.size, output, prompt_keys, request.priority, choice):
                    job.choices.pop()
                    self.leave(job)
                    raise Refused("the KV cache of the engine is smaller than this request; shorten it.")
        self._jobs.add(job)
        return job

    def _length(self, request: CompletionRequest, prompt: int) -> tuple[int, str]:
        """Return (output tokens, finish_reason) of a choice; without ``max_tokens`` the length is drawn."""
        if request.max_tokens is not None:
            return request.max_tokens, "length"
        low = max(int(self.serving.output_len * self.serving.range_ratio), 1)
        length = int(self._generator.integers(low, self.serving.output_len + 1))
        limit = self.serving.max_model_len - prompt
        return (length, "stop") if length < limit else (limit, "length")

    def _note(self, choice: Choice, tokens: Delivery) -> None:
        """Update metrics before tokens are given to a choice."""
        engine, first = tokens.engine, choice.given == 0
        if first:
            seconds = (tokens.time_us - tokens.sent_us) / 1e6
            self.metrics.note_first(engine, choice.prompt, choice.cached, seconds)
        self.metrics.note_tokens(engine, tokens.count, None if first else (tokens.time_us - choice.last_us) / 1e6)
        if choice.given + tokens.count == choice.output:
            times = RequestTimes(tokens.sent_us, tokens.scheduled_us, choice.first_us, tokens.time_us)
            self.metrics.note_finished(engine, choice.prompt, choice.output, times, choice.reason)

    def leave(self, job: Job) -> None:
        """Forget a job, and cancel its unfinished choices: its client disconnected, or the server is being stopped."""
        self._jobs.discard(job)
        for choice in job.choices:
            engine = self.driver.cancel(choice)
            if engine is not None:
                self.metrics.note_aborted(engine)

    def stop(self) -> None:
        """Refuse new requests, and end all answers now: their clients get an error."""
        self._stopping = True
        for job in self._jobs:
            job.stopped = True
            job.ready.set()

    async def _models(self, _: Request) -> Response:
        serving = self.serving
        shared = {"object": "model", "created": self._started, "owned_by": "kernelsight"}
        cards = [{"id": name, **shared, "root": name, "max_model_len": serving.max_model_len} for name in serving.names]
        return _json({"object": "list", "data": cards})

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _version(self, _: Request) -> Response:
        return _json({"version": f"kernelsight {VERSION}"})

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")


class _Stream:
    """The response to a request as an ASGI application: as stream events, or one body when it is finished."""

    def __init__(self, server: Server, job: Job) -> None:
        self._server, self._job = server, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job = self._job
        watching = asyncio.ensure_future(self._watch(receive))
        try:
            if job.request.stream:
                await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            last = False
            while not last and not watching.done():
                await job.ready.wait()
                job.ready.clear()
                last = job.finished or job.stopped
                if job.request.stream and not watching.done():
                    # a slow client blocks here; its next event has all tokens that arrived meanwhile
                    await send({"type": "http.response.body", "body": job.chunks(), "more_body": not last})
            if last and not job.request.stream and not watching.done():
                answer = _json(job.body()) if job.finished else _json(STOPPED.as_dict(), STOPPED.status)
                await answer(scope, receive, send)
        finally:
            watching.cancel()
            self._server.leave(job)

    async def _watch(self, receive: Receive) -> None:
        """Return when the client has disconnected."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._job.ready.set()


async def _content_of(request: Request, budget: Budget) -> bytes:
    """Return the body of a request. Refused: it is beyond the budget, or says so, and is not read further."""
    said = request.headers.get("content-length", "")
    content = bytearray()
    too_large = said.isdecimal() and (len(said) > 18 or int(said) > budget.bytes)
    if not too_large:
        async for part in request.stream():
            content += part
            too_large = len(content) > budget.bytes
            if too_large:
                break
    if too_large:
        most = f"the body is larger than {budget.bytes:,} bytes, the most for this model"
        raise Refused(f"{most}; send prompts in several requests.", 413, "RequestEntityTooLargeError")
    return bytes(content)


def _json(content: object, status: int = 200) -> Response:
    """Return a JSON response in ASCII, which any text can be written in."""
    return Response(ENCODE(content), status, media_type="application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _json({"detail": "Not Found" if status == 404 else "Method Not Allowed"}, status)
