"""`kernelsight mcp`: serves the verbs as read-only tools for coding agents (Model Context Protocol)."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput, extra_missing


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.epilog = "A client starts it and speaks to it through stdin and stdout."
    verb.add_argument(
        "--root", type=Path, default=Path(), metavar="FOLDER",
        help="folder below which the files that tools may read lie (default: the working directory)",
    )  # fmt: skip
    verb.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="most seconds of one call (default: 300)"
    )


def run(arguments: Any) -> None:
    """Serve a client on stdin and stdout until it disconnects."""
    if not arguments.root.is_dir():
        raise InvalidInput(f"--root {arguments.root} is no folder; give the folder of the files that tools may read.")
    if not 0.0 < arguments.timeout < math.inf:
        raise InvalidInput(f"--timeout is {arguments.timeout}; give seconds, above 0.")
    try:
        from kernelsight.server.agent_tools import serve_agent
    except ImportError as error:
        raise extra_missing("mcp", (error.name or "mcp").partition(".")[0], "mcp") from None
    serve_agent(arguments.root.resolve(), arguments.timeout)
