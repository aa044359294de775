"""Requests of OpenAI's API as this server takes them, and its refusals in the words of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelsight.server.prompts import chat_text

# what vLLM generates where a completion states no max_tokens
COMPLETION_TOKENS = 16
MOST_CHOICES = 128


class Refused(Exception):
    """A request that is answered with an error; ``status``: of HTTP, ``kind``: vLLM's name for it."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.message, self.status, self.kind, self.param = message, status, kind, param

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the answer."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


class CompletionRequest(NamedTuple):
    """A request: token ids of each prompt, choices of each, and how its answer is sent."""

    chat: bool
    prompts: list[np.ndarray]
    choices: int
    max_tokens: int | None  # None: the answer ends by itself
    stream: bool
    include_usage: bool
    continuous_usage: bool
    priority: int


def read_request(
    body: Any, chat: bool, model: str, names: set[str], max_model_len: int, tokens_of: Callable[[str], np.ndarray]
) -> CompletionRequest:
    """Return a request; fields that no time depends on are not looked at.

    ``model``: its name where the request states none; ``names``: all that it answers to. Refused: what vLLM refuses.
    """
    if not isinstance(body, Mapping):
        raise Refused("the body is not a JSON object.")
    model_name = body.get("model") or model
    if model_name not in names:
        raise Refused(f"The model `{model_name}` does not exist.", 404, "NotFoundError", "model")
    prompts = [tokens_of(chat_text(_messages(body)))] if chat else _prompts(body.get("prompt"), tokens_of)
    options = body.get("stream_options") or {}
    stream = bool(body.get("stream"))
    if options and not stream:
        raise Refused("Stream options can only be defined when `stream=True`.", param="stream_options")
    if not isinstance(options, Mapping):
        raise Refused("`stream_options` is not an object.", param="stream_options")
    most = body.get("max_completion_tokens") if chat else None
    most = _whole_number(body, "max_tokens", 1) if most is None else _whole_number(body, "max_completion_tokens", 1)
    if most is None and body.get("ignore_eos"):
        most = max_model_len - max(prompt_ids.size for prompt_ids in prompts)
    elif most is None and not chat:
        most = COMPLETION_TOKENS
    for prompt in prompts:
        _check_length(prompt.size, most, max_model_len)
    choices = _whole_number(body, "n", 1) or 1
    if choices * len(prompts) > MOST_CHOICES:
        raise Refused(f"{choices * len(prompts)} answers are asked for; ask for at most {MOST_CHOICES} at once.")
    include, continuous = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
    priority = body.get("priority") or 0
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 2**31:
        raise Refused("`priority` is not a whole number.", param="priority")
    return CompletionRequest(chat, prompts, choices, most, stream, include, include and continuous, priority)


def _messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(entry, Mapping) for entry in messages):
        raise Refused("`messages` is not a list of messages.", param="messages")
    for message in messages:
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise Refused("`content` of a message is neither text nor a list of parts.", param="messages")
    return messages


def _prompts(prompt: Any, tokens_of: Callable[[str], np.ndarray]) -> list[np.ndarray]:
    """Return the token ids of a completion's prompts: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [tokens_of(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(entry, int) and not isinstance(entry, bool) for entry in prompt):
            return [_ids(prompt)]
        if all(isinstance(entry, str) for entry in prompt):
            return [tokens_of(entry) for entry in prompt]
        if all(isinstance(entry, list) and entry and all(type(token) is int for token in entry) for entry in prompt):
            return [_ids(entry) for entry in prompt]
    raise Refused("`prompt` is neither text nor token ids, nor a list of these.", param="prompt")


def _ids(tokens: list[int]) -> np.ndarray:
    try:
        return np.array(tokens, np.int64)
    except OverflowError:
        raise Refused("a token id of `prompt` is out of vocabulary.", param="prompt") from None


def _whole_number(body: Mapping[str, Any], name: str, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refused(f"{name} must be at least {least}, got {value!r}.", param=name)
    return value


def _check_length(prompt: int, most: int | None, longest: int) -> None:
    if prompt == 0:
        raise Refused("The prompt cannot be empty", param="prompt")
    if prompt >= longest:
        raise Refused(
            f"This model's maximum context length is {longest} tokens. However, your request has {prompt} input "
            "tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    if most is not None and prompt + most > longest:
        raise Refused(
            f"'max_tokens' or 'max_completion_tokens' is too large: {most}. This model's maximum context length is "
            f"{longest} tokens and your request has {prompt} input tokens ({most} > {longest} - {prompt}).",
            param="max_tokens",
        )
