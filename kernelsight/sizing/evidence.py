"""Evidence of sized deployments: intervals from errors of kernels and host, limiting resources, probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.dataflow.python_nodes import inside, reads, takes
from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.plan import Plan
from kernelsight.scenario.scenario_rows import deployments_of
from kernelsight.sizing.probability import NORMAL, Chances, chances_of, spare_in
from kernelsight.sweeps.rate_intervals import (
    RATES,
    Rated,
    intervals_at,
    nearest_figure,
    rates_at_ends,
    serve_at,
)
from kernelsight.sweeps.run_summary import evidence_rows

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sizing.prospects import Prospect, Sized

# factor by which a tail of a short run may be above that of a long one, at a rate that has DOUBT already
NOISE = 1.05


class Evidence(NamedTuple):
    """The evidence of one sized deployment.

    ``intervals``: 90 % intervals of statistics by column, as factors; the rates if kernels and host are slow or fast,
    in the unit of the rate; ``chances``: probabilities of the objectives at shares of the rate; ``power_w``: mean power
    of an instance at the highest rate.
    """

    intervals: Mapping[str, tuple[float, float]]
    rate_if_slow: float | None
    rate_if_fast: float | None
    chances: Chances | None
    power_w: float | None = None


# evidence of a deployment that was not examined, because the search was interrupted
UNKNOWN = Evidence({}, None, None, None)


@inside("size_answers", "size_statistics", "size_costs")
@takes("size_simulations")
@reads("scenario_intervals", "scenario_summary")
def evidence_of(
    session: Session, plan: Plan, sized: Sized, objectives: Sequence[Objective], shares: Sequence[float] = RATES
) -> Evidence:
    """Return the probabilities of a deployment's objectives at shares of its rate, and what they rest on.

    ``session``, ``plan``: those that hold it.
    """
    rate = sized.highest
    (at_rates,) = intervals_at(session, plan, [Rated.of(sized.candidate.flags, rate)], [shares])
    intervals = {
        objective.column: (row["low"] / row["predicted"], row["high"] / row["predicted"])
        for objective in objectives
        if (row := at_rates[1.0].get(nearest_figure(objective))) and row["predicted"]
    }
    power_w = at_rates[1.0].get("mean_power_w", {}).get("predicted")
    rates = rates_at_ends(at_rates, rate.rate, objectives)
    return Evidence(intervals, *rates, chances_of(at_rates, objectives, rate.rate, rate.low), power_w)


@inside("size_answers", "unsized_deployments")
@takes("size_bounds")
@reads("scenario_intervals", "scenario_summary")
def may_hold(prospect: Prospect, load: float, objectives: Sequence[Objective], confidence: float) -> bool:
    """Return whether one instance may keep the objectives with a confidence, above 0.5, at a load, by a short run.

    Its tails are noise: what it reaches there is allowed, and ``NOISE`` times every objective.
    """
    lenient = [objective._replace(most_ms=NOISE * objective.most_ms) for objective in objectives]
    rated = Rated(prospect.candidate.flags, load)
    ((figures,),) = (each.values() for each in intervals_at(prospect.session, prospect.plan, [rated], [(1.0,)]))
    return NORMAL.cdf(spare_in(figures, figures, lenient)) >= confidence


class Label(NamedTuple):
    """What a sized deployment rests on: its tier, what was not measured, and its rows of ``size_evidence``."""

    tier: str
    not_measured: str | None
    rows: list[dict[str, Any]]


@inside("size_answers", "size_evidence")
@takes("size_simulations")
@reads("deployment_tiers", "scenario_tiers", "scenario_evidence")
def labels_of(sized: Sequence[Sized]) -> dict[str, Label]:
    """Return the labels of sized deployments by scenario, as served at their highest rates."""
    labels: dict[str, Label] = {}
    for session in {id(each.prospect.session): each.prospect.session for each in sized}.values():
        members = [each for each in sized if each.prospect.session is session]
        plan = members[0].prospect.plan
        names = serve_at(session, plan, [(Rated.of(each.candidate.flags, each.highest), 1.0) for each in members])
        session.compute("scenario_tiers", "scenario_evidence")
        tiers = {row["scenario_id"]: row["tier"] for row in session.table("scenario_tiers").to_pylist()}
        rows = {row["deployment_id"]: row for row in session.table("deployment_tiers").to_pylist()}
        planned = {row["scenario_id"]: row for row in plan.planned}
        evidence: dict[str, list[dict[str, Any]]] = {}
        for row in session.table("scenario_evidence").to_pylist():
            evidence.setdefault(row["scenario_id"], []).append(row)
        for candidate, name in zip((each.candidate for each in members), names, strict=True):
            deployments = deployments_of(planned[candidate.scenario_id])
            parts = evidence_rows(evidence[name], candidate.deployment_id, deployments)
            not_measured = rows[candidate.deployment_id]["not_measured"]
            labels[candidate.scenario_id] = Label(
                tiers[name], not_measured, [{"pool": "decode", **row} for row in parts]
            )
    return labels
