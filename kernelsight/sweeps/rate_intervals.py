"""Intervals of highest rates by errors of kernels and host: the rates if these are slow, and if they are fast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.scenario.objectives import STATISTICS, Objective
from kernelsight.scenario.plan import Plan, give_plan, plan_rows
from kernelsight.sweeps.rate_search import HighestRate

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# simulated rates, as shares of the highest one
RATES = (0.3, 0.5, 0.7, 0.85, 1.0, 1.15, 1.4)
# requests of a run, which are enough for ratios of its figures
LEAST_REQUESTS, MOST_REQUESTS = 100, 1_200
# least requests of a closed loop per user: in the first round all begin at once
LEAST_STAYS = 4

# rows of ``scenario_intervals`` of one scenario by figure, and its mean power
Intervals = Mapping[str, Mapping[str, float]]


class Rated(NamedTuple):
    """A row of flags with a rate, requests/s or users, and the requests of the run that found it."""

    flags: Mapping[str, Any]
    rate: float
    requests: int = MOST_REQUESTS

    @classmethod
    def of(cls, flags: Mapping[str, Any], highest: HighestRate) -> Rated:
        """Return a row of flags with its highest rate."""
        return cls(flags, highest.rate, highest.requests)

    def flags_at(self, share: float) -> dict[str, Any]:
        """Return the flags of the row at a share of its rate, or of its users in a closed loop."""
        requests, level = min(max(self.requests, LEAST_REQUESTS), MOST_REQUESTS), self.rate * share
        if "max_concurrency" not in self.flags:
            return {**self.flags, "request_rate": level, "num_prompts": requests}
        users = max(round(level), 1)
        sessions = self.flags.get("num_turns") or 1
        requests = max(requests, LEAST_STAYS * users * sessions)
        return {**self.flags, "max_concurrency": users, "num_prompts": requests}


def serve_at(session: Session, plan: Plan, rated_shares: Sequence[tuple[Rated, float]]) -> list[str]:
    """Give a session the scenarios of rows at shares of their rates, and return their scenario ids.

    ``plan``: of the session's deployments.
    """
    rows = [rated.flags_at(share) for rated, share in rated_shares]
    planned = plan_rows(session, rows, on_fault="collect")
    give_plan(session, list(plan.deployments.values()), planned.planned)
    return [scenario["scenario_id"] for scenario in planned.scenarios]


def intervals_at(
    session: Session, plan: Plan, rows: Sequence[Rated], shares: Sequence[Sequence[float]]
) -> list[dict[float, Intervals]]:
    """Simulate each row at its ``shares`` of the highest rate; return the intervals of its figures by share."""
    rated_shares = [(rated, share) for rated, row_shares in zip(rows, shares, strict=True) for share in row_shares]
    names = iter(serve_at(session, plan, rated_shares))
    session.compute("scenario_intervals", "scenario_summary")  # one simulation for both
    by_name: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in session.table("scenario_intervals").to_pylist():
        by_name.setdefault(row["scenario_id"], {})[row["metric"]] = row
    for row in session.table("scenario_summary").to_pylist():
        if row["mean_power_w"] is not None:
            power = {"predicted": row["mean_power_w"], "low": row["mean_power_w_low"], "high": row["mean_power_w_high"]}
            by_name.setdefault(row["scenario_id"], {})["mean_power_w"] = power
    return [{share: by_name.get(next(names), {}) for share in row_shares} for row_shares in shares]


def rates_at_ends(
    at_rates: Mapping[float, Intervals], rate: float, objectives: Sequence[Objective]
) -> tuple[float, float]:
    """Return the rates up to which the upper, and the lower, ends of the latencies' intervals keep all objectives."""
    slow, fast = (min(_keeps_up_to(at_rates, objective, end) for objective in objectives) for end in ("high", "low"))
    return min(slow, 1.0) * rate, max(fast, 1.0) * rate


def nearest_figure(objective: Objective) -> str:
    """Return the figure of ``scenario_intervals`` that is nearest to an objective's statistic."""
    metric = {"queue": "ttft", "itl": "tpot"}.get(objective.metric, objective.metric)
    if objective.percent is None:
        return f"{metric}_mean_ms"
    near = min(STATISTICS[1:], key=lambda name: abs(float(name[1:]) - objective.percent))
    return f"{metric}_{near}_ms"


def _keeps_up_to(at_rates: Mapping[float, Intervals], objective: Objective, end: str) -> float:
    """Return the share of the highest rate up to which an end of the interval keeps an objective; 0: at none.

    The figure at the highest rate keeps the objective by definition, even where tails of short runs are above it.
    """
    figure = nearest_figure(objective)
    most = max(objective.most_ms, at_rates[1.0].get(figure, {}).get("predicted") or 0.0)
    before = None
    for share in sorted(at_rates):
        value = at_rates[share].get(figure, {}).get(end)
        if value is None:
            continue
        if value > most:
            if before is None:
                return 0.0
            fraction = math.log(most / before[1]) / math.log(value / before[1])
            return before[0] * (share / before[0]) ** fraction
        before = (share, value)
    return before[0] if before else 0.0
