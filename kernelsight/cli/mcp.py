"""`kernelsight mcp`: serves the verbs as read-only tools for coding agents (Model Context Protocol)."""

from __future__ import annotations

import argparse
from typing import Any

from kernelsight.errors import extra_missing


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.epilog = "A client starts it and speaks to it through stdin and stdout."


def run(arguments: Any) -> None:
    """Serve a client on stdin and stdout until it disconnects."""
    try:
        from kernelsight.server.agent_tools import agent_server
    except ImportError as error:
        raise extra_missing("mcp", (error.name or "mcp").partition(".")[0], "mcp") from None
    agent_server().run("stdio")
