"""A server over sockets: who waits behind others; it ends at once, with status 0, and its clients hear of it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import socket
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
from kernelsight.server.engine_driver import EngineDriver
from kernelsight.server.start import listening_socket, server_of
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


@pytest.mark.filterwarnings("ignore")  # of uvicorn's own imports
def test_health_is_answered_behind_many_streams_that_nobody_reads(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is too slow for its speed; uvloop accepts one connection each time that it looks."""
    import uvicorn

    turns, turn = [], EngineDriver.turn
    monkeypatch.setattr(EngineDriver, "turn", lambda driver: (turns.append(1), turn(driver)))
    server.serving = server.serving._replace(speed=1e4)
    listener = listening_socket("127.0.0.1", 0)
    body = json.dumps(LONG | {"stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(101)]
    for client in clients[:-1]:
        client.sendall(head + body)
    clients[-1].sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")

    async def main() -> tuple[bytes, int]:
        uvicorn_server = uvicorn.Server(uvicorn.Config(server.app, log_level="error"))
        serving = asyncio.ensure_future(uvicorn_server.serve([listener]))
        clients[-1].setblocking(False)
        answer = await asyncio.get_running_loop().sock_recv(clients[-1], 1000)
        before = len(turns)
        uvicorn_server.should_exit = True
        server.stop()
        for client in clients:
            client.close()
        await serving
        return answer, before

    loop = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
    with asyncio.Runner(loop_factory=importlib.import_module(loop).new_event_loop) as runner:
        answer, before = runner.run(main())
    assert answer.startswith(b"HTTP/1.1 200") and 0 < before < 20
