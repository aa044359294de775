"""Parsing of OpenAI API requests, and errors with the messages of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelsight.server.prompts import chat_text

# vLLM's default max_tokens of a completion
COMPLETION_TOKENS = 16
MOST_CHOICES = 128
# field with the text of a part, by type (vLLM 0.11.0: MM_PARSER_MAP of entrypoints/chat_utils.py)
TEXT_FIELDS = {"text": "text", "input_text": "text", "refusal": "refusal", "thinking": "thinking"}


class Refused(Exception):
    """A request that is answered with an error; ``status``: HTTP status, ``kind``: vLLM's error type."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.message, self.status, self.kind, self.param = message, status, kind, param

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the error response."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


class CompletionRequest(NamedTuple):
    """A parsed request: token ids of each prompt, choices per prompt, and options of the response."""

    chat: bool
    prompts: list[np.ndarray]
    choices: int
    max_tokens: int | None  # None: the output ends by itself
    stream: bool
    include_usage: bool
    continuous_usage: bool
    priority: int


def read_request(
    body: Any, chat: bool, model: str, names: set[str], max_model_len: int, tokens_of: Callable[[str], np.ndarray]
) -> CompletionRequest:
    """Return a parsed request; fields that do not affect timing, such as sampling parameters, are ignored.

    ``model``: default model name; ``names``: all model names that are accepted; ``tokens_of``: tokenizer. Refused:
    requests that vLLM refuses.
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
    max_tokens = body.get("max_completion_tokens") if chat else None
    max_tokens = (
        _whole_number(body, "max_tokens", 1) if max_tokens is None else _whole_number(body, "max_completion_tokens", 1)
    )
    if max_tokens is None and body.get("ignore_eos"):
        max_tokens = max_model_len - max(prompt_ids.size for prompt_ids in prompts)
    elif max_tokens is None and not chat:
        max_tokens = COMPLETION_TOKENS
    for prompt in prompts:
        _check_length(prompt.size, max_tokens, max_model_len)
    choices = _whole_number(body, "n", 1) or 1
    if choices * len(prompts) > MOST_CHOICES:
        raise Refused(f"{choices * len(prompts)} answers are asked for; ask for at most {MOST_CHOICES} at once.")
    include_usage, continuous_usage = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
    priority = body.get("priority") or 0
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 2**31:
        raise Refused("`priority` is not a whole number.", param="priority")
    return CompletionRequest(
        chat, prompts, choices, max_tokens, stream, include_usage, include_usage and continuous_usage, priority
    )


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat request, each with its content as one text. Refused: content that is no text."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(entry, Mapping) for entry in messages):
        raise Refused("`messages` is not a list of messages.", param="messages")
    return [{**message, "content": _text_of(message.get("content"))} for message in messages]


def _text_of(content: Any) -> str:
    """Return the content of a message as one text: a text, a list of parts, or null."""
    if not isinstance(content, str | list | None):
        raise Refused("`content` of a message is neither text nor a list of parts.", param="messages")
    return content if isinstance(content, str) else "".join(map(_text_of_part, content or []))


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise Refused("a part of a message is neither text nor an object.", param="messages")
    kind = part.get("type", next(iter(part), None))
    if not isinstance(kind, str) or kind not in TEXT_FIELDS:
        message = f"a part of type {kind!r} cannot be timed: no encoder is modelled; give text alone."
        raise Refused(message, param="messages")
    text = part.get(TEXT_FIELDS[kind]) or ""
    if not isinstance(text, str):
        raise Refused(f"`{TEXT_FIELDS[kind]}` of a part is not text.", param="messages")
    return text


def _prompts(prompt: Any, tokens_of: Callable[[str], np.ndarray]) -> list[np.ndarray]:
    """Return the token ids of a completion's prompts: a text, token ids, or a list of either. Refused: others."""
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


def _whole_number(body: Mapping[str, Any], name: str, minimum: int) -> int | None:
    """Return an integer field, None if absent. Refused: not an integer, or below ``minimum``."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise Refused(f"{name} must be at least {minimum}, got {value!r}.", param=name)
    return value


def _check_length(prompt: int, max_tokens: int | None, max_model_len: int) -> None:
    """Check a prompt's length, also with ``max_tokens``, against the model's context. Refused: empty or too long."""
    if prompt == 0:
        raise Refused("The prompt cannot be empty", param="prompt")
    if prompt >= max_model_len:
        raise Refused(
            f"This model's maximum context length is {max_model_len} tokens. However, your request has {prompt} input "
            "tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    if max_tokens is not None and prompt + max_tokens > max_model_len:
        raise Refused(
            f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context length "
            f"is {max_model_len} tokens and your request has {prompt} input tokens ({max_tokens} > {max_model_len} - "
            f"{prompt}).",
            param="max_tokens",
        )
