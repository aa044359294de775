"""Responses of OpenAI's API: filler text of the right number of tokens, as one body or as stream events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from kernelsight.server.engine_driver import Delivery
from kernelsight.server.requests import STOPPED, CompletionRequest
from kernelsight.serving.load.prompts import WORD_BYTES, WORDS

DONE = b"data: [DONE]\n\n"
# reused: json.dumps creates an encoder per call for other than default separators
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def filler(first: int, count: int) -> str:
    """Return a text of ``count`` tokens, from filler token number ``first`` on.

    >>> filler(0, 2), len(filler(12, 5)) // 4
    (' the and', 5)
    """
    start = first % len(WORDS)
    words = "".join(WORDS) * ((start + count) // len(WORDS) + 1)
    return words[WORD_BYTES * start : WORD_BYTES * (start + count)]


class Choice:
    """One choice of a response: its prompt and output length, and tokens given by the engine and sent so far.

    ``reason``: finish_reason; ``cached``: prompt tokens found in the prefix cache; ``first_us``, ``last_us``: simulated
    times of the first and the last token so far, -1 before them.
    """

    def __init__(self, index: int, prompt: int, output: int, reason: str, job: Job) -> None:
        self.index, self.prompt, self.output, self.reason, self._job = index, prompt, output, reason, job
        self.given, self.sent, self.cached = 0, 0, 0
        self.first_us = self.last_us = -1.0

    def give(self, tokens: Delivery) -> None:
        """Receive tokens of the engine."""
        if self.given == 0:
            self.cached, self.first_us = tokens.cached_tokens, tokens.time_us
        self._job.note(self, tokens)
        self.given += tokens.count
        self.last_us = tokens.time_us
        self._job.ready.set()


class Job:
    """One HTTP request and the choices of its response.

    ``note``: called with (choice, delivery) before tokens are given; ``ready``: set when tokens arrive, or when it is
    ``stopped``: the server ends before the answer does.
    """

    def __init__(self, request: CompletionRequest, name: str, note: Callable[[Choice, Delivery], None]) -> None:
        self.request, self.note = request, note
        self.name, self.created = ("chatcmpl-" if request.chat else "cmpl-") + name, int(time.time())
        self.choices: list[Choice] = []
        self.stopped = False
        self.ready = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether all choices have all their tokens."""
        return all(choice.given == choice.output for choice in self.choices)

    def usage(self) -> dict[str, Any]:
        """Return the ``usage`` of all prompts and outputs so far."""
        prompts = sum(choice.prompt for choice in self.choices if choice.index % self.request.choices == 0)
        given, cached = (sum(getattr(choice, name) for choice in self.choices) for name in ("given", "cached"))
        details = {"cached_tokens": cached}
        return {
            "prompt_tokens": prompts,
            "total_tokens": prompts + given,
            "completion_tokens": given,
            "prompt_tokens_details": details,
        }

    def body(self) -> dict[str, Any]:
        """Return the response body of a request that does not stream."""
        choices = []
        for choice in self.choices:
            text, ended = filler(0, choice.output), {"finish_reason": choice.reason, "stop_reason": None}
            message = {"message": {"role": "assistant", "content": text}} if self.request.chat else {"text": text}
            choices.append({"index": choice.index, **message, "logprobs": None, **ended})
        kind = "chat.completion" if self.request.chat else "text_completion"
        return self._body(kind, choices) | {"usage": self.usage()}

    def chunks(self) -> bytes:
        """Return the server-sent events of tokens given since the last call; when finished, also usage and [DONE];
        when stopped, an error."""
        events = []
        for choice in self.choices:
            if choice.sent == choice.given:
                continue
            text = filler(choice.sent, choice.given - choice.sent)
            if self.request.chat and choice.sent == 0:
                events.append(self._chunk(choice.index, {"delta": {"role": "assistant", "content": ""}}, None))
            choice.sent = choice.given
            reason = choice.reason if choice.given == choice.output else None
            content = {"delta": {"content": text}} if self.request.chat else {"text": text}
            events.append(self._chunk(choice.index, content, reason))
        if self.finished:
            if self.request.include_usage:
                events.append(_event(self._body(self._kind, []) | {"usage": self.usage()}))
            events.append(DONE)
        elif self.stopped:
            events.append(_event(STOPPED.as_dict()))
        return b"".join(events)

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.request.chat else "text_completion"

    def _chunk(self, index: int, content: dict[str, Any], reason: str | None) -> bytes:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        if reason is not None or not self.request.chat:
            choice["stop_reason"] = None
        body = self._body(self._kind, [choice])
        if self.request.continuous_usage:
            body["usage"] = self.usage()
        elif self.request.include_usage:
            body["usage"] = None
        return _event(body)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + ENCODE(body).encode() + b"\n\n"
