"""`kernelsight completion`: prints a shell script that completes verbs, flags and their choices."""

from __future__ import annotations

from typing import Any

from kernelsight.errors import extra_missing

SHELLS = ("bash", "zsh", "tcsh")


def run(arguments: Any) -> None:
    """Print the completion script of a shell."""
    from kernelsight.cli.main import parser

    try:
        import shtab
    except ModuleNotFoundError:
        raise extra_missing("completion", "shtab", "completion") from None
    print(shtab.complete(parser(), shell=arguments.shell))
