"""What the rows of an answer rest on: how far off kernels and host may be, and what limits each deployment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.scenario.objectives import STATISTICS, Objective
from kernelsight.scenario.scenarios import Plan, give_plan, plan_rows

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sizing.search import Sized

# rates of a served load, over the found one: here intervals are taken, and the rates at which they keep the objectives
RATES = (0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
# above the found rate by so much something gives way
ABOVE = 1.1
REQUESTS = 1_200


class Evidence(NamedTuple):
    """Beside a row: ``intervals`` of statistics by column, ms; the rates if kernels and host are slow or fast.

    ``limit``: the resource of which a fifth more brings the tightest objective most, a tenth above the found rate.
    """

    intervals: Mapping[str, tuple[float, float]]
    rate_if_slow: float | None
    rate_if_fast: float | None
    limit: str | None


def evidence_of(
    opened: Iterable[tuple[Session, Plan]], ranked: Sequence[Sized], sure: set[str], objectives: Sequence[Objective]
) -> dict[str, Evidence]:
    """Return the evidence of sized deployments by scenario; ``sure``: those whose rates have an interval of their own.

    ``opened``: the sessions that hold the deployments, with their plans.
    """
    found = {}
    for session, plan in opened:
        names = {row["scenario_id"] for row in plan.planned}
        members = [sized for sized in ranked if sized.candidate.scenario_id in names]
        if members:
            at_rates = _intervals(session, plan, members, sure)
            limits = _limits(session, plan, members)
            for sized in members:
                name = sized.candidate.scenario_id
                found[name] = _evidence(sized, at_rates[name], limits.get(name), objectives)
    return found


def _serve(
    session: Session, plan: Plan, wanted: Sequence[tuple[Sized, float]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Give a session the scenarios of deployments at rates, and return the name of each in their order."""
    rows = [
        {**sized.candidate.flags, "request_rate": sized.found.rate * factor, "num_prompts": _requests(sized)}
        for sized, factor in wanted
    ]
    planned = plan_rows(session, rows, on_fault="collect")
    give_plan(session, list(plan.deployments.values()), planned.planned)
    return [scenario["scenario_id"] for scenario in planned.scenarios], rows


def _requests(sized: Sized) -> int:
    return min(max(sized.found.requests, 100), REQUESTS)


def _intervals(
    session: Session, plan: Plan, members: Sequence[Sized], sure: set[str]
) -> dict[str, dict[float, dict[str, Mapping[str, float]]]]:
    """Return rows of ``scenario_intervals`` by deployment, share of the found rate, and figure."""
    wanted = [
        (sized, factor) for sized in members for factor in (RATES if sized.candidate.scenario_id in sure else (1.0,))
    ]
    names, _ = _serve(session, plan, wanted)
    rows: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in session.table("scenario_intervals").to_pylist():
        rows.setdefault(row["scenario_id"], {})[row["metric"]] = row
    found: dict[str, dict[float, dict[str, Mapping[str, float]]]] = {}
    for (sized, factor), name in zip(wanted, names, strict=True):
        found.setdefault(sized.candidate.scenario_id, {})[factor] = rows.get(name, {})
    return found


def _limits(session: Session, plan: Plan, members: Sequence[Sized]) -> dict[str, str]:
    """Return by deployment the resource whose relief gains most of the tightest objective, above the found rate."""
    names, _ = _serve(session, plan, [(sized, ABOVE) for sized in members])
    gains: dict[str, list[Mapping[str, Any]]] = {}
    for row in session.table("resource_gains").to_pylist():
        gains.setdefault(row["scenario_id"], []).append(row)
    found = {}
    for sized, name in zip(members, names, strict=True):
        trying = sized.found.broken or sized.found.tried
        column = GAINS.get(trying.verdict.tightest.metric, "e2e_gain")
        rows = [row for row in gains.get(name, []) if row["resource"] != "arrivals" and row[column] is not None]
        if rows:
            found[sized.candidate.scenario_id] = max(rows, key=lambda row: row[column])["resource"]
    return found


# the gain that brings an objective's metric down
GAINS = {"ttft": "ttft_gain", "queue": "ttft_gain", "tpot": "tpot_gain", "itl": "tpot_gain"}


def _evidence(
    sized: Sized,
    at_rates: Mapping[float, Mapping[str, Mapping[str, float]]],
    limit: str | None,
    objectives: Sequence[Objective],
) -> Evidence:
    here = at_rates[1.0]
    intervals = {
        objective.column: (row["low"] / row["predicted"], row["high"] / row["predicted"])
        for objective in objectives
        if (row := here.get(_nearest(objective))) and row["predicted"]
    }
    if len(at_rates) == 1:
        return Evidence(intervals, None, None, limit)
    rate = sized.found.rate
    slow, fast = (
        min((_keeps_up_to(at_rates, objective, end) for objective in objectives if _nearest(objective)), default=None)
        for end in ("high", "low")
    )
    return Evidence(intervals, slow and min(slow, 1.0) * rate, fast and max(fast, 1.0) * rate, limit)


def _nearest(objective: Objective) -> str | None:
    """Return the figure with an interval that is nearest to an objective; None for a metric that has none."""
    metric = {"queue": "ttft", "itl": "tpot"}.get(objective.metric, objective.metric)
    if objective.percent is None:
        return f"{metric}_mean_ms"
    near = min(STATISTICS[1:], key=lambda name: abs(float(name[1:]) - objective.percent))
    return f"{metric}_{near}_ms"


def _keeps_up_to(at_rates: Mapping[float, Mapping[str, Mapping[str, float]]], objective: Objective, end: str) -> float:
    """Return up to which share of the found rate an end of the interval keeps an objective.

    What the figure itself reaches at the found rate is kept there by definition: tails of short runs differ.
    """
    figure = _nearest(objective)
    most = max(objective.most_ms, at_rates[1.0].get(figure, {}).get("predicted") or 0.0)
    before = None
    for factor in sorted(at_rates):
        value = at_rates[factor].get(figure, {}).get(end)
        if value is None:
            continue
        if value > most:
            if before is None:
                return 0.0
            share = math.log(most / before[1]) / math.log(value / before[1])
            return before[0] * (factor / before[0]) ** share
        before = (factor, value)
    return before[0] if before else 0.0
