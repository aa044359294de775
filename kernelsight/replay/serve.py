"""Measured runs served as scenarios: all of them in one call, some deployments at a time, with where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.bulk import Partition, draw_alike, give_scenarios
from kernelsight.errors import KernelSightError
from kernelsight.plan import deployment_row, normalise, resolve_names, scenario_row

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.replay.constants import Constants
    from kernelsight.session import Session

# deployments whose knots are in memory at once
DEPLOYMENTS = 24
SUMMARY = ("ttft_mean_ms", "tpot_mean_ms", "steps", "preemptions", "gpu_s", "host_exposed_s", "idle_s")
COMMUNICATION = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
# seconds of each scenario by phase of the step and kind of kernel; queue: from sending until the first step, a request
PARTS_QUERY = f"""
select scenario_id,
       sum(total_us) filter (where phase <> 'decode' and not moves) / 1e6 as prefill_kernels_s,
       sum(total_us) filter (where phase = 'decode' and not moves) / 1e6 as decode_kernels_s,
       sum(total_us) filter (where phase <> 'decode' and moves) / 1e6 as prefill_communication_s,
       sum(total_us) filter (where phase = 'decode' and moves) / 1e6 as decode_communication_s
from (select *, family in ({", ".join(f"'{name}'" for name in COMMUNICATION)}) as moves from kernel_breakdown)
group by scenario_id
"""
QUEUE_QUERY = "select scenario_id, avg(queue_ms) as queue_ms from request_metrics group by scenario_id"


def plan_runs(
    session: Session, flags: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any] | None], list[dict[str, Any] | None], list[str | None]]:
    """Return the deployment and the scenario of each run's flags, or why they cannot be planned, in their order."""
    deployments: list[dict[str, Any] | None] = []
    scenarios: list[dict[str, Any] | None] = []
    faults: list[str | None] = []
    for row in flags:
        try:
            named = resolve_names(session, normalise(row))
            deployment = deployment_row(named)
            scenario = scenario_row(named, deployment)
        except KernelSightError as error:
            deployments.append(None)
            scenarios.append(None)
            faults.append(str(error))
            continue
        deployments.append(deployment)
        scenarios.append(scenario)
        faults.append(None)
    return deployments, scenarios, faults


def serve_runs(
    session: Session, flags: Sequence[Mapping[str, Any]], host: Sequence[Constants | None] | None = None
) -> list[dict[str, Any]]:
    """Return one row for each run's flags, in their order: predicted means, its parts, status.

    Runs of equal flags are one scenario, served once. ``status`` is served, or why the run cannot be simulated.
    ``host``: constants that stand in the place of the catalogue's, by run.
    """
    deployments, scenarios, faults = plan_runs(session, flags)
    overheads = {}
    for deployment, constants in zip(deployments, host or (), strict=bool(host)):
        if deployment and constants is not None:
            overheads[deployment["deployment_id"]] = constants
    found: dict[str, dict[str, Any]] = {}
    for part in partitions(deployments, scenarios):
        with session.fork() as fork:
            fork.progress = None
            found |= {row["scenario_id"]: row for row in _serve(fork, part, overheads)}
    rows = []
    for scenario, fault in zip(scenarios, faults, strict=True):
        rows.append({"status": fault} if scenario is None else found[scenario["scenario_id"]])
    return rows


def partitions(
    deployments: Sequence[dict[str, Any] | None], scenarios: Sequence[dict[str, Any] | None]
) -> Iterator[Partition]:
    """Yield scenarios with their deployments, a few deployments at a time, each scenario once."""
    known = {row["deployment_id"]: row for row in deployments if row}
    loads: dict[str, dict[str, dict[str, Any]]] = {}
    for row in scenarios:
        if row:
            loads.setdefault(row["deployment_id"], {})[row["scenario_id"]] = row
    keys = sorted(known)
    for first in range(0, len(keys), DEPLOYMENTS):
        mine = keys[first : first + DEPLOYMENTS]
        rows = [row for key in mine for row in loads[key].values()]
        yield Partition([known[key] for key in mine], rows, {}, None)


def _serve(session: Session, part: Partition, overheads: Mapping[str, Constants]) -> list[dict[str, Any]]:
    able = give_scenarios(session, part)
    session.put("requests", draw_alike(able))
    if overheads:
        from kernelsight.replay.constants import with_host

        session.put("host_settings", with_host(session.table("host_settings"), overheads.get))
    _simulate(session, able)
    summary = session.table("scenario_summary").select(["scenario_id", "deployment_id", "status", *SUMMARY])
    rows = {row["scenario_id"]: row for row in summary.to_pylist()}
    for row in session.query(QUEUE_QUERY).to_pylist():
        rows[row["scenario_id"]] |= row
    for row in session.query(PARTS_QUERY).to_pylist():
        rows[row["scenario_id"]] |= {name: value or 0.0 for name, value in row.items()}
    return list(rows.values())


def _simulate(session: Session, scenarios: pa.Table) -> None:
    from kernelsight.serving.simulate import simulate_scenarios

    inputs = {name: session.table(name) for name in session.graph.node("request_events").inputs}
    served = simulate_scenarios(*(inputs | {"scenarios": scenarios}).values())
    for name, table in served.items():
        if name != "steps":
            session.put(name, table)
