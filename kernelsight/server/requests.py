"""Parsing of OpenAI API requests, and errors with the messages of vLLM.

What a request asks for is counted, and refused if it is too much, before prompts become arrays or are tokenized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelsight.errors import shown
from kernelsight.files.bounded_files import decoded
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.budget import Budget
from kernelsight.serving.load.prompts import chat_text

# vLLM's default max_tokens of a completion
COMPLETION_TOKENS = 16
MOST_CHOICES = 128
# a body may have MOST_PROMPTS prompts of the model's whole context, or more shorter ones, and other fields beside them
MOST_PROMPTS, BYTES_PER_ID, OTHER_BYTES, MOST_BYTES = 4, 8, 1 << 20, 32 << 20
# field with the text of a part, by type (vLLM 0.11.0: MM_PARSER_MAP of entrypoints/chat_utils.py)
TEXT_FIELDS = {"text": "text", "input_text": "text", "refusal": "refusal", "thinking": "thinking"}
MOST_PRIORITY = 2**31
NO_PROMPT = "`prompt` is neither text nor token ids, nor a list of these."


class Refused(Exception):
    """A request that is answered with an error; ``status``: HTTP status, ``kind``: vLLM's error type."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.message, self.status, self.kind, self.param = message, status, kind, param

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the error response."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


STOPPED = Refused("the server is being stopped.", 503, "ServiceUnavailableError")


class CompletionRequest(NamedTuple):
    """A parsed request: token ids of each prompt, choices per prompt, and options of the response."""

    chat: bool
    model: str
    prompts: list[np.ndarray]
    choices: int
    max_tokens: int | None  # None: the output ends by itself
    stream: bool
    include_usage: bool
    continuous_usage: bool
    priority: int


def body_budget(max_model_len: int) -> Budget:
    """Return the budget of a request body."""
    most = min(OTHER_BYTES + MOST_PROMPTS * BYTES_PER_ID * max_model_len, MOST_BYTES)
    return Budget(bytes=most, values=most)


def read_request(
    content: bytes, chat: bool, names: list[str], max_model_len: int, tokens_of: Callable[[str], np.ndarray]
) -> CompletionRequest:
    """Return a parsed request; fields that do not affect timing, such as sampling parameters, are ignored.

    ``names``: all model names that are accepted, first the default; ``tokens_of``: tokenizer. Refused: requests that
    vLLM refuses.
    """
    return _read(parse_body(content, body_budget(max_model_len)), chat, names, max_model_len, tokens_of)


def parse_body(content: bytes, budget: Budget) -> Mapping[str, Any]:
    """Return the JSON object of a request body. Refused: it is none, or beyond the budget."""

    def refuse(problem: str) -> Refused:
        return Refused(f"the body {problem}.")

    body = parse_json(decoded(content, refuse), refuse, budget)
    if not isinstance(body, Mapping):
        raise Refused("the body is not a JSON object.")
    return body


def _read(
    body: Mapping[str, Any], chat: bool, names: list[str], max_model_len: int, tokens_of: Callable[[str], np.ndarray]
) -> CompletionRequest:
    model = body.get("model")
    model = names[0] if model is None or model == "" else model
    if not isinstance(model, str):
        raise Refused("`model` is not a name.", param="model")
    if model not in names:
        raise Refused(f"The model `{shown(model)[1:-1]}` does not exist.", 404, "NotFoundError", "model")
    stream, options = _switch(body, "stream"), body.get("stream_options") or {}
    if options and not stream:
        raise Refused("Stream options can only be defined when `stream=True`.", param="stream_options")
    if not isinstance(options, Mapping):
        raise Refused("`stream_options` is not an object.", param="stream_options")
    include_usage = _switch(options, "include_usage")
    continuous_usage = _switch(options, "continuous_usage_stats") and include_usage
    max_tokens = _whole_number(body, "max_completion_tokens", 1) if chat else None
    max_tokens = _whole_number(body, "max_tokens", 1) if max_tokens is None else max_tokens
    choices, priority = _whole_number(body, "n", 1) or 1, _whole_number(body, "priority", -MOST_PRIORITY) or 0
    if priority > MOST_PRIORITY:
        raise Refused(f"priority must be at most {MOST_PRIORITY}, got {shown(priority)}.", param="priority")
    given: list[str | list[int]] = [chat_text(_messages(body))] if chat else _prompts(body.get("prompt"))
    if choices * len(given) > MOST_CHOICES:
        asked = shown(choices * len(given))
        raise Refused(f"{asked} answers are asked for; ask for at most {MOST_CHOICES} at once.", param="n")
    for ids in given:
        if isinstance(ids, list):
            _check_length(len(ids), max_tokens, max_model_len)
    prompts = [_ids(prompt) if isinstance(prompt, list) else _tokens(prompt, tokens_of) for prompt in given]
    if max_tokens is None and _switch(body, "ignore_eos"):
        max_tokens = max(max_model_len - max(prompt_ids.size for prompt_ids in prompts), 1)
    elif max_tokens is None and not chat:
        max_tokens = COMPLETION_TOKENS
    for prompt in prompts:
        _check_length(prompt.size, max_tokens, max_model_len)
    return CompletionRequest(
        chat, model, prompts, choices, max_tokens, stream, include_usage, continuous_usage, priority
    )


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat request, each with its content as one text. Refused: content that is no text."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(entry, Mapping) for entry in messages):
        raise Refused("`messages` is not a list of messages.", param="messages")
    if not all(isinstance(message.get("role"), str | None) for message in messages):
        raise Refused("`role` of a message is not a name.", param="messages")
    return [{"role": message.get("role"), "content": _text_of(message.get("content"))} for message in messages]


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
        message = f"a part of type {shown(kind)} cannot be timed: no encoder is modelled; give text alone."
        raise Refused(message, param="messages")
    text = part.get(TEXT_FIELDS[kind]) or ""
    if not isinstance(text, str):
        raise Refused(f"`{TEXT_FIELDS[kind]}` of a part is not text.", param="messages")
    return text


def _prompts(prompt: Any) -> list[str | list[int]]:
    """Return a completion's prompts, texts or token ids, which are not looked at yet. Refused: neither, or too many."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        kind = type(prompt[0])
        if kind is int:
            return [prompt]
        if kind in (str, list) and len(prompt) > MOST_CHOICES:
            raise Refused(f"`prompt` has {len(prompt)} prompts; give at most {MOST_CHOICES} at once.", param="prompt")
        if kind in (str, list) and all(type(entry) is kind and (entry or kind is str) for entry in prompt):
            return prompt
    raise Refused(NO_PROMPT, param="prompt")


def _ids(tokens: list[int]) -> np.ndarray:
    """Return token ids as an array. Refused: they are not whole numbers, or too large for any vocabulary."""
    if not all(type(token) is int for token in tokens):
        raise Refused(NO_PROMPT, param="prompt")
    try:
        return np.array(tokens, np.int64)
    except OverflowError:
        raise Refused("a token id of `prompt` is out of vocabulary.", param="prompt") from None


def _tokens(text: str, tokens_of: Callable[[str], np.ndarray]) -> np.ndarray:
    """Return the token ids of a text. Refused: it has half a surrogate pair, which no tokenizer reads."""
    try:
        return tokens_of(text)
    except UnicodeEncodeError:
        raise Refused("a text of the prompt has half of a surrogate pair; give Unicode text.") from None


def _switch(fields: Mapping[str, Any], name: str) -> bool:
    """Return a boolean field, false if absent. Refused: another value."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(f"`{name}` is neither true nor false, but {shown(value)}.", param=name)
    return bool(value)


def _whole_number(body: Mapping[str, Any], name: str, minimum: int) -> int | None:
    """Return an integer field, None if absent. Refused: not an integer, or below ``minimum``."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise Refused(f"{name} must be at least {minimum}, got {shown(value)}.", param=name)
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
            f"'max_tokens' or 'max_completion_tokens' is too large: {shown(max_tokens)}. This model's maximum context "
            f"length is {max_model_len} tokens and your request has {prompt} input tokens ({shown(max_tokens)} > "
            f"{max_model_len} - {prompt}).",
            param="max_tokens",
        )
