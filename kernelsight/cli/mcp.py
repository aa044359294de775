"""`kernelsight mcp`: serves the verbs as read-only tools for coding agents (Model Context Protocol)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput, extra_missing


def run(arguments: Any) -> None:
    """Serve a client on stdin and stdout until it disconnects."""
    root = Path(arguments.root)
    if not root.is_dir():
        raise InvalidInput(f"--root {arguments.root} is no folder; give the folder of the files that tools may read.")
    try:
        from kernelsight.server.agent_tools import serve_agent
    except ImportError as error:
        raise extra_missing("mcp", (error.name or "mcp").partition(".")[0], "mcp") from None
    serve_agent(root.resolve(), arguments.timeout)
