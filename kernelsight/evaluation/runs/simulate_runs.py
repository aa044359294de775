"""Simulation of measured runs as scenarios, a few deployments at a time: predicted means, intervals, time by part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from kernelsight.dataflow.progress import Done
from kernelsight.evaluation.runs.campaigns import FULL_THROUGHPUT, full_throughputs
from kernelsight.kernels.families import COMMUNICATION
from kernelsight.kernels.labels import CERTAINTY, MEASURED
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.sweeps.partitions import Partition

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


class HostConstants(Protocol):
    """Host times of a group of runs; ``pace``: factor on its kernels."""

    @property
    def pace(self) -> float:
        """Factor on the kernels of the group."""

    def host(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the replaced columns of a row of ``host_settings``."""


def with_host(
    host_settings: pa.Table,
    columns_of: Callable[[Mapping[str, Any]], Mapping[str, float] | None],
    prose: Collection[str] = (),
) -> pa.Table:
    """Return ``host_settings`` with the columns that ``columns_of`` returns for a row replaced; None keeps the row.

    ``prose``: ids of deployments whose prompts are natural text, whose tokenisation time is 0 (see ``recipes``).
    """
    rows = []
    for row in host_settings.to_pylist():
        row |= columns_of(row) or {}
        if row["deployment_id"] in prose:
            row["per_prompt_token_us"] = 0.0
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=host_settings.schema)


# smallest share of GPU time of a component that is considered
LEAST_SHARE = 0.1
# component of every run: analytic terms that no sweep measures
ALWAYS_ANALYTIC = "other kernels"

# deployments whose step costs are in memory at once
DEPLOYMENTS = 24
# columns that are multiplied by ``pace``, the factor on kernels
TIMES = (
    *("ttft_mean_ms", "tpot_mean_ms", "gpu_s", "host_exposed_s", "idle_s", "queue_ms"),
    *("prefill_kernels_s", "decode_kernels_s", "prefill_communication_s", "decode_communication_s"),
)
INTERVALS = {"ttft_mean_ms": "ttft", "tpot_mean_ms": "tpot", "e2e_mean_ms": "e2e"}
# further metrics of campaigns, by column of scenario_summary
THROUGHPUT = "output_throughput"
FURTHER_INTERVALS = {"e2e_p99_ms": "e2e_p99", THROUGHPUT: THROUGHPUT}
PREDICTED = ("itl_mean_ms", "itl_p50_ms", "tpot_p50_ms", "e2e_mean_ms", "e2e_p99_ms", "request_throughput", THROUGHPUT)
# columns that are divided by ``pace``
RATES = (THROUGHPUT, FULL_THROUGHPUT, "request_throughput")
SUMMARY = (
    "tier",
    *(
        "ttft_mean_ms",
        "tpot_mean_ms",
        "front_end_mean_ms",
        "queue_mean_ms",
        "steps",
        "preemptions",
        "gpu_s",
        "host_exposed_s",
        "idle_s",
    ),
)
# seconds of each scenario by phase of the step and kind of kernel
PARTS_QUERY = f"""
select scenario_id,
       sum(total_us) filter (where phase <> 'decode' and not moves) / 1e6 as prefill_kernels_s,
       sum(total_us) filter (where phase = 'decode' and not moves) / 1e6 as decode_kernels_s,
       sum(total_us) filter (where phase <> 'decode' and moves) / 1e6 as prefill_communication_s,
       sum(total_us) filter (where phase = 'decode' and moves) / 1e6 as decode_communication_s
from (select *, family in ({", ".join(f"'{name}'" for name in COMMUNICATION)}) as moves from kernel_breakdown)
group by scenario_id
"""


class Planned(NamedTuple):
    """Plan of a run: its deployments, the decoding one first, and its scenario; or the fault of its flags."""

    deployments: list[dict[str, Any]]
    scenario: dict[str, Any] | None
    fault: str | None = None


def plan_runs(session: Session, flags: Sequence[Mapping[str, Any]]) -> list[Planned]:
    """Return the plan of each run's flags, in their order."""
    plan = plan_rows(session, flags, on_fault="collect")
    return [
        Planned(plan.deployments_of([scenario]) if scenario else [], scenario, fault)
        for scenario, fault in zip(plan.scenarios, plan.faults, strict=True)
    ]


def settings_of(session: Session, planned: Sequence[Planned], table: str, column: str) -> list[Any]:
    """Return a column of a table of deployments, such as ``host_settings``, for each run; None for one without plan."""
    deployments = {row["deployment_id"]: row for plan in planned for row in plan.deployments[:1]}
    if not deployments:
        return [None] * len(planned)
    with session.fork() as fork:
        fork.progress = None
        fork.give("deployments", list(deployments.values()))
        settings = fork.table(table)
    by_deployment = dict(zip(*(settings[name].to_pylist() for name in ("deployment_id", column)), strict=True))
    return [by_deployment[plan.deployments[0]["deployment_id"]] if plan.deployments else None for plan in planned]


def serve_runs(
    session: Session,
    planned: Sequence[Planned],
    hosts: Sequence[Sequence[HostConstants | None]],
    prose: Sequence[bool] | None = None,
    *,
    parts: bool = True,
) -> list[list[dict[str, Any]]]:
    """Return one row per plan, in their order, for each entry of ``hosts``: predicted means, parts, status.

    ``hosts``: lists of one entry per plan, host constants that replace the catalogue's for its deployment, or None;
    ``prose``: whether each run's prompts are natural text; ``parts``: also parts of the time, intervals and evidence.
    ``status`` is "served", or why the run cannot be simulated. Runs of equal flags are one scenario, simulated once.
    """
    prose_deployments = _deployments_of_prose(planned, prose or [False] * len(planned))
    constants_by_deployment = [
        {
            deployment["deployment_id"]: constants
            for plan, constants in zip(planned, host, strict=True)
            for deployment in plan.deployments
            if constants is not None
        }
        for host in hosts
    ]
    rows_of_hosts: list[dict[str, dict[str, Any]]] = [{} for _ in hosts]
    parts_served = list(partitions(planned))
    for number, part in enumerate(parts_served):
        if session.report and len(parts_served) > 1:
            session.report(Done(number, len(parts_served), "groups of deployments"))
        with session.fork() as fork:
            fork.progress = None
            give_plan(fork, part.deployments, part.scenarios)
            # tables that do not depend on host time are computed once for all forks
            fork.compute("step_costs", "load_requests", "kernel_latencies")
            for rows, constants in zip(rows_of_hosts, constants_by_deployment, strict=True):
                with fork.fork() as host_fork:
                    rows |= {row["scenario_id"]: row for row in _serve(host_fork, constants, prose_deployments, parts)}
    return [
        [rows[plan.scenario["scenario_id"]] if plan.scenario else {"status": plan.fault} for plan in planned]
        for rows in rows_of_hosts
    ]


def partitions(planned: Sequence[Planned]) -> Iterator[Partition]:
    """Yield the scenarios of plans with their deployments, DEPLOYMENTS at a time, each scenario once."""
    loads: dict[str, dict[str, Planned]] = {}
    for plan in planned:
        if plan.scenario:
            loads.setdefault(plan.scenario["deployment_id"], {})[plan.scenario["scenario_id"]] = plan
    keys = sorted(loads)
    for first in range(0, len(keys), DEPLOYMENTS):
        plans = [plan for key in keys[first : first + DEPLOYMENTS] for plan in loads[key].values()]
        deployments = {row["deployment_id"]: row for plan in plans for row in plan.deployments}
        yield Partition(list(deployments.values()), [plan.scenario for plan in plans if plan.scenario])


def _deployments_of_prose(planned: Sequence[Planned], prose: Sequence[bool]) -> set[str]:
    """Return the ids of deployments all of whose runs have prompts of natural text."""
    deployments: dict[bool, set[str]] = {True: set(), False: set()}
    for plan, is_prose in zip(planned, prose, strict=True):
        deployments[is_prose] |= {row["deployment_id"] for row in plan.deployments}
    return deployments[True] - deployments[False]


def _serve(
    session: Session, constants_by_deployment: Mapping[str, HostConstants], prose: Collection[str], parts: bool
) -> list[dict[str, Any]]:
    """Return the rows of a session's scenarios under host constants by deployment_id; see ``serve_runs``."""

    def fitted(row: Mapping[str, Any]) -> Mapping[str, float] | None:
        constants = constants_by_deployment.get(row["deployment_id"])
        return None if constants is None else constants.host(row)

    session.give("host_settings", with_host(session.table("host_settings"), fitted, prose), trusted=True)
    if parts:
        session.compute("scenario_summary", "kernel_breakdown", "scenario_intervals", "scenario_evidence")
    summary = session.table("scenario_summary").select(["scenario_id", "deployment_id", "status", *SUMMARY, *PREDICTED])
    rows = {row["scenario_id"]: row for row in summary.to_pylist()}
    for row in rows.values():  # time before a request's first step: front end and queue
        waits = row.pop("front_end_mean_ms"), row.pop("queue_mean_ms")
        row["queue_ms"] = None if None in waits else sum(waits)
        row["predicted"] = {name: row.pop(name) for name in PREDICTED}
    for name, tokens_per_s in full_throughputs(session).items() if parts else ():
        rows[name]["predicted"][FULL_THROUGHPUT] = tokens_per_s
    for row in session.query(PARTS_QUERY).to_pylist() if parts else ():
        rows[row["scenario_id"]] |= {name: value or 0.0 for name, value in row.items()}
    for row in session.table("scenario_intervals").to_pylist() if parts else ():
        factors = row["low"] / row["predicted"], row["high"] / row["predicted"]
        for names, field_name in ((INTERVALS, "interval_factors"), (INTERVALS | FURTHER_INTERVALS, "factors")):
            if row["metric"] in names:
                rows[row["scenario_id"]].setdefault(field_name, {})[names[row["metric"]]] = factors
    evidence: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in session.table("scenario_evidence").to_pylist() if parts else ():
        evidence.setdefault((row["scenario_id"], row["deployment_id"]), []).append(row)
    for name, row in rows.items() if parts else ():
        its_evidence = evidence.get((name, row["deployment_id"]), [])
        row |= {"tiers": tiers_of(its_evidence), "weakest": weakest_of(its_evidence)}
        row["measured_share"] = measured_share_of(its_evidence)
    for row in rows.values():
        pace = (
            constants_by_deployment[row["deployment_id"]].pace
            if row["deployment_id"] in constants_by_deployment
            else 1.0
        )
        row |= {name: pace * row[name] for name in TIMES if row.get(name) is not None}
        means = {
            name: value * (1.0 / pace if name in RATES else pace) for name, value in row["predicted"].items() if value
        }
        row["predicted"] = means | {name: row[name] for name in ("ttft_mean_ms", "tpot_mean_ms")}
        row.setdefault("factors", {})
    return list(rows.values())


def tiers_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tier of each component of one run's steps; ``rows``: of ``scenario_evidence``."""
    return {row["component"]: row["tier"] for row in rows}


def weakest_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return "component tier" of the least certain component of one run's kernels, or "all measured".

    ``rows``: of ``scenario_evidence``. Components with little of the GPU time do not count, nor do host times, which
    no run measured separately.

    >>> row = {"component": "experts", "tier": "gpu-measured", "gpu_share": 0.4}
    >>> weakest_of([row, {"component": "attention", "tier": "target-measured", "gpu_share": 0.3}])
    'experts gpu-measured'
    """
    counted = [row for row in rows if (row["gpu_share"] or 0.0) >= LEAST_SHARE and row["component"] != ALWAYS_ANALYTIC]
    weakest = max(counted, key=lambda row: (CERTAINTY.index(row["tier"]), row["gpu_share"]), default=None)
    if weakest is None or CERTAINTY.index(weakest["tier"]) <= CERTAINTY.index(MEASURED):
        return "all measured"
    return f"{weakest['component']} {weakest['tier']}"


def measured_share_of(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return the share of a run's GPU time that was measured: same GPU and kernels, at similar sizes.

    >>> row = {"gpu_share": 0.8, "measured_share": 0.5}
    >>> measured_share_of([row, {"gpu_share": 0.2, "measured_share": 1.0}, {"gpu_share": None, "measured_share": 0.0}])
    0.6
    """
    return round(sum((row["gpu_share"] or 0.0) * row["measured_share"] for row in rows), 6)
