"""What parsed arguments of several verbs mean: a session, a deployment, a launch line; and the printing of a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.scenario.flags import DEPLOYMENT_FLAGS, DRAFT_FLAGS, POOL_FLAGS, PREFILL_FLAGS, SHORTHANDS

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.scenario.launch.lines import LaunchLine
    from kernelsight.session import Session

TABLE_ENDINGS = (".parquet", ".csv", ".json")


def open_session(arguments: Any) -> Session:
    """Return an in-memory session with the rows of --gpus, --host-overheads and --pack."""
    from kernelsight.present.output import note, progress
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


def launch_line(arguments: Any, flags_beside: Mapping[str, Any], name: str = "launch") -> LaunchLine | None:
    """Return the launch line of an option, or None; notes after the answer list how its words were read.

    ``flags_beside``: explicit flags, which override the line; ``name``: of the option.
    """
    text = getattr(arguments, name, None)
    if text is None:
        return None
    from kernelsight.present.output import is_verbose, note_afterwards
    from kernelsight.scenario.launch.deployments import read_launch_line

    line = read_launch_line(text, bool(arguments.read_launch_files)).overridden_by(flags_beside)
    note_afterwards(line.notes() if is_verbose() else line.short_notes())
    return line


def show_table(table: pa.Table, arguments: argparse.Namespace, written: bool = False) -> None:
    """Print a table in the format of --format, and write it to -o unless it is already ``written``."""
    from kernelsight.dataflow.rows import python_rows
    from kernelsight.present.output import check_ending, print_rows, write_table

    target = None if written else check_ending(arguments.output, TABLE_ENDINGS)
    if target:
        write_table(table, target)
    form = arguments.format if arguments.format in ("json", "csv") else "table"
    print_rows(python_rows(table), table.column_names, form)


def open_saved(path: str) -> Session:
    """Return a session on a saved run, opened read-only; InvalidInput: no path, or no saved run there."""
    from kernelsight.session import connect

    if not path:
        raise InvalidInput("the path of the saved run is empty; give a .duckdb file.")
    return connect(path, read_only=True)


def columns(words: list[str] | None) -> dict[str, str] | None:
    """Return the words of --columns as names of the file by ours; InvalidInput: one has no equals sign."""
    for word in words or []:
        if "=" not in word:
            raise InvalidInput(f"--columns {word!r} is not valid; give OURS=THEIRS, such as ttft_ms=first_token_ms.")
    return dict(word.split("=", 1) for word in words) if words else None
