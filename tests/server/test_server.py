"""The HTTP server in this process: OpenAI's shapes, vLLM's refusals, clients that leave, floods, metrics."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernelsight as ks
from kernelsight.serving.runs.step_times import Deployed, deploy

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from kernelsight.server.app import Server
from kernelsight.server.metrics import Metrics, RequestTimes
from kernelsight.server.start import server_of
from tests.server.asgi import Reply, ask, on_loop

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 4, "max_model_len": 1024}
OPTIONS = {
    **{"speed": 50.0, "seed": 0, "output_len": 12, "range_ratio": 0.5, "served_model_name": ["tiny"]},
    **{"tokenizer": None, "max_waiting_requests": 6},
}


@pytest.fixture(scope="module")
def deployed(session: ks.Session) -> Deployed:
    return deploy(session, FLAGS)


@pytest.fixture
def server(deployed: Deployed) -> Server:
    return server_of(deployed, "qwen3-0.6b", OPTIONS)


def post(server: Server, path: str, body: Any, **how: Any) -> Reply:
    return on_loop(server.app, lambda: ask(server.app, "POST", f"/v1/{path}", body, **how))


def assert_idle(server: Server) -> None:
    """All that requests had is given back."""
    engine = server.engines.engines[0]
    assert not server.engines.active and engine["running"] == engine["in_flight"] == 0
    assert engine["free_units"] == server.engines.arrays.limits["capacity_units"][0]


def test_a_completion(server: Server) -> None:
    reply = post(server, "completions", {"model": "tiny", "prompt": [1] * 40, "max_tokens": 7})
    answer = reply.json()
    assert (reply.status, answer["object"], answer["model"]) == (200, "text_completion", "tiny")
    (choice,) = answer["choices"]
    assert (choice["text"].count(" "), choice["finish_reason"], choice["index"]) == (7, "length", 0)
    usage = {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47}
    assert usage.items() <= answer["usage"].items()
    assert_idle(server)


def test_a_chat_stream(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "What time is it?"}], "max_tokens": 5, "stream": True}
    events = post(server, "chat/completions", body | {"stream_options": {"include_usage": True}}).events()
    *chunks, last, done = events
    assert done == "[DONE]" and last["choices"] == [] and last["usage"]["completion_tokens"] == 5
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(each["choices"][0]["delta"]["content"] for each in chunks).count(" ") == 5
    assert [each["choices"][0]["finish_reason"] for each in chunks[-2:]][-1] == "length"
    assert {each["object"] for each in events[:-1]} == {"chat.completion.chunk"}
    assert {each["usage"] for each in chunks} == {None}


def test_a_stream_has_the_text_of_the_whole_answer(server: Server) -> None:
    body = {"prompt": [1] * 20, "max_tokens": 40}
    events = post(server, "completions", body | {"stream": True}).events()[:-1]
    whole = post(server, "completions", body).json()["choices"][0]["text"]
    assert "".join(each["choices"][0]["text"] for each in events) == whole and len(events) == 40


def test_several_prompts_and_choices(server: Server) -> None:
    answer = post(server, "completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 3}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 12 and answer["usage"]["prompt_tokens"] == 2
    streamed = post(server, "completions", {"prompt": ["one", "two"], "max_tokens": 3, "stream": True}).events()
    assert {each["choices"][0]["index"] for each in streamed[:-1]} == {0, 1}


def test_answers_that_end_by_themselves(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    answers = [post(server, "chat/completions", chat).json() for _ in range(4)]
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"stop"}
    assert all(6 <= answer["usage"]["completion_tokens"] <= 12 for answer in answers)
    whole = post(server, "completions", {"prompt": [1] * 1000, "ignore_eos": True}).json()
    assert whole["usage"]["completion_tokens"] == 24 and whole["choices"][0]["finish_reason"] == "length"


def test_a_prefix_is_found_again(server: Server) -> None:
    def cached(prompt: Any) -> int:
        usage = post(server, "completions", {"prompt": prompt, "max_tokens": 1}).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    size = server.engines.hash_tokens
    assert size > 0
    assert (cached([7] * 100), cached([7] * 100), cached([7] * (size + 1) + [8] * 50)) == (0, 100 // size * size, size)
    assert (cached("a text of words " * 20), cached("a text of words " * 20 + "and more")) == (0, 80 // size * size)


CHAT, TEXT = "chat/completions", "completions"
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        (TEXT, {"model": "other", "prompt": "x"}, 404, "The model `other` does not exist."),
        (TEXT, {}, 400, "`prompt` is neither text nor token ids"),
        (TEXT, {"prompt": []}, 400, "`prompt` is neither"),
        (TEXT, {"prompt": [1, "a"]}, 400, "`prompt` is neither"),
        (TEXT, {"prompt": [2**70]}, 400, "out of vocabulary"),
        (TEXT, {"prompt": ""}, 400, "The prompt cannot be empty"),
        (TEXT, {"prompt": [1] * 1024}, 400, "maximum context length is 1024 tokens"),
        (TEXT, {"prompt": [1], "max_tokens": 1024}, 400, r"is too large: 1024. .*\(1024 > 1024 - 1\)"),
        (TEXT, {"prompt": [1], "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0"),
        (TEXT, {"prompt": [1], "max_tokens": True}, 400, "max_tokens must be at least 1"),
        (TEXT, {"prompt": [1], "n": 1000}, 400, "1000 answers are asked for"),
        (TEXT, {"prompt": [1], "priority": "high"}, 400, "priority must be at least -2147483648, got 'high'"),
        (TEXT, {"prompt": [1], "stream_options": {"include_usage": True}}, 400, "only be defined when `stream=True`"),
        (TEXT, {"prompt": [1], "stream": True, "stream_options": 3}, 400, "`stream_options` is not an object"),
        (CHAT, {}, 400, "`messages` is not a list of messages"),
        (CHAT, {"messages": [3]}, 400, "`messages` is not a list"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, 400, "`content` of a message"),
        (CHAT, {"messages": [{"content": [{"type": "image_url"}]}]}, 400, "'image_url' cannot be timed"),
        (CHAT, {"messages": [{"content": [{"image_url": {}}]}]}, 400, "'image_url' cannot be timed"),
        (CHAT, {"messages": [{"content": [{"type": ["text"]}]}]}, 400, "cannot be timed"),
        (CHAT, {"messages": [{"content": [{"type": "text", "text": 5}]}]}, 400, "`text` of a part is not text"),
        (CHAT, {"messages": [{"content": [7]}]}, 400, "a part of a message is neither text nor an object"),
        (CHAT, {"messages": MESSAGES, "max_completion_tokens": -1}, 400, "max_completion_tokens must be at least 1"),
        (TEXT, b"{", 400, "the body is not JSON"),
        (TEXT, b"\xff", 400, "the body is not UTF-8"),
        (TEXT, b"[" * 100_000, 400, "the body nests deeper than 100 levels"),
        (TEXT, [1], 400, "the body is not a JSON object"),
        (TEXT, b" " * (2 << 20), 413, "larger than 1,081,344 bytes"),
    ],
)
def test_refusals(server: Server, path: str, body: Any, status: int, message: str) -> None:
    reply = post(server, path, body)
    error = reply.json()["error"]
    assert (reply.status, error["code"]) == (status, status)
    assert re.search(message, error["message"]), error
    assert error.keys() == {"message", "type", "param", "code"}


def test_clients_that_leave(server: Server) -> None:
    async def main() -> list[Reply]:
        long = {"prompt": [1] * 20, "max_tokens": 1000}
        leaving = [ask(server.app, "POST", "/v1/completions", long | {"stream": True}, leave_after=2) for _ in range(4)]
        silent = ask(server.app, "POST", "/v1/completions", long, leave_after=0)
        staying = ask(server.app, "POST", "/v1/completions", {"prompt": [2], "max_tokens": 30})
        whole = asyncio.gather(*leaving, staying)
        task = asyncio.ensure_future(silent)
        await asyncio.sleep(0)
        task.cancel()
        replies = await whole
        while server.engines.active:
            await asyncio.sleep(0.001)
        return replies

    *left, stayed = on_loop(server.app, main)
    assert all(b"[DONE]" not in reply.body for reply in left)
    assert stayed.json()["usage"]["completion_tokens"] == 30
    assert_idle(server)
    assert (
        b'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 5.0' in server.metrics.text()
    )


def test_a_slow_client_gets_all_its_tokens(server: Server) -> None:
    body = {"prompt": [1] * 20, "max_tokens": 60, "stream": True}
    reply = post(server, "completions", body, slow_s=0.03)
    texts = [each["choices"][0]["text"] for each in reply.events()[:-1]]
    assert "".join(texts).count(" ") == 60 and len(texts) < 60


def test_a_flood_is_bounded(server: Server) -> None:
    """Four run, six wait; all others are refused at once, and nothing of them is kept."""

    async def main() -> list[Reply]:
        body = {"prompt": [1] * 20, "max_tokens": 20}
        return await asyncio.gather(*(ask(server.app, "POST", "/v1/completions", body) for _ in range(200)))

    replies = on_loop(server.app, main)
    refused = [reply.json()["error"] for reply in replies if reply.status != 200]
    assert {error["code"] for error in refused} == {429}
    assert {error["type"] for error in refused} == {"TooManyRequestsError"}
    assert len(replies) - len(refused) == 10
    assert_idle(server)


def test_other_pages(server: Server) -> None:
    async def main() -> list[Reply]:
        await ask(server.app, "POST", "/v1/completions", {"prompt": [1] * 33, "max_tokens": 4})
        paths = ("/v1/models", "/health", "/metrics", "/version", "/v2")
        return [await ask(server.app, "GET", path) for path in paths]

    models, health, metrics, version, other = on_loop(server.app, main)
    assert [card["id"] for card in models.json()["data"]] == ["tiny", "qwen3-0.6b"]
    assert models.json()["data"][0]["max_model_len"] == 1024
    assert (health.status, health.body, other.status) == (200, b"", 404)
    assert "kernelsight" in version.json()["version"]
    text = metrics.body.decode()
    own = '{engine="0",model_name="tiny"}'
    for line in (
        *(f"vllm:num_requests_running{own} 0.0", f"vllm:num_requests_waiting{own} 0.0"),
        *(f"vllm:prompt_tokens_total{own} 33.0", f"vllm:generation_tokens_total{own} 4.0"),
        *(f"vllm:time_to_first_token_seconds_count{own} 1.0", f"vllm:inter_token_latency_seconds_count{own} 3.0"),
        *(f"vllm:e2e_request_latency_seconds_count{own} 1.0", f"vllm:kv_cache_usage_perc{own} 0.0"),
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1.0',
    ):
        assert line in text, line


def test_times_are_those_of_the_simulation(server: Server, session: ks.Session) -> None:
    """A request alone takes what ``simulate`` says, on the simulated clock, however late the machine wakes up."""
    post(server, "completions", {"prompt": [1] * 200, "max_tokens": 50})
    load = {"max_concurrency": 1, "num_prompts": 1, "input_len": 200, "output_len": 50}
    own = session.simulate(**FLAGS, **load).table("request_metrics")
    sums = {
        line.split("{")[0]: float(line.split()[-1])
        for line in server.metrics.text().decode().splitlines()
        if "_seconds_sum{" in line
    }
    assert sums["vllm:time_to_first_token_seconds_sum"] * 1e3 == pytest.approx(own["ttft_ms"][0].as_py(), abs=1e-5)
    assert sums["vllm:e2e_request_latency_seconds_sum"] * 1e3 == pytest.approx(own["e2e_ms"][0].as_py(), abs=1e-5)


def test_metrics_are_calculated_as_by_hand() -> None:
    """A request waits 1 s, is prefilled in 2 s and decodes 11 tokens for 5 s; two others wait, and one runs."""
    fields = [("free_units", "i8"), ("running", "i8"), ("in_flight", "i8"), ("preempted", "i8")]
    engines = np.array([(30, 1, 3, 4), (40, 0, 0, 0)], fields)
    arrays = SimpleNamespace(limits={"capacity_units": np.array([40, 40])})
    metrics = Metrics("tiny", SimpleNamespace(engines=engines, arrays=arrays), 1024, {})
    metrics.note_first(0, 500, 200, 3.0)
    metrics.note_tokens(0, 1, None)
    metrics.note_tokens(0, 10, 0.5)
    metrics.note_finished(0, 500, 11, RequestTimes(1e6, 2e6, 4e6, 9e6), "stop")
    metrics.text()
    engines["preempted"][0] += 2
    text = metrics.text().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    own, other = (f'{{engine="{number}",model_name="tiny"}}' for number in (0, 1))
    times = {"queue": 1.0, "prefill": 2.0, "decode": 5.0, "inference": 7.0}
    expected = {f"request_{name}_time_seconds_sum": seconds for name, seconds in times.items()}
    expected |= {"time_to_first_token_seconds_sum": 3.0, "e2e_request_latency_seconds_sum": 8.0}
    expected |= {"request_time_per_output_token_seconds_sum": 0.5, "inter_token_latency_seconds_sum": 0.5}
    expected |= {"prompt_tokens_total": 500.0, "generation_tokens_total": 11.0}
    expected |= {"prefix_cache_queries_total": 500.0, "prefix_cache_hits_total": 200.0}
    expected |= {"num_requests_running": 1.0, "num_requests_waiting": 2.0, "kv_cache_usage_perc": 0.25}
    expected |= {"request_prompt_tokens_sum": 500.0, "request_generation_tokens_sum": 11.0}
    expected |= {"num_preemptions_total": 6.0}
    assert {name: float(values[f"vllm:{name}{own}"]) for name in expected} == expected
    assert {float(values[f"vllm:{name}{other}"]) for name in expected} == {0.0}
