"""Short forms of what tests ask: scenarios given to a session, sweeps with the options of their execution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight import errors
from kernelsight.scenario import plan
from kernelsight.session import Session, connect
from kernelsight.sweeps import sweep as sweeps


def give_plan(session: Session, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give the deployments and scenarios of rows of flags; return the scenario of each row."""
    planned = plan.plan_rows(session, rows, origin="")
    plan.give_plan(session, list(planned.deployments.values()), planned.planned)
    return [row["scenario_id"] for row in planned.scenarios]


def sweep(
    session: Session,
    rows: Sequence[Mapping[str, Any]],
    *,
    goodput: Mapping[str, float] | None = None,
    slo: Mapping[str, float] | None = None,
    **execution: Any,
) -> pa.Table:
    """Sweep rows of flags; other processes open sessions of their own."""
    execution = sweeps.Execution(**{"connect": connect, **execution})
    return sweeps.sweep(session, rows, goodput=goodput, slo=slo, execution=execution)


def summaries(session: Session, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the summaries of rows of flags, in the order of the rows."""
    found = session.what_if(list(rows))
    by_id = {row["scenario_id"]: row for row in found.summary.to_pylist()}
    return [by_id[row["scenario_id"]] for row in found._plan.scenarios]


def refusals(test: str) -> list[Any]:
    """Return the rows of a test in ``refusals.json``: what is asked, and the sentence or reason that refuses it.

    A cell that is the name of an error stands for its class.
    """
    return [
        [getattr(errors, cell, cell) if isinstance(cell, str) and cell[:1].isupper() else cell for cell in row]
        if isinstance(row, list)
        else row
        for row in _refusals()[test]
    ]


@cache
def _refusals() -> dict[str, list[Any]]:
    return json.loads((Path(__file__).parent / "refusals.json").read_text(encoding="utf-8"))
