"""Host constants of measured runs: which runs share them, and which runs of the fitting fifth they are fitted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.backtest.fitting import fit, fit_near
from kernelsight.backtest.host_constants import NONE, Constants
from kernelsight.backtest.responses import Response
from kernelsight.backtest.scores import GROUP

FEWEST_RUNS = 2
LEVELS = ("shipped", "none", "version", "group", "transfer")


def constants_of(
    level: str,
    runs: Sequence[Mapping[str, Any]],
    fitting: Sequence[Mapping[str, Any]],
    found: Sequence[Response | None],
) -> dict[tuple, Constants]:
    """Return the constants of each group of ``runs``, fitted on ``fitting`` runs with the responses ``found``.

    Runs have ``host_version``: the first engine version that their row of ``host_overheads`` applies to.
    version: one fit per such row; a group takes that of most of its runs. group: the group's own constants, regularised
    towards its version's. transfer: its version's, fitted without the group. none: no exposed host time.
    """
    groups = versions_of(runs)
    if level == "none":
        return dict.fromkeys(groups, NONE)
    pairs = [(run, response) for run, response in zip(fitting, found, strict=True) if response is not None]
    versions = {at: fit([pair for pair in pairs if version_of(pair[0]) == at]) for at in set(groups.values())}
    chosen = {}
    for group, version in groups.items():
        own = [pair for pair in pairs if group_of(pair[0]) == group]
        chosen[group] = versions[version]
        if level == "group" and len(own) >= FEWEST_RUNS:
            chosen[group] = fit_near(own, versions[version])
        elif level == "transfer" and own:
            others = [pair for pair in pairs if version_of(pair[0]) == version and group_of(pair[0]) != group]
            chosen[group] = fit(others)
    return chosen


def group_of(run: Mapping[str, Any]) -> tuple:
    """Return the names of a run's group: model, GPU, engine, precision."""
    return tuple(run[name] for name in GROUP)


def versions_of(runs: Sequence[Mapping[str, Any]]) -> dict[tuple, tuple]:
    """Return for each group the engine and version of most of its runs; the first of equally frequent ones."""
    counts: dict[tuple, Counter] = {}
    for run in runs:
        counts.setdefault(group_of(run), Counter())[version_of(run)] += 1
    return {group: found.most_common(1)[0][0] for group, found in counts.items()}


def version_of(run: Mapping[str, Any]) -> tuple:
    """Return the engine of a run and the version of its row of ``host_overheads``."""
    return run["engine"], run["host_version"]
