"""`kernelsight completion`: prints a shell script that completes verbs, flags and their choices, and completes them."""

from __future__ import annotations

from typing import Any


def run(arguments: Any) -> None:
    """Print the completion script of a shell."""
    import argcomplete

    print(argcomplete.shellcode(["kernelsight"], shell=arguments.shell))


def complete() -> None:
    """Answer a shell that runs this command to complete its line, and end."""
    import argcomplete

    from kernelsight.cli.command_line import parser

    argcomplete.autocomplete(parser())
