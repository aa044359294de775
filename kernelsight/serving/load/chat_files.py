"""Reads texts of chats as a load: lists of messages, ShareGPT, batch files of the OpenAI API, prompts with answers.

Each answer is a request: its prompt is all text before it, its output the answer, and it waits for the answer before it
in the same chat. A last message without an answer is a request if ``max_tokens`` (or ``max_completion_tokens``) states
its output. Texts are counted, hashed in blocks, and forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight import errors
from kernelsight.files.bounded_files import decoded
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.budget import WHOLE
from kernelsight.files.row_faults import Faults, json_objects
from kernelsight.serving.load.conversation_files import Conversations
from kernelsight.serving.load.dependencies import Dependencies
from kernelsight.serving.load.prompts import block_keys, chat_text, estimated_tokens, read_tokenizer

LOG = logging.getLogger(__name__)
BLOCK_TOKENS = 16
ANSWERS = ("assistant", "gpt", "bing", "chatgpt", "model")
OUTPUTS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# names of a chat's messages, of one prompt, and of its answer
MESSAGES, PROMPTS, ANSWERED = ("messages", "conversations", "conversation"), ("prompt", "instruction"), (
    "completion", "response", "answer", "output")  # fmt: skip


class Turn(NamedTuple):
    """A request of a chat: messages before the answer, the answer or None, and the stated number of tokens."""

    before: Sequence[Mapping[str, Any]]
    answer: str | None
    most_tokens: int | None


@cache
def say_once(text: str) -> None:
    """Log what is said of a file once, however often a command reads it."""
    LOG.info(text)


def is_chats(data: bytes) -> bool:
    """Return whether the content of a file is texts of chats, by the fields of its first object."""
    head = data[: 1 << 16].lstrip()
    if head[:1] not in (b"{", b"["):
        return False
    names = (*MESSAGES, *PROMPTS)
    fields = (b'"input_length"', b'"prompt_tokens"', b'"hash_ids"', b'"ContextTokens"', b'"requests"', b'"arrival_s"')
    return any(f'"{name}"'.encode() in head for name in names) and not any(field in head for field in fields)


def read_chats(path: Path, data: bytes, tokenizer: str | None) -> Conversations:
    """Read the chats of a file; InvalidInput: not JSON, or no request with an output length."""
    tokens_of = estimated_tokens if tokenizer is None else read_tokenizer(Path(tokenizer))
    names: list[str] = []
    sizes: list[tuple[int, int]] = []
    hashes: list[np.ndarray] = []
    pairs: list[tuple[int, int, float]] = []
    numbers: dict[bytes, int] = {}
    unanswered = 0
    unused = Faults()
    for number, (place, chat) in enumerate(_chats(path, data, unused), 1):
        previous = None
        for turn in _turns(chat):
            try:
                prompt = tokens_of(chat_text([{"role": "user", "content": ""} | dict(one) for one in turn.before]))
                output = turn.most_tokens if turn.answer is None else tokens_of(turn.answer).size
            except UnicodeEncodeError:
                unused.add("encoding", 1, place, "it has half of a surrogate pair")
                break
            if not output:
                unanswered += 1
                continue
            names.append(f"{number}/{len(names)}")
            sizes.append((max(prompt.size, 1), output))
            keys = block_keys(prompt, BLOCK_TOKENS)
            hashes.append(np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64))
            if previous is not None:
                pairs.append((len(names) - 1, previous, 0.0))
            previous = len(names) - 1
    if not names and unused.counted:
        raise errors.trace_place_unusable(path, *unused.first(), "Correct it.")
    if not names:
        problem = f"none of its {unanswered:,} messages has an answer or max_tokens, so that output lengths are unknown"
        raise errors.trace_unusable(path, problem, "Add max_tokens, or give lengths: --input-len and --output-len.")
    counted = "counted by the tokenizer" if tokenizer else "estimated, four bytes a token (--tokenizer counts them)"
    left_out = f"; {unanswered:,} messages without an answer are left out" if unanswered else ""
    left_out += f"; {unused.sentence(len(names), 'chats and requests')}" if unused.counted else ""
    say_once(f"trace {path}: {len(names):,} requests of texts, whose tokens are {counted}{left_out}")
    prompts, outputs = np.array(sizes, np.int64).T
    return Conversations(names, prompts, outputs, hashes, BLOCK_TOKENS, Dependencies.of(pairs))


def _chats(path: Path, data: bytes, unused: Faults) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, object) of each chat: of a list, of one object a line, or a single one; others are ``unused``."""

    def refuse(found: str) -> errors.InvalidInput:
        return errors.trace_unusable(path, f"the list {found}", "Correct it.")

    if data.lstrip()[:1] != b"[":
        yield from json_objects(data, unused)
        return
    for number, entry in enumerate(parse_json(decoded(data, refuse), refuse, WHOLE), 1):
        if isinstance(entry, Mapping):
            yield f"entry {number}", entry
        else:
            unused.add("object", 1, f"entry {number}", "it is no object")


def _turns(chat: Mapping[str, Any]) -> Iterator[Turn]:
    """Yield the requests of a chat."""
    body = chat.get("body") if isinstance(chat.get("body"), Mapping) else chat
    most = next((body[name] for name in OUTPUTS if type(body.get(name)) is int and body[name] > 0), None)
    listed = next((body[name] for name in MESSAGES if isinstance(body.get(name), list)), None)
    if listed is None:
        prompt = next((body[name] for name in (*PROMPTS, "input") if isinstance(body.get(name), str)), None)
        answer = next((chat[name] for name in ANSWERED if isinstance(chat.get(name), str)), None)
        if prompt is not None:
            yield Turn([{"role": "user", "content": prompt}], answer, most)
        return
    messages = [_message(one) for one in listed if isinstance(one, Mapping)]
    for index, message in enumerate(messages):
        if message["role"] in ANSWERS and index:
            yield Turn(messages[:index], message["content"], most)
    if messages and messages[-1]["role"] not in ANSWERS:
        yield Turn(messages, None, most)


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    """Return a message with its role and text; parts that are no text count nothing."""
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return {
        "role": str(message.get("role", message.get("from"))),
        "content": content if isinstance(content, str) else "",
    }
