"""How a server ends: at once, with status 0, without a traceback, and its clients hear of it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

import kernelsight as ks
from kernelsight.serving.runs.step_times import deploy

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from kernelsight.server.app import Server
from kernelsight.server.start import server_of
from tests.server.asgi import Reply, ask, on_loop
from tests.server.test_server import OPTIONS

LONG = {"prompt": [1] * 20, "max_tokens": 1000}
STOPPED = {"message": "the server is being stopped.", "type": "ServiceUnavailableError", "param": None, "code": 503}


@pytest.fixture
def server() -> Iterator[Server]:
    with ks.connect() as session:
        yield server_of(deploy(session, {"model": "qwen3-0.6b", "gpu": "l4"}), None, OPTIONS | {"speed": 1.0})


def test_answers_end_with_an_error_when_the_server_is_stopped(server: Server) -> None:
    async def main() -> list[Reply]:
        bodies = [LONG | {"stream": True}, LONG]
        answers = [asyncio.ensure_future(ask(server.app, "POST", "/v1/completions", body)) for body in bodies]
        await asyncio.sleep(0.2)
        server.stop()
        return [*await asyncio.gather(*answers), await ask(server.app, "POST", "/v1/completions", LONG)]

    streamed, whole, late = on_loop(server.app, main)
    *tokens, last = streamed.events()
    assert streamed.status == 200 and 1 < len(tokens) < 1000 and last == {"error": STOPPED}
    assert (whole.status, whole.json()) == (late.status, late.json()) == (503, {"error": STOPPED})
    assert b'finished_reason="abort",model_name="tiny"} 2.0' in server.metrics.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_is_a_normal_end(number: signal.Signals) -> None:
    words = [sys.executable, "-m", "kernelsight", "serve", "--model", "qwen3-0.6b", "--gpu", "l4", "--port", "0"]
    with subprocess.Popen([*words, "--host", "0.0.0.0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "serving" in line:
                break
        url = f"http://127.0.0.1:{said[-1].split('0.0.0.0:')[1].split(',')[0]}/v1/completions"
        body = json.dumps({"prompt": [1] * 20, "max_tokens": 4000, "stream": True}).encode()
        with urllib.request.urlopen(url, body) as answer:
            answer.readline()
            process.send_signal(number)
            events = [line for line in answer.read().split(b"\n") if line]
        rest = process.stderr.read()
    assert process.returncode == 0
    assert json.loads(events[-1].removeprefix(b"data: ")) == {"error": STOPPED}
    assert rest == ""
    (warning,) = (line for line in said if "no key" in line)
    assert "whoever reaches 0.0.0.0 can use this server: it has no key and no TLS" in warning
