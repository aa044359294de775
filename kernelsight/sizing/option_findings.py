"""Simulates the best deployments once more, for limits that a setting removes and for the most uncertain kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelsight.dataflow.python_nodes import inside, reads, takes
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.sweeps.rate_intervals import Rated
from kernelsight.sweeps.rate_search import HighestRate
from kernelsight.sweeps.run_summary import cliff_of
from kernelsight.sweeps.trials import give_reach

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sizing.decision import Option
    from kernelsight.sizing.search import SizeSearch

# uncertainty of each family's time at the load: its time x the half width of its interval
DOUBTS = """
with halves as (
  select calls.family, sum(calls.count * latencies.latency_us * ln(latencies.latency_p95_us / latencies.latency_us))
           / sum(calls.count * latencies.latency_us) as half
  from kernel_calls as calls
  join kernel_latencies as latencies using (deployment_id, step_shape_id, call)
  where deployment_id = '{deployment_id}' and latencies.latency_us > 0
  group by calls.family
)
select family, sum(total_us) * any_value(half) as doubt
from kernel_breakdown
join halves using (family)
where scenario_id = '{scenario_id}'
group by family
order by doubt desc, family
"""
# factor on the highest rate at which limits are examined: there an objective breaks
ABOVE = 1.1
# the column of gains for an objective's metric
GAINS = {"ttft": "ttft_gain", "queue": "ttft_gain", "tpot": "tpot_gain", "itl": "tpot_gain"}
# share of the uncertainty of all kernels that the named families hold
MOST_OF_IT = 0.8


class OptionFindings(NamedTuple):
    """Findings on one deployment.

    ``limit``: the resource of which a fifth more improves the tightest objective most, a tenth above the highest rate.
    ``cliff``: the sentence on CUDA graphs that end below the batch sizes; None: they do not. ``doubts``: the kernel
    families with most of the uncertainty of the kernels' time, the most uncertain first.
    """

    limit: str | None
    cliff: str | None
    doubts: tuple[str, ...]


@inside("size_answers", "sized_deployments")
@takes("size_costs")
@reads(
    *("deployment_settings", "step_shapes", "kernel_latencies", "kernel_breakdown", "resource_gains", "step_cost_uses"),
)
def findings_on(search: SizeSearch, options: Sequence[Option]) -> list[OptionFindings]:
    """Simulate the load of one instance of each option, and examine its steps and kernels.

    A Ctrl-C ends this examination, not the answer.
    """
    try:
        return _examine(options) if options else []
    except KeyboardInterrupt:
        search.note_interrupt()
        return [OptionFindings(None, None, ())] * len(options)


def _examine(options: Sequence[Option]) -> list[OptionFindings]:
    with options[0].sized.prospect.session.fork() as fork:
        # only these deployments are examined, each at its load and a little above its highest rate
        rated = [(Rated.of(option.sized.candidate.flags, option.sized.highest), option) for option in options]
        rows = [one.flags_at(share) for one, option in rated for share in (min(option.load, 1.0), ABOVE)]
        plan = plan_rows(fork, rows, on_fault="collect")  # of few users both shares may be the same load
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        give_reach(fork, plan.planned)
        fork.compute("resource_gains", "kernel_breakdown", "step_cost_uses", "kernel_latencies")
        names = [scenario["scenario_id"] for scenario in plan.scenarios]
        return [
            _findings(fork, option, *pair)
            for option, pair in zip(options, zip(names[::2], names[1::2], strict=True), strict=True)
        ]


def _findings(session: Session, option: Option, at_load: str, above: str) -> OptionFindings:
    """Return the findings on an option from its scenarios at its load, and above its highest rate."""
    deployment_id = option.sized.candidate.deployment_id
    settings = {row["deployment_id"]: row for row in session.table("deployment_settings").to_pylist()}
    cliff = cliff_of(session, settings[deployment_id], at_load)
    doubts = session.query(DOUBTS.format(deployment_id=deployment_id, scenario_id=at_load)).to_pylist()
    remaining, families = MOST_OF_IT * sum(row["doubt"] for row in doubts), []
    for row in doubts:
        if remaining <= 0.0:
            break
        families.append(row["family"])
        remaining -= row["doubt"]
    return OptionFindings(_limit(session, option.sized.highest, above), cliff, tuple(families))


def _limit(session: Session, highest: HighestRate, above: str) -> str | None:
    """Return the resource of which more gains most for the tightest objective, in a scenario above the rate."""
    tried = highest.broken or highest.tried
    column = GAINS.get(tried.verdict.tightest.metric, "e2e_gain")
    gains = session.table("resource_gains").to_pylist()
    known = [
        row
        for row in gains
        if row["scenario_id"] == above and row["resource"] != "arrivals" and row[column] is not None
    ]
    return max(known, key=lambda row: row[column])["resource"] if known else None
