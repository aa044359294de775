"""Simulates scenarios, tables in and tables out: a call of the compiled loop per scenario, spread over threads.

Replicas that do not interact (a round-robin router, an open loop) are a call each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.scenario.scenario_rows import deployments_of, with_drafts
from kernelsight.serving.engine import replica
from kernelsight.serving.engine.host import front_end_of
from kernelsight.serving.engine.inputs import Load
from kernelsight.serving.engine.request_blocks import BLOCK, LEAST_BLOCKS
from kernelsight.serving.engine.tally import Tally
from kernelsight.serving.runs.capacity import capacities
from kernelsight.serving.runs.pools import replicated, transfer_of
from kernelsight.serving.runs.result_tables import (
    Replica,
    event_rows,
    part_rows,
    replicas_of,
    step_rows,
    use_rows,
    window_rows,
)
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, load_of, pool_of, replicas_interact, routing_of
from kernelsight.serving.runs.statistics_tables import gap_percentiles, statistics_table
from kernelsight.serving.runs.summaries import Summary, objectives_of, over_threads, summarise, summary_of_replicas

# tables with rows of requests, steps, windows or knots; a summary alone needs none of them
DETAILS = ("request_events", "step_cost_uses", "serving_windows", "steps", "request_parts")
ROWS_OF_REQUESTS = ("request_events", "request_parts")


def simulate_scenarios(
    inputs: SimulationInputs, wanted: Collection[str], threads: int | None = None
) -> dict[str, pa.Table | Callable[[], pa.Table]]:
    """Simulate every scenario, and return the ``wanted`` tables, or functions that make them.

    Where only summaries are wanted, no request has a row and no use of step costs is counted. Where details are wanted,
    the loop's arrays are kept, and each table is made from them when it is first read. ``steps`` are kept only if they
    are wanted now, because of their memory; ``request_parts`` only then, because the loop adds them up. Of very many
    requests no rows are kept unless they are wanted now: a later read simulates the scenario again.
    """
    if not set(DETAILS) & set(wanted):
        return summary_tables(inputs, summarise(inputs, serve_replicas, threads))
    keep = {"keep_steps": "steps" in wanted, "split": "request_parts" in wanted}
    keep["keep_requests"] = bool(set(ROWS_OF_REQUESTS) & set(wanted))
    replicas = serve_replicas(inputs, **keep, threads=threads)
    served = [row for row in inputs.scenarios if row["scenario_id"] in inputs.spans]
    tables: dict[str, pa.Table | Callable[[], pa.Table]] = {
        **summary_tables(inputs, summary_of_replicas(inputs, served, replicas)),
        "step_cost_uses": lambda: use_rows(replicas, inputs.costs, inputs.deployments),
        "serving_windows": lambda: window_rows(replicas),
    }
    if all(replica_served.tally is None for replica_served in replicas):
        tables["request_events"] = lambda: event_rows(replicas, inputs.requests, inputs.spans)
    if "request_parts" in wanted:
        tables["request_parts"] = lambda: part_rows(replicas, inputs.requests)
    return tables | ({"steps": step_rows(replicas)} if "steps" in wanted else {})


def summary_tables(inputs: SimulationInputs, summary: Summary) -> dict[str, pa.Table | Callable[[], pa.Table]]:
    """Return the tables of the simulation without rows of requests, or functions that make them."""
    statistics, histogram = statistics_table(summary.counted), cache(summary.histogram)
    return {
        "request_statistics": statistics,
        "itl_histogram": histogram,
        "itl_percentiles": lambda: gap_percentiles(histogram()),
        "replica_totals": summary.totals,
        "scenario_capacity": lambda: capacities(inputs, statistics),
        "kv_tier_totals": summary.tiers,
    }


def serve_replicas(
    inputs: SimulationInputs,
    *,
    count_uses: bool = True,
    keep_steps: bool = False,
    split: bool = False,
    keep_requests: bool = True,
    threads: int | None = None,
) -> list[Replica]:
    """Simulate every scenario, calls of the loop spread over threads; return the engines of all scenarios.

    ``count_uses``: with uses of step costs and windows of time; ``keep_steps``: with steps; ``split``: with the parts
    of each request's time. Without ``keep_requests``, very many requests of a single engine are added up block by
    block instead (``Tally``). ``threads``: the number of cores by default.
    """
    columns, deployments, costs = inputs.columns, inputs.deployments, inputs.costs
    scratches = threading.local()

    def serve(job: tuple[dict[str, Any], np.ndarray, int | None]) -> list[Replica]:
        scenario, rows, number = job
        if rows.size == 0:
            return []
        *_, front = keys = deployments_of(scenario)
        costed = [key for pool_key in keys for key in with_drafts([pool_key], deployments)]
        load = load_of(inputs, rows, scenario, deployments[front], inputs.plans[front])
        scratch = None if count_uses else scratch_of(scratches, sum(costs[key].packed.values.size for key in costed))
        start_us = columns["arrival_s"][inputs.spans[scenario["scenario_id"]][0]] * 1e6
        keep = {"keep_steps": keep_steps, "scratch": scratch, "split": split}
        keep["windows_from_us"] = start_us if count_uses else None
        pools = replicated(scenario, *(pool_of(inputs, key) for key in keys))
        if number is not None:
            tally = None
            if not keep_requests and rows.size >= LEAST_BLOCKS * BLOCK and pools[0].engines == 1:
                tally = tally_of(inputs, scenario, rows, load, count_uses)
            keep["layers"], keep["draft"], keep["tiers"] = pools[0].layers, pools[0].draft, pools[0].tiers
            served = replica.serve(load, *pools[0][:3], tally=tally, **keep)
            return [Replica(scenario["scenario_id"], front, number, rows, served, tally)]
        if len(keys) > 1:
            keep["transfer"] = transfer_of(inputs.links[scenario["scenario_id"]])
        served_scenario = replica.serve_scenario(
            load, pools, routing_of(scenario, deployments[front], inputs.scorers), **keep
        )
        sizes = [(key, pool.engines) for key, pool in zip(reversed(keys), pools, strict=True)]
        return replicas_of(scenario["scenario_id"], sizes, rows, served_scenario)

    jobs = []
    for row in inputs.scenarios:
        start, stop = inputs.spans.get(row["scenario_id"], (0, 0))
        rows, deployment = np.arange(start, stop), deployments[row["deployment_id"]]
        engines = deployment["dp"] * (row["replicas"] or 1)
        if len(deployments_of(row)) > 1 or (engines > 1 and replicas_interact(inputs, row, deployment, rows)):
            jobs.append((row, rows, None))
        else:
            jobs += [(row, rows[number::engines], number) for number in range(engines)]
    return [engine for engines_of_job in over_threads(serve, jobs, threads) for engine in engines_of_job]


def tally_of(
    inputs: SimulationInputs, scenario: dict[str, Any], rows: np.ndarray, load: Load, in_windows: bool
) -> Tally:
    """Return the tally that adds up a scenario's requests block by block."""
    front = deployments_of(scenario)[-1]
    warmup = inputs.columns["warmup"][rows[0] : rows[-1] + 1]
    front_end_us = front_end_of(inputs.hosts[front], inputs.deployments[front])
    return Tally(load, warmup, objectives_of([scenario])[0], front_end_us, in_windows)


def scratch_of(scratches: threading.local, size: int) -> np.ndarray:
    """Return this thread's scratch array, shape [3, size], for uses of step costs that are not read; never cleared."""
    scratch = getattr(scratches, "scratch", np.zeros(0))
    if scratch.size < 3 * size:
        scratch = scratches.scratch = np.zeros(3 * size)
    return scratch[: 3 * size].reshape(3, size)
