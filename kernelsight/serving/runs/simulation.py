"""The simulation: every table that is read from the loop of steps, each made only where it is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces, reads, takes
from kernelsight.serving.runs.interval_ends import first_served, statistics_at_ends
from kernelsight.serving.runs.resource_gains import gains_of_resources
from kernelsight.serving.runs.simulate import DETAILS, simulate_scenarios, summary_tables
from kernelsight.serving.runs.simulation_inputs import inputs_of_session

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader


@takes(
    *("scenarios", "scenario_loads", "load_requests", "load_dependencies", "step_costs", "step_shapes"),
    *("deployment_settings", "deployment_faults", "memory_plan", "host_settings", "kv_transfers", "kv_tier_settings"),
    *("models", "router_scorers"),
)
@reads("step_cost_shares", "step_cost_sensitivities")
@produces(
    *("request_statistics", "itl_percentiles", "itl_histogram", "replica_totals", "scenario_capacity"),
    *("kv_tier_totals", "request_events", "step_cost_uses", "serving_windows", "steps", "request_parts"),
    *("request_statistics_at_ends", "resource_gains", "scenario_sensitivities"),
)
def simulation(
    *, tables: Mapping[str, pa.Table], read: Reader, wanted: frozenset[str], threads: int | None
) -> dict[str, Any]:
    """Simulate the requests of every scenario: the scheduler's loop over steps with continuous batching.

    Where these tables are wanted, each scenario's first requests again with fast and slow kernels, and with more of
    each resource. Where the first requests are all of them, summaries are those of their simulation.
    """
    inputs, costs = inputs_of_session(tables.__getitem__), (tables["step_costs"], tables["step_shapes"])
    made: dict[str, Any] = {}
    if {"request_statistics_at_ends", "resource_gains"} & wanted:
        first = first_served(inputs, threads)
        if "request_statistics_at_ends" in wanted:
            made["request_statistics_at_ends"] = statistics_at_ends(first, *costs, threads)
        if first.inputs is inputs and not set(DETAILS) & wanted:
            made |= summary_tables(inputs, first.middle)
        if "resource_gains" in wanted:
            shares = read("step_cost_shares", read.columns_of("step_cost_shares"))
            made["resource_gains"] = gains_of_resources(first, *costs, shares, threads)
    if "scenario_sensitivities" in wanted:
        from kernelsight.serving.runs.scenario_sensitivities import sensitivities_of_scenarios

        moves = read("step_cost_sensitivities", read.columns_of("step_cost_sensitivities"))
        made["scenario_sensitivities"] = sensitivities_of_scenarios(inputs, *costs, moves, threads)
    others = wanted - made.keys()
    return (simulate_scenarios(inputs, others, threads) if others else {}) | made
