"""Host constants of measured runs: which runs share them, and which runs of the fitting fifth they are fitted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.backtest.scores import GROUP

if TYPE_CHECKING:
    from kernelsight.backtest.responses import Response

FEWEST_RUNS = 2
LEVELS = ("shipped", "none", "version", "group", "transfer")


class Constants(NamedTuple):
    """Host times of an engine, and a factor (``pace``) on the kernel times of a group of runs.

    ``eager_launch_us``: host time of each kernel launched outside CUDA graphs. It overlaps the kernels: such a step
    takes the longer of the two.
    """

    step_ms: float
    per_request_us: float
    request_ms: float
    pace: float = 1.0
    eager_launch_us: float = 0.0
    per_prompt_token_us: float = 0.0

    def host(self) -> dict[str, float]:
        """Return the columns of ``host_settings``, divided by ``pace``.

        A closed loop scales with its unit of time: kernels ``pace`` times slower with some host time are equivalent to
        kernels as predicted with 1 / pace of that host time, all resulting times multiplied by ``pace``.
        """
        return {
            "launch_gap_us": 0.0,
            "per_eager_launch_us": self.eager_launch_us / self.pace,
            "step_exposed_us": 1000.0 * self.step_ms / self.pace,
            "exposed_per_request_us": self.per_request_us / self.pace,
            "request_us": 1000.0 * self.request_ms / self.pace,
            "per_prompt_token_us": self.per_prompt_token_us / self.pace,
        }


NONE = Constants(0.0, 0.0, 0.0)


def with_host(host_settings: Any, of: Any) -> Any:
    """Return ``host_settings`` with the constants that ``of`` returns for a deployment_id; None keeps the row."""
    import pyarrow as pa

    rows = []
    for row in host_settings.to_pylist():
        found = of(row["deployment_id"])
        rows.append(row if found is None else {**row, **found.host()})
    return pa.Table.from_pylist(rows, schema=host_settings.schema)


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
    from kernelsight.backtest.fitting import fit, fit_near

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
