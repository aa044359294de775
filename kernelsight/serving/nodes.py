"""The nodes of serving: loads, step shapes, the simulation, and tables of its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.graph import produces, reads

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader


def scenario_loads(scenarios: pa.Table) -> pa.Table:
    """Which scenarios share a load: equal arrivals and lengths."""
    from kernelsight.serving.load.requests import loads_of

    return loads_of(scenarios)


@produces("load_requests", "load_dependencies")
def load_requests(scenarios: pa.Table, scenario_loads: pa.Table) -> dict[str, pa.Table]:
    """The requests of each different load, and which wait for which: read from its trace, or drawn."""
    from kernelsight.serving.load.requests import draw_loads

    firsts = pc.equal(scenario_loads["scenario_id"], scenario_loads["load_id"])
    loads = scenarios.rename_columns({"scenario_id": "load_id"})
    distinct = loads.filter(pc.is_in(loads["load_id"], scenario_loads.filter(firsts)["load_id"].combine_chunks()))
    return draw_loads(distinct)._asdict()


def requests(scenario_loads: pa.Table, load_requests: pa.Table) -> pa.Table:
    """The requests of each scenario: those of its load."""
    from kernelsight.serving.load.requests import requests_of

    return requests_of(scenario_loads, load_requests)


def request_dependencies(scenario_loads: pa.Table, load_dependencies: pa.Table) -> pa.Table:
    """Which requests of each scenario wait for which: those of its load."""
    from kernelsight.serving.load.requests import dependencies_of

    return dependencies_of(scenario_loads, load_dependencies)


def session_requests(requests: pa.Table, request_dependencies: pa.Table) -> pa.Table:
    """Sessions: requests connected by dependencies, such as the turns of a conversation."""
    from kernelsight.serving.runs.sessions import sessions_of_requests

    return sessions_of_requests(requests, request_dependencies)


@reads("scenarios", "scenario_loads", "load_requests")
def deployment_reach(deployments: pa.Table, *, read: Reader) -> pa.Table:
    """Largest batch and longest request of the loads of each deployment; unbounded without scenarios."""
    from kernelsight.serving.load.reach import reach_of, unbounded_reach

    if not read.is_available("scenarios"):
        return unbounded_reach(deployments)
    tables = [read(name, read.columns_of(name)) for name in ("scenarios", "scenario_loads", "load_requests")]
    return reach_of(*tables, deployments)


def step_shapes(
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    kv_layout: pa.Table,
    models: pa.Table,
    kernel_implementations: pa.Table,
    deployment_reach: pa.Table,
) -> pa.Table:
    """Step shapes of each deployment that can run: the knots between which step costs are interpolated."""
    from kernelsight.serving.costs.knots import knot_shapes

    return knot_shapes(
        deployment_settings, deployment_faults, kv_layout, models, kernel_implementations, deployment_reach
    )


def kv_transfers(
    scenarios: pa.Table, deployment_settings: pa.Table, kv_layout: pa.Table, fabrics: pa.Table
) -> pa.Table:
    """Time to transfer a prompt's KV cache from a prefill to a decode replica: bytes per GPU over one port each."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table
    from kernelsight.serving.runs.kv_transfers import transfer_rows

    return as_table(contracts()["kv_transfers"], transfer_rows(scenarios, deployment_settings, kv_layout, fabrics))


def kv_tier_settings(
    deployments: pa.Table,
    deployment_settings: pa.Table,
    kv_tiers: pa.Table,
    kv_tier_policies: pa.Table,
    kv_tier_devices: pa.Table,
    memory_plan: pa.Table,
    kv_layout: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
) -> pa.Table:
    """The KV tiers of each deployment: capacity in KV blocks, and times of their links."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table
    from kernelsight.serving.runs.tiers import tier_rows

    facts = {"memory_plan": memory_plan, "kv_layout": kv_layout, "gpus": gpus, "fabrics": fabrics}
    rows = tier_rows(deployments, deployment_settings, kv_tiers, kv_tier_policies, kv_tier_devices, facts)
    return as_table(contracts()["kv_tier_settings"], rows)


@produces(
    "request_statistics",
    "itl_percentiles",
    "itl_histogram",
    "replica_totals",
    "scenario_capacity",
    "kv_tier_totals",
    "request_events",
    "step_cost_uses",
    "serving_windows",
    "steps",
    "request_parts",
    "request_statistics_at_ends",
    "resource_gains",
    "scenario_sensitivities",
)
@reads("step_cost_shares", "step_cost_sensitivities")
def simulation(
    scenarios: pa.Table,
    scenario_loads: pa.Table,
    load_requests: pa.Table,
    load_dependencies: pa.Table,
    step_costs: pa.Table,
    step_shapes: pa.Table,
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    memory_plan: pa.Table,
    host_settings: pa.Table,
    kv_transfers: pa.Table,
    kv_tier_settings: pa.Table,
    models: pa.Table,
    router_scorers: pa.Table,
    *,
    read: Reader,
    wanted: frozenset[str],
    threads: int | None,
) -> dict[str, Any]:
    """Simulate the requests of every scenario: the scheduler's loop over steps with continuous batching.

    Where these tables are wanted, each scenario's first requests again with fast and slow kernels, and with more of
    each resource.
    """
    from kernelsight.serving.runs.interval_ends import first_served, statistics_at_ends
    from kernelsight.serving.runs.resource_gains import gains_of_resources
    from kernelsight.serving.runs.simulate import simulate_scenarios
    from kernelsight.serving.runs.simulation_inputs import read_inputs

    inputs = read_inputs(
        scenarios=scenarios,
        scenario_loads=scenario_loads,
        load_requests=load_requests,
        load_dependencies=load_dependencies,
        step_costs=step_costs,
        step_shapes=step_shapes,
        settings=deployment_settings,
        faults=deployment_faults,
        memory_plan=memory_plan,
        host_settings=host_settings,
        kv_transfers=kv_transfers,
        kv_tier_settings=kv_tier_settings,
        models=models,
        router_scorers=router_scorers,
    )
    tables: dict[str, Any] = {}
    if {"request_statistics_at_ends", "resource_gains"} & wanted:
        first = first_served(inputs, threads)
        if "request_statistics_at_ends" in wanted:
            tables["request_statistics_at_ends"] = statistics_at_ends(first, step_costs, step_shapes, threads)
        if "resource_gains" in wanted:
            shares = read("step_cost_shares", read.columns_of("step_cost_shares"))
            tables["resource_gains"] = gains_of_resources(first, step_costs, step_shapes, shares, threads)
    if "scenario_sensitivities" in wanted:
        from kernelsight.serving.runs.scenario_sensitivities import sensitivities_of_scenarios

        moves = read("step_cost_sensitivities", read.columns_of("step_cost_sensitivities"))
        tables["scenario_sensitivities"] = sensitivities_of_scenarios(inputs, step_costs, step_shapes, moves, threads)
    others = wanted - tables.keys()
    return (simulate_scenarios(inputs, others, threads) if others else {}) | tables


def scenario_tiers(replica_totals: pa.Table, deployment_tiers: pa.Table) -> pa.Table:
    """Label of each scenario's kernel latencies: how much of the GPU time that was served is measured."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table
    from kernelsight.serving.breakdown.served_labels import tiers_of

    return as_table(contracts()["scenario_tiers"], tiers_of(replica_totals, deployment_tiers))


def scenario_evidence(
    step_cost_uses: pa.Table, knot_evidence: pa.Table, host_evidence: pa.Table, eta_coefficients: pa.Table
) -> pa.Table:
    """Data behind each component of the steps that a scenario ran: the kernels of every knot, weighted by its uses."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table
    from kernelsight.serving.breakdown.served_labels import evidence_of

    rows = evidence_of(step_cost_uses, knot_evidence, host_evidence, eta_coefficients)
    return as_table(contracts()["scenario_evidence"], rows)


def scenario_summary(
    scenarios: pa.Table,
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    memory_plan: pa.Table,
    deployment_tiers: pa.Table,
    scenario_tiers: pa.Table,
    request_statistics: pa.Table,
    itl_histogram: pa.Table,
    itl_percentiles: pa.Table,
    replica_totals: pa.Table,
    scenario_capacity: pa.Table,
    scenario_energy: pa.Table,
) -> pa.Table:
    """Summary of each scenario as printed by a benchmark client, and the time use of its replicas."""
    from kernelsight.serving.runs.scenario_summary import Deployed, Results, summary_of

    deployed = Deployed(deployment_settings, memory_plan, deployment_faults, deployment_tiers)
    gaps = (itl_histogram, itl_percentiles)
    results = Results(request_statistics, *gaps, replica_totals, scenario_capacity, scenario_energy, scenario_tiers)
    return summary_of(scenarios, deployed, results)


def scenario_intervals(
    scenario_summary: pa.Table,
    scenarios: pa.Table,
    request_statistics_at_ends: pa.Table,
    deployment_settings: pa.Table,
    models: pa.Table,
    serving_spread: pa.Table,
) -> pa.Table:
    """90 % intervals of what scenario_summary predicts: errors of kernels and host, and scatter of measured runs."""
    from kernelsight.serving.runs.scenario_intervals import intervals_of

    facts = (deployment_settings, models, serving_spread)
    return intervals_of(scenario_summary, scenarios, request_statistics_at_ends, *facts)


def cache_over_time(serving_windows: pa.Table, memory_plan: pa.Table) -> pa.Table:
    """KV use, prefix-cache hits and the batch of each replica over time: means over windows, including idle time."""
    from kernelsight.serving.runs.cache_over_time import means_of_windows

    return means_of_windows(serving_windows, memory_plan)


def request_metrics(
    request_events: pa.Table, scenarios: pa.Table, host_settings: pa.Table, deployment_settings: pa.Table
) -> pa.Table:
    """Latencies of each finished request, as benchmark clients define them; without warm-ups."""
    from kernelsight.serving.runs.request_metrics import metrics_of

    return metrics_of(request_events, scenarios, host_settings, deployment_settings)


def kernel_breakdown(
    step_cost_uses: pa.Table,
    kernel_latencies: pa.Table,
    deployment_settings: pa.Table,
    gpu_power: pa.Table,
    knot_corrections: pa.Table,
    scenario_energy: pa.Table,
) -> pa.Table:
    """GPU time and energy of each scenario by kernel: the kernels of every knot, weighted by the knot's uses."""
    from kernelsight.serving.breakdown.kernel_breakdown import breakdown_of

    facts = (deployment_settings, gpu_power, knot_corrections)
    return breakdown_of(step_cost_uses, kernel_latencies, *facts, scenario_energy)


def kernel_breakdown_over_time(
    steps: pa.Table,
    step_cost_uses: pa.Table,
    replica_totals: pa.Table,
    serving_windows: pa.Table,
    deployment_settings: pa.Table,
    kernel_latencies: pa.Table,
    step_shapes: pa.Table,
    knot_corrections: pa.Table,
) -> pa.Table:
    """Where the GPU time went, window by window: the kernels of each step."""
    from kernelsight.serving.breakdown.knot_kernels import knot_kernels
    from kernelsight.serving.breakdown.over_time import kernels_over_time

    knots = knot_kernels(kernel_latencies, step_shapes, knot_corrections)
    return kernels_over_time(steps, step_cost_uses, replica_totals, deployment_settings, serving_windows, knots)


def scenario_energy(
    replica_totals: pa.Table,
    request_statistics: pa.Table,
    scenarios: pa.Table,
    deployment_settings: pa.Table,
    gpu_power: pa.Table,
    gpus: pa.Table,
    kv_tier_totals: pa.Table,
    kv_tier_settings: pa.Table,
) -> pa.Table:
    """Energy of all GPUs of each scenario, its mean power, and energy and carbon of what was served."""
    from kernelsight.serving.runs.energy import energy_of, energy_of_transfers

    transfers_j = energy_of_transfers(kv_tier_totals, kv_tier_settings, deployment_settings, gpu_power, gpus)
    return energy_of(replica_totals, request_statistics, scenarios, deployment_settings, gpu_power, transfers_j)


def step_totals(
    kernel_latencies: pa.Table, step_shapes: pa.Table, deployment_settings: pa.Table, host_settings: pa.Table
) -> pa.Table:
    """GPU, exposed host and total time of each whole step."""
    from kernelsight.serving.engine.host import step_totals_of

    return step_totals_of(kernel_latencies, step_shapes, deployment_settings, host_settings)
