"""Partitions of a sweep: scenarios of the same deployments, which are simulated together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import KernelSightError
from kernelsight.scenario.objectives import interval_columns
from kernelsight.scenario.plan import give_plan
from kernelsight.serving.costs.knots import FEW_DEPLOYMENTS
from kernelsight.serving.load.requests import LOAD_COLUMNS
from kernelsight.sweeps.percentiles import with_percentiles

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.scenario.plan import Plan

WITH_INTERVALS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p99_ms", "output_throughput")

# most requests and deployments of a partition, whose memory grows with both
REQUESTS = 1 << 21
DEPLOYMENTS = 128
# of one that is kept, or run beside others: seconds are lost with it
PART_REQUESTS = 1 << 18
PART_SCENARIOS = 4096


class Partition(NamedTuple):
    """The unit of work of a sweep: rows of ``deployments`` and ``scenarios``."""

    deployments: list[dict[str, Any]]
    scenarios: list[dict[str, Any]]


class PartitionServing(NamedTuple):
    """Simulates partitions in forks of a session, with tables given to them; as a function, it can be sent to others.

    ``lone``: of the only scenario of a sweep errors are raised; ``percentiles``: columns such as ttft_p95_ms that
    ``scenario_summary`` lacks; ``intervals``: with 90 % intervals, for which each scenario is simulated again.
    """

    given: dict[str, pa.Table]
    threads: int | None = None
    lone: bool = False
    percentiles: tuple[str, ...] = ()
    intervals: bool = False

    def fork(self, session: Session) -> Session:
        """Return a fork of a session with the given tables."""
        fork = session.fork()
        fork.threads = self.threads or session.threads
        for name, table in self.given.items():
            fork.give(name, table)
        return fork

    def __call__(self, partition: Partition, session: Session) -> pa.Table:
        """Return the ``scenario_summary`` of a partition.

        A scenario that cannot be served does not stop the others: its ``status`` says why.
        """
        with self.fork(session) as fork:
            return _served(fork, *partition, self)


def split(plan: Plan, requests: int, most: int = PART_SCENARIOS) -> list[Partition]:
    """Split a plan into partitions of at most ``requests`` requests and ``most`` scenarios: whole deployments, or parts
    of a larger one.

    Of few deployments, a partition has all, and whole loads: a load that several partitions share is drawn in each.
    """
    sizes = _sizes(plan)
    few = len({row["deployment_id"] for row in plan.planned}) <= FEW_DEPLOYMENTS
    rows: dict[Any, list[dict[str, Any]]] = {}
    for scenario in sorted(plan.planned, key=lambda row: (row["deployment_id"], row["scenario_id"])):
        shared = tuple(map(scenario.get, LOAD_COLUMNS)) if few else scenario["deployment_id"]
        rows.setdefault(shared, []).append(scenario)
    groups: list[list[dict[str, Any]]] = [[]]
    size_so_far, deployments = 0, 0
    for scenarios in rows.values():
        deployment_size = sum(sizes[row["scenario_id"]] for row in scenarios)
        too_large = size_so_far + deployment_size > requests or len(groups[-1]) + len(scenarios) > most
        if groups[-1] and (too_large or (deployments == DEPLOYMENTS and not few)):
            groups.append([])
            size_so_far = deployments = 0
        deployments += 1
        for scenario in scenarios:
            size = sizes[scenario["scenario_id"]]
            if groups[-1] and (size_so_far + size > requests or len(groups[-1]) == most):
                groups.append([])
                size_so_far, deployments = 0, 1
            groups[-1].append(scenario)
            size_so_far += size
    return [Partition(plan.deployments_of(group), group) for group in groups]


def total_requests(plan: Plan) -> int:
    """Return the number of requests of all scenarios of a plan."""
    return sum(_sizes(plan).values())


def _sizes(plan: Plan) -> dict[str, int]:
    """Return the number of requests by scenario; a trace is read once for all scenarios."""
    from kernelsight.serving.load.recorded_loads import read_trace

    traces = {path: read_trace(path).num_rows for path in {row["trace"] for row in plan.planned if row.get("trace")}}
    return {
        row["scenario_id"]: min(row.get("num_prompts", traces[row["trace"]]), traces[row["trace"]])
        if row.get("trace")
        else row["num_prompts"]
        for row in plan.planned
    }


def _served(session: Session, deployments: list[dict], scenarios: list[dict], serving: PartitionServing) -> pa.Table:
    """Simulate scenarios, bisected on an error, until the one that cannot be served has the error as its ``status``."""
    import pyarrow as pa

    try:
        with session.fork() as fork:
            give_plan(fork, deployments, scenarios)
            return _summary(fork, serving)
    except KernelSightError as error:
        if serving.lone:
            raise
        sentence = str(error).rstrip(".")
    if len(scenarios) > 1:
        middle = len(scenarios) // 2
        halves = scenarios[:middle], scenarios[middle:]
        return pa.concat_tables([_served(session, deployments, half, serving) for half in halves])
    with session.fork() as fork:
        give_plan(fork, deployments, scenarios)
        fault = {"deployment_id": scenarios[0]["deployment_id"], "fault": "load", "sentence": sentence}
        fork.give("deployment_faults", [fault])
        return _summary(fork, serving)


def _summary(session: Session, serving: PartitionServing) -> pa.Table:
    if serving.intervals:
        session.compute("scenario_summary", "scenario_intervals")
    summary = with_percentiles(session, serving.percentiles)
    return with_intervals(session, summary) if serving.intervals else summary


def with_intervals(session: Session, summary: pa.Table) -> pa.Table:
    """Return a summary with both ends of WITH_INTERVALS (``scenario_intervals``); null where no request was served."""
    import pyarrow as pa

    bounds_of = {
        (row["scenario_id"], row["metric"]): (row["low"], row["high"])
        for row in session.table("scenario_intervals").to_pylist()
    }
    names = summary["scenario_id"].to_pylist()
    for figure in WITH_INTERVALS:
        bounds = [bounds_of.get((name, figure), (None, None)) for name in names]
        for side, column in enumerate(interval_columns(figure)):
            summary = summary.append_column(column, pa.array([pair[side] for pair in bounds], pa.float64()))
    return summary
