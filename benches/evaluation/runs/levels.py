"""Levels of host constants, fitted for a backtest: shipped, none, or on other groups, the own group, or all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, unknown
from kernelsight.evaluation.runs.recipes import is_prose
from kernelsight.evaluation.runs.run_scores import is_scored_separately
from kernelsight.evaluation.runs.simulate_runs import Planned
from kernelsight.laboratory.runs.acceptance import needs_acceptance_rate
from kernelsight.laboratory.runs.constants import LEVELS, constants_of
from kernelsight.laboratory.runs.host_constants import Constants
from kernelsight.laboratory.runs.responses import responses
from kernelsight.laboratory.runs.run_classes import repeats

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


def check_levels(levels: Sequence[str]) -> None:
    """Check levels of host constants; UnknownName: one that does not exist."""
    for level in levels:
        if level not in LEVELS:
            raise unknown("level of --constants", level, LEVELS, f"Known: {', '.join(LEVELS)}.")


def fit_levels(
    session: Session, runs: Sequence[Mapping[str, Any]], planned: Sequence[Planned], levels: Sequence[str]
) -> dict[str, dict[tuple, Constants]]:
    """Return the constants of each group by level, fitted on runs of the fitting fifth; empty for "shipped".

    Runs that repeat the measurement of a scored run, or have an unknown acceptance rate, are not fitted on. Fitting
    runs are simulated once for all levels. InvalidInput: a level needs fitting runs and there are none.
    """
    repeated_runs = repeats(runs)
    chosen = [
        number
        for number, run in enumerate(runs)
        if run["fitting"]
        and not is_scored_separately(run)
        and run["run_id"] not in repeated_runs
        and not needs_acceptance_rate(run)
    ]
    if set(levels) <= {"shipped", "none"}:
        chosen = []
    elif not chosen:
        raise InvalidInput(
            f"--constants {levels[0]} fits host times on the runs whose id has a SHA-256 of 0 modulo 5 and that do not "
            f"repeat a scored run, but none of the {len(runs)} runs qualifies; use --constants shipped."
        )
    prose = [is_prose(runs[number]) for number in chosen]
    fitting_responses = responses(session, [planned[number] for number in chosen], prose)
    fitting = [runs[number] for number in chosen]
    return {
        level: {} if level == "shipped" else constants_of(level, runs, fitting, fitting_responses) for level in levels
    }
