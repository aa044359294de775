"""`kernelsight report`: writes a saved run, sweep, comparison or kernel search as one HTML page."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import open_saved
from kernelsight.errors import InvalidInput
from kernelsight.present.output import Waiting, check_ending, note


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument(
        "file", metavar="RUN", help="saved run (.duckdb) of simulate -o, sweep -o, compare -o or search run -o"
    )
    verb.add_argument("-o", "--output", metavar="FILE", help="page to write (.html); it loads nothing from elsewhere")
    verb.add_argument("--scenario", metavar="ID", help="one scenario of a saved sweep (column scenario_id)")


def run(arguments: argparse.Namespace) -> None:
    """Write the HTML page of a saved run."""
    from kernelsight.present.html.report import write_report

    if arguments.output is None:
        raise InvalidInput("report needs -o FILE, the page to write (.html).")
    target = check_ending(arguments.output, (".html",))
    with open_saved(arguments.file) as session, Waiting("simulating"):
        write_report(session, target, arguments.scenario)
    note(f"{target} is written")
