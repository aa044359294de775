"""Bodies that cannot be served get a sentence and a status below 500, and what they ask for is counted first."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import kernelsight as ks
from kernelsight.serving.runs.step_times import deploy
from tests.asked import refusals

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from kernelsight.server import app as application
from kernelsight.server import requests
from kernelsight.server.app import Server
from kernelsight.server.start import server_of
from kernelsight.serving.load.prompts import estimated_tokens
from tests.server.asgi import ask, on_loop
from tests.server.test_server import OPTIONS

NAMES, CONTEXT = ["tiny"], 1024
GOOD = {
    False: {"prompt": "Hello", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
    True: {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}], "max_tokens": 2,
           "stream": True, "stream_options": {"include_usage": True}},
}  # fmt: skip
DEEP = "[" * 900 + "]" * 900
# as JSON, so that a value may be one that no Python object gives
HOSTILE = (
    *("null", "true", "0", "-1", "1.5", "NaN", "Infinity", "-Infinity", "1e400", "9" * 400, "9" * 5000, '""'),
    *('"x"', r'"\ud800"', r'"\u0000"', '"' + "x" * 5000 + '"', "[]", "[[]]", "[null]", '["x"]', "[1, [2]]", "[[1], 2]"),
    *("[1.0]", "[1e400]", "[true]", r'["\ud800"]', "{}", '{"a": 1}', '{"x": {"y": []}}', DEEP, f'{{"a": {DEEP}}}'),
    *(f"[{DEEP}]", "[" * 100_000, "[-1]", f"[{2**63}]", f"[[{2**63}]]", '[{"role": "user"}]', '[{"role": {"a": []}}]'),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ks.connect() as session:
        deployed = deploy(session, {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 4, "max_model_len": CONTEXT})
        yield server_of(deployed, "qwen3-0.6b", OPTIONS | {"max_waiting_requests": 300})


class Noted(Mapping):
    """An object that notes the names of the fields which are read, each with its path."""

    def __init__(self, fields: Mapping[str, Any], path: tuple[Any, ...], seen: set[tuple[Any, ...]]) -> None:
        self.fields, self.path, self.seen = fields, path, seen

    def __getitem__(self, name: str) -> Any:
        self.seen.add((*self.path, name))
        return noted(self.fields[name], (*self.path, name), self.seen)

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


def noted(value: Any, path: tuple[Any, ...], seen: set[tuple[Any, ...]]) -> Any:
    if isinstance(value, dict):
        return Noted(value, path, seen)
    if isinstance(value, list):
        return [noted(each, (*path, number), seen) for number, each in enumerate(value)]
    return value


def fields_read(chat: bool) -> set[tuple[Any, ...]]:
    """Return the path of each field that the parser of an endpoint reads, found by letting it read."""
    seen: set[tuple[Any, ...]] = set()
    for others in ({}, {"max_tokens": None}):
        body = Noted(GOOD[chat] | others, (), seen)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(requests, "parse_body", lambda *_, body=body: body)
            requests.read_request(b"", chat, NAMES, CONTEXT, estimated_tokens)
    return seen


def with_value(body: Any, path: tuple[Any, ...], mark: str) -> Any:
    """Return a body with one field replaced."""
    if not path:
        return mark
    if isinstance(body, list):
        return [with_value(each, path[1:], mark) if number == path[0] else each for number, each in enumerate(body)]
    return body | {path[0]: with_value(body.get(path[0]), path[1:], mark)}


def test_the_fields_are_found() -> None:
    assert {("prompt",), ("n",), ("model",), ("priority",), ("ignore_eos",)} <= fields_read(False)
    assert {("messages",), ("messages", 0, "role"), ("messages", 0, "content", 0, "text")} <= fields_read(True)
    assert ("stream_options", "continuous_usage_stats") in fields_read(True)


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_no_value_of_any_field_ends_in_a_fault(server: Server, chat: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    fields = sorted(fields_read(chat), key=str)

    async def main() -> list[tuple[str, int, bytes]]:
        found = []
        for field, value in itertools.product(fields, HOSTILE):
            content = json.dumps(with_value(GOOD[chat], field, "MARK")).replace('"MARK"', value).encode()
            reply = await ask(server.app, "POST", path, content)
            found.append((f"{field} {value[:40]}", reply.status, reply.body))
        return found

    replies = on_loop(server.app, main)
    assert len(replies) == len(fields) * len(HOSTILE)
    assert [name for name, status, _ in replies if status not in (200, 400, 404)] == []
    for name, status, body in replies:
        if status != 200:
            error = json.loads(body)["error"]
            assert error["code"] == status and 5 < len(error["message"]) < 500, name
    assert sum(status != 200 for _, status, _ in replies) > len(replies) // 3
    assert not server.engines.active


@pytest.mark.parametrize(
    "field, value, words",
    refusals("server/test_hostile_bodies::test_sentences"),
)
def test_sentences(field: str, value: Any, words: str) -> None:
    content = json.dumps({"prompt": "x", "max_tokens": None, field: value}).encode()
    with pytest.raises(requests.Refused) as refused:
        requests.read_request(content, False, NAMES, CONTEXT, estimated_tokens)
    assert words in refused.value.message and refused.value.status in (400, 404)


@pytest.mark.parametrize(
    "prompt, choices",
    [
        ([[1]] * 129, 1),
        (["word"] * 129, 1),
        ([[1]] * 65, 2),
        (["word"] * 65, 2),
        ([1] * CONTEXT, 1),
        ([[1], [1] * CONTEXT], 1),
        ([[1], [1] * (CONTEXT - 4)], 1),
    ],
    ids=["many ids", "many texts", "many choices of ids", "many choices of texts", "long", "one is long", "and output"],
)
def test_requests_are_counted_before_anything_is_made_of_them(
    prompt: Any, choices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(requests, "_ids", made.append)
    content = json.dumps({"prompt": prompt, "n": choices, "max_tokens": 5}).encode()
    with pytest.raises(requests.Refused, match="128|maximum context length"):
        requests.read_request(content, False, NAMES, CONTEXT, made.append)
    assert made == []


def test_the_most_that_is_served_at_once_is_served() -> None:
    texts: list[str] = []

    def tokens_of(text: str) -> np.ndarray:
        texts.append(text)
        return np.arange(3)

    content = json.dumps({"prompt": ["word"] * 64, "n": 2, "max_tokens": 1}).encode()
    request = requests.read_request(content, False, NAMES, CONTEXT, tokens_of)
    assert (len(request.prompts), request.choices, len(texts)) == (64, 2, 64)


@pytest.mark.parametrize("context", [1024, 131_072, 10**7])
def test_a_body_of_the_longest_prompt_is_within_the_limit(context: int) -> None:
    most = requests.body_budget(context).bytes
    ids = json.dumps({"prompt": [100_000] * min(context - 16, 10**6)}).encode()
    assert len(ids) <= most <= 32 << 20
    assert requests.body_budget(1024).bytes < 2 << 20 < requests.body_budget(131_072).bytes < 6 << 20


def test_a_large_body_is_neither_read_to_its_end_nor_parsed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a body that is too large no more than the limit is taken, nothing where its length is said before."""
    monkeypatch.setattr(application, "read_request", lambda *_: pytest.fail("a body above the limit is parsed"))
    most, part = requests.body_budget(CONTEXT).bytes, b"[1]," * (1 << 14)

    async def post(headers: list[tuple[bytes, bytes]]) -> tuple[int, int]:
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        taken, status = 0, 0

        async def receive() -> dict[str, Any]:
            nonlocal taken
            taken += len(part)
            return {"type": "http.request", "body": part, "more_body": True}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)

        await server.app(scope, receive, send)
        return status, taken

    status, taken = on_loop(server.app, lambda: post([]))
    assert status == 413 and most < taken <= most + 2 * len(part)
    assert on_loop(server.app, lambda: post([(b"content-length", str(most + 1).encode())])) == (413, 0)
    assert on_loop(server.app, lambda: post([(b"content-length", b"9" * 5000)])) == (413, 0)


def test_a_long_body_is_read_in_another_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of others are not late for it: nothing of a long body is parsed or tokenized on the event loop."""
    threads: list[str] = []
    read = server._read

    def noting(content: bytes, chat: bool) -> Any:
        threads.append("loop" if asyncio._get_running_loop() else "other")
        return read(content, chat)

    monkeypatch.setattr(server, "_read", noting)

    async def main() -> list[int]:
        bodies = [{"prompt": [1], "max_tokens": 1}, {"prompt": [1], "max_tokens": 1, "user": "x" * (1 << 16)}]
        return [(await ask(server.app, "POST", "/v1/completions", body)).status for body in bodies]

    assert on_loop(server.app, main, asyncio.SelectorEventLoop) == [200, 200]
    assert threads == ["loop", "other"]
