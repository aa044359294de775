"""Evidence of sized deployments: intervals from errors of kernels and host, limiting resources, probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.plan import Plan
from kernelsight.scenario.scenario_rows import deployments_of
from kernelsight.sizing.probability import Chances, chances_of
from kernelsight.sweeps.rate_intervals import (
    RATES,
    Intervals,
    Rated,
    intervals_at,
    nearest_figure,
    rates_at_ends,
    serve_at,
)
from kernelsight.sweeps.rate_search import HighestRate
from kernelsight.sweeps.run_summary import evidence_rows

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sizing.prospects import Sized
    from kernelsight.sizing.search import SizeSearch

# factor on the highest rate at which limits are examined: there an objective breaks
ABOVE = 1.1
# the column of gains for an objective's metric
GAINS = {"ttft": "ttft_gain", "queue": "ttft_gain", "tpot": "tpot_gain", "itl": "tpot_gain"}


class Evidence(NamedTuple):
    """The evidence of one sized deployment.

    ``intervals``: 90 % intervals of statistics by column, as factors; the rates if kernels and host are slow or fast,
    in the unit of the rate; ``limit``: the resource of which a fifth more improves the tightest objective most, a tenth
    above the highest rate; ``chances``: probabilities of the objectives at shares of the rate; ``power_w``: mean power
    of an instance at the highest rate.
    """

    intervals: Mapping[str, tuple[float, float]]
    rate_if_slow: float | None
    rate_if_fast: float | None
    limit: str | None
    chances: Chances | None
    power_w: float | None = None


# evidence of a deployment that was not examined, because the search was interrupted
UNKNOWN = Evidence({}, None, None, None, None)


def evidence_of(
    opened: Iterable[tuple[Session, Plan]], ranked: Sequence[Sized], near: set[str], objectives: Sequence[Objective]
) -> dict[str, Evidence]:
    """Return the evidence of sized deployments by scenario.

    ``opened``: the sessions with the deployments, and their plans; ``near``: scenarios that may be chosen, which get
    probabilities too.
    """
    evidence = {}
    for session, plan in opened:
        names = {row["scenario_id"] for row in plan.planned}
        members = [sized for sized in ranked if sized.candidate.scenario_id in names]
        if not members:
            continue
        rated = [Rated(sized.candidate.flags, sized.highest) for sized in members]
        shares = [RATES if sized.candidate.scenario_id in near else (1.0,) for sized in members]
        at_rates = intervals_at(session, plan, rated, shares)
        limits = _limits(session, plan, rated)
        for sized, intervals, limit in zip(members, at_rates, limits, strict=True):
            evidence[sized.candidate.scenario_id] = _evidence(sized.highest, intervals, limit, objectives)
    return evidence


def labels_of(search: SizeSearch, sized: Sequence[Sized]) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Return tier and rows of ``size_evidence`` of sized deployments by scenario, as served at their highest rates."""
    labels: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for session, plan in zip(search.forks, search.plans, strict=True):
        planned = {row["scenario_id"]: row for row in plan.planned}
        members = [each.candidate for each in sized if each.candidate.scenario_id in planned]
        rated = [Rated(each.candidate.flags, each.highest) for each in sized if each.candidate.scenario_id in planned]
        if not members:
            continue
        names = serve_at(session, plan, [(row, 1.0) for row in rated])
        session.compute("scenario_tiers", "scenario_evidence")
        tiers = {row["scenario_id"]: row["tier"] for row in session.table("scenario_tiers").to_pylist()}
        evidence: dict[str, list[dict[str, Any]]] = {}
        for row in session.table("scenario_evidence").to_pylist():
            evidence.setdefault(row["scenario_id"], []).append(row)
        for candidate, name in zip(members, names, strict=True):
            deployments = deployments_of(planned[candidate.scenario_id])
            rows = evidence_rows(evidence[name], candidate.deployment_id, deployments)
            labels[candidate.scenario_id] = tiers[name], [{"pool": "decode", **row} for row in rows]
    return labels


def _limits(session: Session, plan: Plan, rows: Sequence[Rated]) -> list[str | None]:
    """Return for each row the resource of which more gains most for the tightest objective, above the highest rate."""
    names = serve_at(session, plan, [(rated, ABOVE) for rated in rows])
    gains: dict[str, list[Mapping[str, Any]]] = {}
    for row in session.table("resource_gains").to_pylist():
        gains.setdefault(row["scenario_id"], []).append(row)
    limits = []
    for rated, name in zip(rows, names, strict=True):
        tried = rated.highest.broken or rated.highest.tried
        column = GAINS.get(tried.verdict.tightest.metric, "e2e_gain")
        gains_of_row = [row for row in gains.get(name, []) if row["resource"] != "arrivals" and row[column] is not None]
        limits.append(max(gains_of_row, key=lambda row: row[column])["resource"] if gains_of_row else None)
    return limits


def _evidence(
    rate: HighestRate, at_rates: Mapping[float, Intervals], limit: str | None, objectives: Sequence[Objective]
) -> Evidence:
    intervals = {
        objective.column: (row["low"] / row["predicted"], row["high"] / row["predicted"])
        for objective in objectives
        if (row := at_rates[1.0].get(nearest_figure(objective))) and row["predicted"]
    }
    power_w = at_rates[1.0].get("mean_power_w", {}).get("predicted")
    if len(at_rates) == 1:
        return Evidence(intervals, None, None, limit, None, power_w)
    rates = rates_at_ends(at_rates, rate.rate, objectives)
    return Evidence(intervals, *rates, limit, chances_of(at_rates, objectives, rate.rate, rate.low), power_w)
