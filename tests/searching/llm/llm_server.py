"""An OpenAI-compatible server for tests: answers forecasts right, wrong, slowly or not at all, as its script says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kernelsight.searching.llm.prompt import BINS

# what a server answers to one request: (status, body as bytes or object, seconds to wait, headers)
Script = Callable[[dict[str, Any], int], tuple[int, Any, float, dict[str, str]]]


def fields(masses: list[float], **more: Any) -> dict[str, Any]:
    """Return the fields of the tool."""
    return dict(zip(BINS, masses, strict=True)) | {"predicted_bin": 1, "reasoning": "made up"} | more


def tool_answer(arguments: Any, finish: str = "tool_calls") -> dict[str, Any]:
    """Return a completion that calls the tool."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": "1", "type": "function", "function": {"name": "state_forecast", "arguments": text}}
    return completion({"role": "assistant", "content": None, "tool_calls": [call]}, finish)


def text_answer(text: str, finish: str = "stop") -> dict[str, Any]:
    """Return a completion of text."""
    return completion({"role": "assistant", "content": text}, finish)


def completion(message: dict[str, Any], finish: str) -> dict[str, Any]:
    """Return a completion with the usage that a server reports."""
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 1000, "completion_tokens": 50}}


class Seen(list):
    """The requests that a server has received: (path, headers, body)."""

    url: str


@contextmanager
def serving(script: Script) -> Iterator[Seen]:
    """Serve a script on a free port of this machine; yield what is received, with the ``url``."""
    seen, lock = Seen(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                seen.append((self.path, dict(self.headers), body))
                number = len(seen)
            status, answer, seconds, headers = script(body, number)
            time.sleep(seconds)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            with lock:
                seen.append((self.path, dict(self.headers), {}))
            self.send_error(404)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Say nothing where a client has gone away."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def always(answer: Any, status: int = 200, seconds: float = 0.0, **headers: str) -> Script:
    """Return the script that answers every request alike."""
    return lambda _body, _number: (status, answer, seconds, headers)
