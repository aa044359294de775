"""A small OpenAI-compatible server with known delays, against which the benchmark clients of other projects were run.

``python tests/logs/openai_server.py --port 8123``. A completion takes ``FIRST_S`` until the first chunk and ``GAP_S``
between chunks of ``--tokens-per-chunk`` tokens; every ``--fail-every``-th request is answered with status 500.
A token of a prompt is four characters, one of the answer is "w ".
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FIRST_S, GAP_S = 0.030, 0.005
SERVER_INFO = {"model_path": "demo", "tp_size": 2, "chunked_prefill_size": 8192, "disable_radix_cache": False}


def prompt_tokens(request: dict[str, Any]) -> int:
    """Return a quarter of the characters of a prompt or of all messages, or the number of its token ids."""
    if "messages" in request:
        contents = [message["content"] for message in request["messages"]]
        return sum(len(part if isinstance(part, str) else part[0]["text"]) for part in contents) // 4 + 1
    prompt = request.get("prompt", "")
    return len(prompt) // 4 + 1 if isinstance(prompt, str) else len(prompt)


def chunks(request: dict[str, Any], tokens_per_chunk: int) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield (seconds to wait, event) for every chunk of an answer, the usage and the server's metrics at the end."""
    chat = "messages" in request
    wanted = int(request.get("max_completion_tokens") or request.get("max_tokens") or 16)
    kind = "chat.completion.chunk" if chat else "text_completion"
    known = {"id": f"cmpl-{time.monotonic_ns()}", "object": kind, "model": request.get("model", "demo"), "created": 0}
    for start in range(0, wanted, tokens_per_chunk):
        text = "w " * min(tokens_per_chunk, wanted - start)
        choice = {"index": 0, "finish_reason": None} | (
            {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
        )
        yield (GAP_S if start else FIRST_S), known | {"choices": [choice]}
    prompt = prompt_tokens(request)
    usage = {"prompt_tokens": prompt, "completion_tokens": wanted, "total_tokens": prompt + wanted}
    usage["prompt_tokens_details"] = {"cached_tokens": prompt // 2}
    metrics = {"time_to_first_token_ms": 25.0, "queue_time_ms": 2.0, "generation_time_ms": 1e3 * GAP_S * (wanted - 1)}
    if not request.get("stream") or (request.get("stream_options") or {}).get("include_usage"):
        yield 0.0, known | {"choices": [], "usage": usage, "metrics": metrics}


class Handler(BaseHTTPRequestHandler):
    """Answers completions, and what clients ask before and after a run."""

    protocol_version = "HTTP/1.1"
    counted = itertools.count(1)
    tokens_per_chunk = 1
    fail_every = 0

    def do_GET(self) -> None:
        body: Any = {"object": "list", "data": [{"id": "demo", "object": "model", "max_model_len": 4096}]}
        self.answer(SERVER_INFO if "server_info" in self.path else body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if "completions" not in self.path:
            self.answer({})
        elif self.fail_every and next(self.counted) % self.fail_every == 0:
            self.answer({"error": {"message": "planned failure", "type": "server_error"}}, status=500)
        elif request.get("stream"):
            self.stream(request)
        else:
            *_, (_, last) = events = list(chunks(request, 10**9))
            time.sleep(sum(seconds for seconds, _ in events))
            self.answer({**events[0][1], "usage": last["usage"], "metrics": last["metrics"]})

    def stream(self, request: dict[str, Any]) -> None:
        """Write the chunks of an answer as server-sent events at their times."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        due = time.monotonic()
        for seconds, event in chunks(request, self.tokens_per_chunk):
            due += seconds
            time.sleep(max(due - time.monotonic(), 0.0))
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def answer(self, body: Any, status: int = 200) -> None:
        """Write a JSON answer."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--fail-every", type=int, default=0)
    given = parser.parse_args()
    Handler.tokens_per_chunk, Handler.fail_every = given.tokens_per_chunk, given.fail_every
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
