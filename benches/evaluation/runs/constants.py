"""Host constants by group of measured runs, at a level: fitted on other groups, all groups, the own group, or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.run_scores import group_of
from kernelsight.laboratory.runs.fit_host import fit, fit_near
from kernelsight.laboratory.runs.host_constants import Constants, a_priori
from kernelsight.laboratory.runs.responses import Response

FEWEST_RUNS = 2
LEVELS = ("transfer", "group", "all", "shipped", "none")


def constants_of(
    level: str,
    runs: Sequence[Mapping[str, Any]],
    fitting: Sequence[Mapping[str, Any]],
    fitting_responses: Sequence[Response | None],
) -> dict[tuple, Constants]:
    """Return the constants of each group of ``runs``, fitted on ``fitting`` runs and their responses.

    ``level``: transfer, fitted on all groups except the own; all, fitted on all groups (the catalogue ships these);
    group, the group's own constants, regularised towards those of all; none, a priori.
    """
    groups = dict.fromkeys(group_of(run) for run in runs)
    if level == "none":
        return dict.fromkeys(groups, a_priori())
    pairs = [(run, response) for run, response in zip(fitting, fitting_responses, strict=True) if response is not None]
    of_all_groups = fit(pairs)
    by_group = {}
    for group in groups:
        of_group = [pair for pair in pairs if group_of(pair[0]) == group]
        by_group[group] = of_all_groups
        if level == "group" and len(of_group) >= FEWEST_RUNS:
            by_group[group] = fit_near(of_group, of_all_groups)
        elif level == "transfer" and of_group:
            by_group[group] = fit([pair for pair in pairs if group_of(pair[0]) != group])
    return by_group
