"""`kernelsight timeline`: writes a saved run as a trace for Perfetto or chrome://tracing."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import open_saved
from kernelsight.errors import InvalidInput
from kernelsight.present.output import Waiting, as_json, check_ending, note

ENDINGS = (".json",)


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument("file", metavar="RUN", help="saved run (.duckdb), of simulate -o or sweep -o")
    verb.add_argument("-o", "--output", metavar="FILE", help="trace to write (.json); open it on ui.perfetto.dev")
    verb.add_argument("--from", dest="start_s", type=float, metavar="S", help="first second shown (0)")
    verb.add_argument("--to", dest="end_s", type=float, metavar="S", help="last second shown (the end)")
    verb.add_argument("--scenario", metavar="ID", help="which scenario of a saved sweep (column scenario_id)")
    verb.add_argument("--format", choices=("table", "json"), default="table", help="output format on stdout")


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
