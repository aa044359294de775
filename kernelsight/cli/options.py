"""Shared by several verbs: opening the session, and the deployment flags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.read.numbers import read_number
from kernelsight.scenario.flags import DEPLOYMENT_FLAGS, DRAFT_FLAGS, POOL_FLAGS, PREFILL_FLAGS, SHORTHANDS, Flag

if TYPE_CHECKING:
    from kernelsight.scenario.launch_lines import LaunchLine
    from kernelsight.session import Session


def open_session(arguments: Any) -> Session:
    """Return an in-memory session with the rows of --gpus, --host-overheads and --pack."""
    from kernelsight.report.output import note, progress
    from kernelsight.scenario.given_facts import extend_gpus, give_host_overheads
    from kernelsight.session import connect

    session = connect(files=not getattr(arguments, "no_files", False))
    session.progress = progress
    if getattr(arguments, "gpus", None):
        path = Path(arguments.gpus)
        for name in extend_gpus(session, path):
            note(f"{path.name}: its row {name} replaces the catalogue GPU of that name")
    if getattr(arguments, "host_overheads", None):
        give_host_overheads(session, Path(arguments.host_overheads))
    if getattr(arguments, "pack", None):
        from kernelsight.kernels.pack import read_pack, with_assumed

        session.give("eta_coefficients", with_assumed(read_pack(Path(arguments.pack))))
    return session


def deployment_flags(arguments: Any) -> dict[str, Any]:
    """Return the deployment flags of parsed arguments that are set."""
    names = [*SHORTHANDS, *DEPLOYMENT_FLAGS, *DRAFT_FLAGS, *PREFILL_FLAGS, *POOL_FLAGS, "enable_expert_parallel"]
    return {name: value for name in names if (value := getattr(arguments, name, None)) is not None}


def launch_line(arguments: Any, stated: Mapping[str, Any]) -> LaunchLine | None:
    """Return the launch line of parsed arguments, and say on stderr what became of each word; None without one.

    ``stated``: flags beside it.
    """
    if getattr(arguments, "launch", None) is None:
        return None
    from kernelsight.report.output import note
    from kernelsight.scenario.launch_lines import read_launch_line

    line = read_launch_line(arguments.launch).overridden_by(stated)
    for text in line.notes():
        note(text)
    return line


def whole(text: str) -> int:
    """Read a whole number, also as 16k (16,000) or 16K (16,384), as vLLM does."""
    number = read_number(text)
    if not isinstance(number, int):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return number


def add_flags(group: argparse._ActionsContainer, flags: tuple[Flag, ...]) -> None:
    """Add flags to a parser; an unset flag is None."""
    for flag in flags:
        how: dict[str, Any] = {"dest": flag.name, "help": flag.help}
        if flag.kind == "switch":
            how |= {"action": argparse.BooleanOptionalAction, "default": None}
        elif flag.kind == "yes":
            how |= {"action": "store_true", "default": None}
        else:
            how["metavar"] = flag.metavar
            if flag.kind == "whole":
                how["type"] = whole
            elif flag.choices:
                how["choices"] = flag.choices
            elif flag.kind not in ("text", "version"):
                how["type"] = float
        group.add_argument(*flag.options, **how)
