"""ASGI application of the server: OpenAI's endpoints over live engines; models, health, version and metrics as vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kernelsight.server.engine_driver import EngineDriver
from kernelsight.server.live_engines import LiveEngines
from kernelsight.server.metrics import Metrics
from kernelsight.server.prompts import block_keys
from kernelsight.server.requests import CompletionRequest, Refused, read_request
from kernelsight.server.responses import Choice, Job
from kernelsight.version import VERSION

# of a request body, bytes; a prompt of a million token ids as text is 7 MB
LARGEST_BODY = 32 * 2**20
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
        serving = self.serving
        try:
            body = await _body_of(request)
            completion = read_request(
                body, chat, serving.names[0], set(serving.names), serving.max_model_len, serving.tokens_of
            )
            model = (body.get("model") if isinstance(body, dict) else None) or serving.names[0]
            job = self._send(completion, model, request.headers.get("x-request-id") or uuid.uuid4().hex)
        except Refused as refused:
            return JSONResponse(refused.as_dict(), refused.status)
        except ClientDisconnect:
            return Response(status_code=499)
        return _Stream(self, job)

    def _send(self, request: CompletionRequest, model: str, name: str) -> Job:
        """Send all choices of a request to the engines, and return it as a job.

        Refused: the queue is full, or a choice does not fit into the KV cache.
        """
        assert self.driver is not None
        job = Job(request, model, name, self._note)
        if len(request.prompts) * request.choices > self.engines.free:
            raise Refused(
                f"{len(self.engines.active)} requests wait or run, as many as this server keeps; try again later.",
                429, "TooManyRequestsError",
            )  # fmt: skip
        for prompt in request.prompts:
            keys = block_keys(prompt, self.engines.hash_tokens)
            for _ in range(request.choices):
                output, reason = self._length(request, prompt.size)
                choice = Choice(len(job.choices), prompt.size, output, reason, job)
                job.choices.append(choice)
                choice.slot = self.driver.send(prompt.size, output, keys, request.priority, choice)
                if choice.slot < 0:
                    job.choices.pop()
                    self.leave(job)
                    raise Refused("the KV cache of the engine is smaller than this request; shorten it.")
        return job

    def _length(self, request: CompletionRequest, prompt: int) -> tuple[int, str]:
        """Return (output tokens, finish_reason) of a choice; without ``max_tokens`` the length is drawn."""
        if request.max_tokens is not None:
            return request.max_tokens, "length"
        low = max(int(self.serving.output_len * self.serving.range_ratio), 1)
        length = int(self._generator.integers(low, self.serving.output_len + 1))
        limit = self.serving.max_model_len - prompt
        return (length, "stop") if length < limit else (limit, "length")

    def _note(self, choice: Choice, count: int, time_us: float) -> None:
        """Update metrics before ``count`` tokens are given to a choice."""
        record = self.engines.requests[choice.slot]
        engine, first = int(record["replica"]), choice.given == 0
        if first:
            choice.cached = int(record["cached_tokens"])
            self.metrics.note_first(engine, choice.prompt, choice.cached, (time_us - record["sent_us"]) / 1e6)
        self.metrics.note_tokens(engine, count, None if first else (time_us - choice.last_us) / 1e6)
        if choice.given + count == choice.output:
            times = self.driver.times(choice.slot, time_us)
            self.metrics.note_finished(engine, choice.prompt, choice.output, times, choice.reason)

    def leave(self, job: Job) -> None:
        """Cancel the unfinished choices of a request whose client disconnected."""
        for choice in job.choices:
            if choice.given < choice.output:
                self.metrics.note_aborted(int(self.engines.requests[choice.slot]["replica"]))
                self.driver.cancel(choice.slot, choice)

    async def _models(self, _: Request) -> Response:
        serving = self.serving
        shared = {"object": "model", "created": self._started, "owned_by": "kernelsight"}
        cards = [{"id": name, **shared, "root": name, "max_model_len": serving.max_model_len} for name in serving.names]
        return JSONResponse({"object": "list", "data": cards})

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": f"kernelsight {VERSION}"})

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
                last = job.finished
                if job.request.stream and not watching.done():
                    # a slow client blocks here; its next event has all tokens that arrived meanwhile
                    await send({"type": "http.response.body", "body": job.chunks(), "more_body": not last})
            if last and not job.request.stream and not watching.done():
                await JSONResponse(job.body())(scope, receive, send)
        finally:
            watching.cancel()
            self._server.leave(job)

    async def _watch(self, receive: Receive) -> None:
        """Return when the client has disconnected."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._job.ready.set()


async def _body_of(request: Request) -> Any:
    """Return the JSON body of a request. Refused: not JSON, or larger than LARGEST_BODY."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > LARGEST_BODY:
            raise Refused(f"the body is larger than {LARGEST_BODY >> 20} MiB.", 413, "RequestEntityTooLargeError")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}.") from None


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse({"detail": "Not Found" if status == 404 else "Method Not Allowed"}, status)
