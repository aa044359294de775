"""`kernelsight timeline`: writes a saved run as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import open_saved
from kernelsight.errors import InvalidInput
from kernelsight.present.output import as_json, check_ending, note
from kernelsight.present.progress import Waiting

ENDINGS = (".json",)


def run(arguments: argparse.Namespace) -> None:
    """Write the trace, and print its numbers of steps, kernel slices and requests."""
    from kernelsight.present.trace.timeline import write_timeline

    if arguments.output is None:
        raise InvalidInput("timeline needs -o FILE, the trace to write (.json).")
    target = check_ending(arguments.output, ENDINGS)
    with open_saved(arguments.file) as session, Waiting("simulating"):
        shown = write_timeline(session, target, arguments.start_s, arguments.end_s, arguments.scenario)
    if arguments.format == "json":
        print(as_json(shown))
    else:
        note(
            f"{target}: {shown['steps']:,} steps, {shown['kernel_slices']:,} kernel slices, {shown['requests']:,} "
            "requests; open it on ui.perfetto.dev"
        )
