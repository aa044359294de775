"""Answers in the shapes of OpenAI's API: filler text of the right number of tokens, whole or in chunks."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from kernelsight.server.prompts import WORDS
from kernelsight.server.requests import CompletionRequest

DONE = b"data: [DONE]\n\n"
# made once: json.dumps makes an encoder a call where the separators are not its own
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def filler(first: int, count: int) -> str:
    """Return ``count`` tokens of text from the ``first`` on.

    >>> filler(0, 2), len(filler(12, 5)) // 4
    (' the and', 5)
    """
    return "".join(WORDS[number % len(WORDS)] for number in range(first, first + count))


class Choice:
    """One answer to one prompt: its tokens so far, and those already sent."""

    def __init__(self, index: int, prompt: int, output: int, reason: str, job: Job) -> None:
        self.index, self.prompt, self.output, self.reason, self._job = index, prompt, output, reason, job
        self.target, self.given, self.sent, self.cached = output, 0, 0, 0
        self.slot, self.last_us = -1, -1.0

    def give(self, count: int, time_us: float) -> None:
        """Take tokens, which the engine has sampled at ``time_us``."""
        self._job.note(self, count, time_us)
        self.given += count
        self.last_us = time_us
        self._job.ready.set()


class Job:
    """One HTTP request: the choices of its answer, whole or as events of a stream."""

    def __init__(self, request: CompletionRequest, model: str, name: str, note: Any) -> None:
        self.asked, self.model, self.note = request, model, note
        self.name, self.created = ("chatcmpl-" if request.chat else "cmpl-") + name, int(time.time())
        self.choices: list[Choice] = []
        self.ready = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether every choice has all its tokens."""
        return all(choice.given == choice.output for choice in self.choices)

    def usage(self) -> dict[str, Any]:
        """Return the tokens of all prompts and answers so far."""
        prompts = sum(choice.prompt for choice in self.choices if choice.index % self.asked.choices == 0)
        given, cached = (sum(getattr(choice, name) for choice in self.choices) for name in ("given", "cached"))
        details = {"cached_tokens": cached}
        return {
            "prompt_tokens": prompts,
            "total_tokens": prompts + given,
            "completion_tokens": given,
            "prompt_tokens_details": details,
        }

    def body(self) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        choices = []
        for choice in self.choices:
            text, ended = filler(0, choice.output), {"finish_reason": choice.reason, "stop_reason": None}
            message = {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
            choices.append({"index": choice.index, **message, "logprobs": None, **ended})
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return self._body(kind, choices) | {"usage": self.usage()}

    def chunks(self) -> bytes:
        """Return the events of all tokens that were given since the last call; at the end those that end a stream."""
        events = []
        for choice in self.choices:
            if choice.sent == choice.given:
                continue
            text = filler(choice.sent, choice.given - choice.sent)
            if self.asked.chat and choice.sent == 0:
                events.append(self._chunk(choice.index, {"delta": {"role": "assistant", "content": ""}}, None))
            choice.sent = choice.given
            reason = choice.reason if choice.given == choice.output else None
            events.append(self._chunk(choice.index, {"delta": {"content": text}} if self.asked.chat else {"text": text},
                                      reason))  # fmt: skip
        if self.finished:
            if self.asked.include_usage:
                events.append(_event(self._body(self._kind, []) | {"usage": self.usage()}))
            events.append(DONE)
        return b"".join(events)

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.asked.chat else "text_completion"

    def _chunk(self, index: int, content: dict[str, Any], reason: str | None) -> bytes:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        if reason is not None or not self.asked.chat:
            choice["stop_reason"] = None
        body = self._body(self._kind, [choice])
        if self.asked.continuous_usage:
            body["usage"] = self.usage()
        elif self.asked.include_usage:
            body["usage"] = None
        return _event(body)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.name, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + ENCODE(body).encode() + b"\n\n"
