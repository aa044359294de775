"""`kernelsight report`: writes a saved run, sweep, comparison or kernel search as one HTML page."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import open_saved
from kernelsight.errors import InvalidInput
from kernelsight.present.output import Waiting, check_ending, note


def run(arguments: argparse.Namespace) -> None:
    """Write the HTML page of a saved run."""
    from kernelsight.present.html.report import write_report

    if arguments.output is None:
        raise InvalidInput("report needs -o FILE, the page to write (.html).")
    target = check_ending(arguments.output, (".html",))
    with open_saved(arguments.file) as session, Waiting("simulating"):
        write_report(session, target, arguments.scenario)
    note(f"{target} is written")
