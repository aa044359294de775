"""`kernelsight serve` and `kernelsight mcp` before they listen: wrong words, and packages that are not installed."""

from __future__ import annotations

import socket
import sys

import pytest

from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput
from kernelsight.server.start import listening_socket

DEPLOYMENT = ["--model", "qwen3-0.6b", "--gpu", "l4"]


@pytest.mark.parametrize("verb, package", [("serve", "uvicorn"), ("mcp", "mcp")])
def test_packages_that_are_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str, package: str
) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith((f"{package}.", "kernelsight.server.a")))]:
        monkeypatch.setitem(sys.modules, name, None) if name == package else monkeypatch.delitem(sys.modules, name)
    assert main([verb, *(DEPLOYMENT if verb == "serve" else [])]) == 2
    said = capsys.readouterr().err
    assert f"{verb} needs {package}, which is not installed; run pip install -e '.[{verb}]' in the checkout" in said


def test_a_port_that_is_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"cannot listen at 127.0.0.1 port {port}: .*; use another --port"):
            listening_socket("127.0.0.1", port)


def test_clients_can_connect_before_anything_answers() -> None:
    """Who waits for the line with the address can connect at once; requests wait in the backlog."""
    with listening_socket("127.0.0.1", 0) as own, socket.create_connection(own.getsockname(), timeout=5.0) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        with own.accept()[0] as accepted:
            assert accepted.recv(12) == b"GET /health "
