"""Host constants of measured runs: for whom they stand, and which runs of the fitting fifth they are fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.fit_host import fit, fit_near
from kernelsight.evaluation.runs.host_constants import Constants, a_priori
from kernelsight.evaluation.runs.responses import Response
from kernelsight.evaluation.runs.scores import GROUP

FEWEST_RUNS = 2
LEVELS = ("transfer", "group", "all", "shipped", "none")


def constants_of(
    level: str,
    runs: Sequence[Mapping[str, Any]],
    fitting: Sequence[Mapping[str, Any]],
    fitting_responses: Sequence[Response | None],
) -> dict[tuple, Constants]:
    """Return the constants of each group of ``runs``, fitted on ``fitting`` runs and their responses.

    transfer: fitted on all groups but the own. all: fitted on all groups; the catalogue ships these. group: the group's
    own constants, regularised towards those of all. none: nothing fitted, a priori.
    """
    groups = dict.fromkeys(group_of(run) for run in runs)
    if level == "none":
        return dict.fromkeys(groups, a_priori())
    pairs = [(run, response) for run, response in zip(fitting, fitting_responses, strict=True) if response is not None]
    everyone = fit(pairs)
    chosen = {}
    for group in groups:
        of_group = [pair for pair in pairs if group_of(pair[0]) == group]
        chosen[group] = everyone
        if level == "group" and len(of_group) >= FEWEST_RUNS:
            chosen[group] = fit_near(of_group, everyone)
        elif level == "transfer" and of_group:
            chosen[group] = fit([pair for pair in pairs if group_of(pair[0]) != group])
    return chosen


def group_of(run: Mapping[str, Any]) -> tuple:
    """Return the names of a run's group: model, GPU, engine, precision."""
    return tuple(run[name] for name in GROUP)
