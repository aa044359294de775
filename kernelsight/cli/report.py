"""`kernelsight report`: writes a saved run, sweep, comparison or kernel search as one HTML page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernelsight.cli.options import open_saved
from kernelsight.errors import InvalidInput
from kernelsight.present.output import check_ending, note
from kernelsight.present.progress import Waiting
from kernelsight.present.show import HTML

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.present.page import Page


def run(arguments: argparse.Namespace) -> None:
    """Write the HTML page of a saved run."""
    from kernelsight.present.show import write_page

    if arguments.output is None:
        raise InvalidInput("report needs -o FILE, the page to write (.html).")
    target = check_ending(arguments.output, (HTML,))
    with open_saved(arguments.file) as session, Waiting("simulating"):
        write_page(saved_page(session, arguments.scenario), target)
    note(f"{target} is written")


def saved_page(session: Session, scenario: str | None) -> Page:
    """Return the page of a saved run, a sweep, one scenario of it, a comparison or a kernel search.

    ``scenario``: its id, None: all. InvalidInput: nothing is saved there, or a comparison has no scenarios.
    """
    from kernelsight.present.pages.compare import FINDINGS, saved_comparison_page
    from kernelsight.present.pages.search import search_page
    from kernelsight.present.pages.sweep import sweep_page
    from kernelsight.serving.breakdown.one_scenario import one_scenario, scenarios_of
    from kernelsight.sweeps.runs import SWEEP, Run
    from kernelsight.sweeps.sweep import pareto_front

    saved = session.available()
    if FINDINGS in saved:
        if scenario is not None:
            raise InvalidInput(f"{session.path} holds a comparison with a log, and no scenarios; remove --scenario.")
        return saved_comparison_page(session)
    if "search_scenarios" in saved:
        return search_page(session, scenario)
    if scenario is None and (len(scenarios_of(session)) > 1 or SWEEP in saved):
        table = session.table(SWEEP if SWEEP in saved else "scenario_summary")
        fronts = {name: pareto_front(session, table, name) for name in ("pareto_front", "energy_front")}
        return sweep_page(table, fronts, session=lambda: session)
    return Run(one_scenario(session, scenario)).page()
