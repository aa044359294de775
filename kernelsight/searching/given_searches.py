"""Gives a session the input tables of `search`: rows of ``search_scenarios``, and the search spaces of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.contract import as_arrow
from kernelsight.dataflow.rows import python_rows
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.space_files import read_spaces

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


def give_searches(session: Session, scenarios: Any, spaces: Sequence[str | Path]) -> None:
    """Give a session the scenarios of searches (a dict, rows or a table), and the search spaces of files, if any."""
    if spaces:
        for name, table in read_spaces(spaces)._asdict().items():
            session.give(name, table)
    if isinstance(scenarios, Mapping):
        scenarios = [dict(scenarios)]
    rows = scenarios if isinstance(scenarios, list) else python_rows(as_arrow(scenarios, "search_scenarios"))
    session.give("search_scenarios", scenario_rows(rows))
