"""Levels of host constants: shipped, none, or fitted on the fitting fifth by version, group or other groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.backtest.acceptance import asks
from kernelsight.backtest.constants import LEVELS, constants_of, group_of
from kernelsight.backtest.host_constants import Constants
from kernelsight.backtest.responses import responses
from kernelsight.backtest.scores import GROUP, is_apart, repeats
from kernelsight.backtest.serve import Planned
from kernelsight.errors import InvalidInput, unknown

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


def check_levels(words: str) -> tuple[str, ...]:
    """Return the levels of host constants that are asked for, the first being the one that is reported in full.

    >>> check_levels("group,none")
    ('group', 'none')
    """
    levels = tuple(dict.fromkeys(words.split(",")))
    for level in levels:
        if level not in LEVELS:
            raise unknown("level of --constants", level, LEVELS, f"Known: {', '.join(LEVELS)}.")
    return levels


def fit_levels(
    session: Session, runs: Sequence[Mapping[str, Any]], planned: Sequence[Planned], levels: Sequence[str]
) -> dict[str, dict[tuple, Constants]]:
    """Return by level the constants of each group; runs of the fitting fifth are simulated once for all levels.

    Not fitted on: those that state the measurement of a scored run once more, and those whose acceptance of proposed
    tokens is still to be fitted.
    """
    known = repeats(runs)
    chosen = [
        number
        for number, run in enumerate(runs)
        if run["fitting"] and not is_apart(run) and run["run_id"] not in known and not asks(run)
    ]
    if set(levels) <= {"shipped", "none"}:
        chosen = []
    elif not chosen:
        raise InvalidInput(
            f"--constants {levels[0]} fits host time to the runs whose id has a SHA-256 of 0 modulo 5 and that repeat "
            f"no scored run, and none of the {len(runs)} is one; use --constants shipped."
        )
    found = responses(session, [planned[number] for number in chosen])
    fitting = [runs[number] for number in chosen]
    return {level: {} if level == "shipped" else constants_of(level, runs, fitting, found) for level in levels}


def constant_rows(fitted: Mapping[tuple, Constants], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the fitted constants of each group, with the version of the row of ``host_overheads`` that it takes."""
    versions = {group_of(row): row["host_version"] for row in rows}
    return [
        {**dict(zip(GROUP, group, strict=True)), "host_version": versions[group], **found._asdict()}
        for group, found in sorted(fitted.items(), key=lambda item: str(item[0]))
    ]
