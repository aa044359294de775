"""Statistics at both ends of the 90 % intervals: scenarios simulated again with fast and slow kernels and host.

The errors of all kernels are one random variable, those of all host constants a second, independent one. Of all pairs
of errors that are equally likely, one moves the time of a step the most: the design point of the first-order
reliability method. The share of kernels and host in a scenario's GPU and host time decides which pair that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import LruCache, memoised
from kernelsight.scenario.scenario_rows import deployments_of, with_drafts
from kernelsight.scenario.speculation import moved_rate
from kernelsight.serving.costs.knots import Reach, within_reach
from kernelsight.serving.engine.host import Z_90
from kernelsight.serving.runs.capacity import capacities, reach_of
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.result_tables import CostTables
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, by_deployment, first_requests
from kernelsight.serving.runs.statistics_tables import statistics_table
from kernelsight.serving.runs.summaries import Summary, summarise

# requests of a scenario that are simulated: the ratio of an end to the median settles long before
MOST_REQUESTS = 20_000
# steps of the direction from kernels alone (0) to host alone; scenarios of one direction share a simulation
DIRECTIONS = 6
# for scenarios near capacity (their load between these bounds): statistics at steps 5 % slower
SLOWER_STEPS, SLOWER, NEAR_CAPACITY = "slower steps", 1.05, (0.7, 1.1)
ENDS = {"fast": ("gpu_p05_us", -1.0), "slow": ("gpu_p95_us", 1.0)}
# moved step costs that are cached, as the loop reads them: a deployment has up to six
MOST_MOVED = 16
Moves = tuple[Hashable, Callable[[pa.Table], np.ndarray]]
SCALED = ("gpu_us", "embedding_us", "transfer_us", "moe_us", "communication_us")


class FirstRequests(NamedTuple):
    """Each scenario's first requests, and the summary of simulating them at the median costs."""

    inputs: SimulationInputs
    middle: Summary


def first_served(inputs: SimulationInputs, threads: int | None = None) -> FirstRequests:
    """Simulate each scenario's first requests at the median costs: the base for simulations at other costs."""
    short = first_requests(inputs, MOST_REQUESTS)
    return FirstRequests(short, summarise(short, serve_replicas, threads))


def statistics_at_ends(
    first: FirstRequests, step_costs: pa.Table, step_shapes: pa.Table, threads: int | None = None
) -> pa.Table:
    """Return ``request_statistics_at_ends`` of each scenario's first requests: fast, slow, and at the median.

    For open loops near their capacity also with steps that are 5 % slower.
    """
    inputs, tables = first.inputs, (step_costs, step_shapes)
    statistics = statistics_table(first.middle.counted)
    tables_of_ends = [_at_end(statistics, "middle")]

    def simulate_at(
        rows: list[dict[str, Any]], end: str, moves: Moves, hosts: dict[str, dict[str, Any]], sign: float = 0.0
    ) -> None:
        moved = inputs._replace(scenarios=rows, costs=moved_costs(inputs, rows, tables, end, moves), hosts=hosts)
        moved = moved._replace(deployments={key: _accepting(row, sign) for key, row in inputs.deployments.items()})
        tables_of_ends.append(_at_end(statistics_table(summarise(moved, serve_replicas, threads).counted), end))

    direction = _directions(inputs, by_deployment(step_costs), first.middle.totals())
    for number in sorted(set(direction.values())):
        rows = [row for row in inputs.scenarios if direction.get(row["scenario_id"]) == number]
        angle = number * math.pi / 2 / DIRECTIONS
        for end, (column, sign) in ENDS.items():
            moves = partial(_towards, column=column, share=math.cos(angle))
            hosts = {key: _host(row, sign * math.sin(angle)) for key, row in inputs.hosts.items()}
            simulate_at(rows, end, (number, moves), hosts, sign)
    near = _near_capacity(inputs, statistics)
    if near:
        hosts = {key: _times(row, SLOWER) for key, row in inputs.hosts.items()}
        simulate_at(near, SLOWER_STEPS, (SLOWER, lambda _: np.array(SLOWER)), hosts)
    return pa.concat_tables(tables_of_ends).combine_chunks()


def moved_costs(
    inputs: SimulationInputs, scenarios: Iterable[dict[str, Any]], tables: tuple[pa.Table, ...], end: str, moves: Moves
) -> dict[str, CostTables]:
    """Return the step costs of the deployments that serve ``scenarios``, as the loop reads them, moved to an ``end``.

    ``tables``: step_costs and step_shapes, and further ones that the factors are computed from; ``moves``: a cache key
    for the move to this end, and the function that returns the factors on one deployment's rows of step_costs.
    """
    recent: LruCache[CostTables] = memoised(tables, "moved costs", lambda: LruCache(MOST_MOVED))
    costs, shapes = map(by_deployment, tables[:2])
    costs_of = {}
    for key in dict.fromkeys(key for row in scenarios for key in deployments_served(inputs, row)):
        if key not in costs:
            continue
        deployment, (name, factors) = inputs.deployments[key], moves
        cost_key = (key, deployment["pp"], deployment["graph_max_tokens"], end, name)
        moved = recent.get(cost_key)
        if moved is None:
            moved = cost_tables(scaled(costs[key], factors(costs[key])), shapes[key], deployment)
            recent.put(cost_key, moved)
        costs_of[key] = moved
    return costs_of


def _near_capacity(inputs: SimulationInputs, statistics: pa.Table) -> list[dict[str, Any]]:
    """Return the open-loop scenarios whose request rate is near their capacity."""
    loads = {row["scenario_id"]: row for row in capacities(inputs, statistics).to_pylist()}
    least, most = NEAR_CAPACITY
    return [
        row
        for row in inputs.scenarios
        if row["max_concurrency"] is None
        and row["scenario_id"] in loads
        and least <= loads[row["scenario_id"]]["load"] <= most
    ]


def deployments_served(inputs: SimulationInputs, scenario: dict[str, Any]) -> list[str]:
    """Return the deployments that serve a scenario, and their draft models."""
    return list(with_drafts(deployments_of(scenario), inputs.deployments))


def _at_end(statistics: pa.Table, end: str) -> pa.Table:
    return statistics.append_column("end", pa.repeat(end, statistics.num_rows))


def _directions(inputs: SimulationInputs, costs: Mapping[str, pa.Table], totals: pa.Table) -> dict[str, int]:
    """Return the direction of each scenario's design point, from 0 (kernels alone) to ``DIRECTIONS`` (host alone)."""
    scenarios = {row["scenario_id"]: row for row in inputs.scenarios}
    widths: dict[tuple[str, Reach], float] = {}
    moves: dict[str, np.ndarray] = {}
    for row in totals.select(["scenario_id", "deployment_id", "gpu_ns", "host_ns"]).to_pylist():
        key = row["deployment_id"]
        host = math.expm1(Z_90 * inputs.hosts[key]["step_log_sd"])
        place = key, reach_of(inputs, scenarios[row["scenario_id"]])
        if place not in widths:
            widths[place] = _width(costs[key], place[1]) if key in costs else 0.0
        move = np.array([row["gpu_ns"] * widths[place], row["host_ns"] * host])
        moves[row["scenario_id"]] = moves.get(row["scenario_id"], 0.0) + move
    return {
        name: round(math.atan2(host, kernels) / (math.pi / 2) * DIRECTIONS) for name, (kernels, host) in moves.items()
    }


def _width(costs: pa.Table, reach: Reach) -> float:
    """Return by which share step costs at the knots that a load can reach are higher at the end of their interval."""
    reached = pa.array(within_reach(costs, *reach))
    slow_us, middle_us = (pc.sum(costs[name].filter(reached)).as_py() for name in ("gpu_p95_us", "gpu_us"))
    return slow_us / middle_us - 1.0


def _towards(costs: pa.Table, column: str, share: float) -> np.ndarray:
    """Return the factors that move step costs towards an end of their interval, by a share of the logarithm."""
    return (costs[column].to_numpy() / np.maximum(costs["gpu_us"].to_numpy(), 1e-9)) ** share


def scaled(costs: pa.Table, factor: np.ndarray) -> pa.Table:
    """Return step costs with their GPU time and its parts multiplied by ``factor``."""
    for name in SCALED:
        costs = costs.set_column(costs.column_names.index(name), name, pa.array(costs[name].to_numpy() * factor))
    return costs


def _host(overhead: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Return the constants of the host moved by a share of the way to an end of their interval."""
    return _times(overhead, math.exp(share * Z_90 * overhead["step_log_sd"]))


def _accepting(settings: dict[str, Any], sign: float) -> dict[str, Any]:
    """Return a deployment's settings with an assumed acceptance of drafts moved to an end: fewer where it is slow."""
    if not (sign and settings["draft_acceptance_assumed"]):
        return settings
    return settings | {"draft_acceptance_rate": moved_rate(settings["draft_acceptance_rate"], -sign)}


def _times(overhead: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return the constants of the host with all times multiplied by ``factor``."""
    return {name: value * factor if name.endswith("_us") else value for name, value in overhead.items()}
