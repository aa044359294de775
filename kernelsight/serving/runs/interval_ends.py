"""Statistics at both ends of the 90 % intervals: a scenario is served again with fast and with slow kernels and host.

Kernels err together, and so do the constants of the host, each in their own direction. Of all pairs of errors that are
equally likely, one moves the time of a step the most: the further one of both parts weighs, the more it takes of the
distance (the design point of first-order reliability). What a scenario's steps are made of says which pair that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.cache import Recent, remembered
from kernelsight.scenario.plan import deployments_of, with_drafts
from kernelsight.serving.engine.host import Z_90
from kernelsight.serving.runs.capacity import capacities
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.result_tables import CostTables
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.statistics_tables import statistics_table
from kernelsight.serving.runs.summaries import Summary, summarise
from kernelsight.serving.runs.world import World, by_deployment, first_requests

# ratios settle with the first of many requests: no interval takes longer than these
MOST_REQUESTS = 20_000
# directions between kernels alone (0) and host alone: scenarios of one direction are served together
DIRECTIONS = 6
# near capacity it is shown what steps that are a little slower would do
SLOWER_STEPS, SLOWER, NEAR_CAPACITY = "slower steps", 1.05, (0.7, 1.1)
ENDS = {"fast": ("gpu_p05_us", -1.0), "slow": ("gpu_p95_us", 1.0)}
# layouts of moved step costs that are kept: a deployment has up to six
MOST_MOVED = 16
Moves = tuple[Hashable, Callable[[pa.Table], np.ndarray]]
SCALED = ("gpu_us", "embedding_us", "transfer_us", "moe_us", "communication_us")


class First(NamedTuple):
    """A world of each scenario's first requests, and what serving them as they are makes."""

    world: World
    middle: Summary


def first_served(world: World, threads: int | None = None) -> First:
    """Serve each scenario's first requests: what is served again with other costs is held against these."""
    short = first_requests(world, MOST_REQUESTS)
    return First(short, summarise(short, serve_replicas, threads))


def statistics_at_ends(
    first: First, step_costs: pa.Table, step_shapes: pa.Table, threads: int | None = None
) -> pa.Table:
    """Return ``request_statistics`` of each scenario's first requests: fast, slow, and in the middle.

    Of open loops near the capacity also with steps that are 5 % slower.
    """
    world, tables = first.world, (step_costs, step_shapes)
    statistics = statistics_table(first.middle.counted)
    parts = [_at_end(statistics, "middle")]

    def served(rows: list[dict[str, Any]], end: str, moves: Moves, hosts: dict[str, dict[str, Any]]) -> None:
        there = world._replace(scenarios=rows, costs=moved_costs(world, rows, tables, end, moves), hosts=hosts)
        parts.append(_at_end(statistics_table(summarise(there, serve_replicas, threads).counted), end))

    direction = _directions(world, by_deployment(step_costs), first.middle.totals())
    for number in sorted(set(direction.values())):
        rows = [row for row in world.scenarios if direction.get(row["scenario_id"]) == number]
        angle = number * math.pi / 2 / DIRECTIONS
        for end, (column, sign) in ENDS.items():
            moves = partial(_towards, column=column, share=math.cos(angle))
            hosts = {key: _host(row, sign * math.sin(angle)) for key, row in world.hosts.items()}
            served(rows, end, (number, moves), hosts)
    near = _near_capacity(world, statistics)
    if near:
        hosts = {key: _times(row, SLOWER) for key, row in world.hosts.items()}
        served(near, SLOWER_STEPS, (SLOWER, lambda _: np.array(SLOWER)), hosts)
    return pa.concat_tables(parts).combine_chunks()


def moved_costs(
    world: World, scenarios: Iterable[dict[str, Any]], tables: tuple[pa.Table, ...], end: str, moves: Moves
) -> dict[str, CostTables]:
    """Return the step costs of the deployments that serve scenarios, as the loop reads them, moved to an ``end``.

    ``tables``: step_costs and step_shapes, and others that the factors rest on; ``moves``: what names the move to this
    end, and the function that returns the factors on one deployment's rows of step_costs.
    """
    recent: Recent[CostTables] = remembered(tables, "moved costs", lambda: Recent(MOST_MOVED))
    costs, shapes = map(by_deployment, tables[:2])
    costs_of = {}
    for key in dict.fromkeys(key for row in scenarios for key in deployments_served(world, row)):
        if key not in costs:
            continue
        deployment, (name, factors) = world.deployments[key], moves
        cost_key = (key, deployment["pp"], deployment["graph_max_tokens"], end, name)
        moved = recent.get(cost_key)
        if moved is None:
            moved = cost_tables(scaled(costs[key], factors(costs[key])), shapes[key], deployment)
            recent.put(cost_key, moved)
        costs_of[key] = moved
    return costs_of


def _near_capacity(world: World, statistics: pa.Table) -> list[dict[str, Any]]:
    """Return the scenarios whose requests are sent whatever the engine does, at a rate near its capacity."""
    loads = {row["scenario_id"]: row for row in capacities(world, statistics).to_pylist()}
    least, most = NEAR_CAPACITY
    return [
        row
        for row in world.scenarios
        if row["max_concurrency"] is None
        and row["scenario_id"] in loads
        and least <= loads[row["scenario_id"]]["load"] <= most
    ]


def deployments_served(world: World, scenario: dict[str, Any]) -> list[str]:
    """Return the deployments that serve a scenario, and their drafts."""
    return list(with_drafts(deployments_of(scenario), world.deployments))


def _at_end(statistics: pa.Table, end: str) -> pa.Table:
    return statistics.append_column("end", pa.repeat(end, statistics.num_rows))


def _directions(world: World, costs: Mapping[str, pa.Table], totals: pa.Table) -> dict[str, int]:
    """Return by scenario which direction moves its time the most, from 0 (kernels alone) to ``DIRECTIONS`` (host)."""
    widths = {
        key: pc.sum(table["gpu_p95_us"]).as_py() / pc.sum(table["gpu_us"]).as_py() - 1.0 for key, table in costs.items()
    }
    moves: dict[str, np.ndarray] = {}
    for row in totals.select(["scenario_id", "deployment_id", "gpu_ns", "host_ns"]).to_pylist():
        key = row["deployment_id"]
        host = math.expm1(Z_90 * world.hosts[key]["step_log_sd"])
        move = np.array([row["gpu_ns"] * widths.get(key, 0.0), row["host_ns"] * host])
        moves[row["scenario_id"]] = moves.get(row["scenario_id"], 0.0) + move
    return {
        name: round(math.atan2(host, kernels) / (math.pi / 2) * DIRECTIONS) for name, (kernels, host) in moves.items()
    }


def _towards(costs: pa.Table, column: str, share: float) -> np.ndarray:
    """Return the factors that move step costs towards an end of their interval, by that share of the way in logs."""
    return (costs[column].to_numpy() / np.maximum(costs["gpu_us"].to_numpy(), 1e-9)) ** share


def scaled(costs: pa.Table, factor: np.ndarray) -> pa.Table:
    """Return step costs whose GPU time, with all its parts, is so many times as long."""
    for name in SCALED:
        costs = costs.set_column(costs.column_names.index(name), name, pa.array(costs[name].to_numpy() * factor))
    return costs


def _host(overhead: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Return host constants moved by that share of the way to an end of their interval, all together."""
    return _times(overhead, math.exp(share * Z_90 * overhead["step_log_sd"]))


def _times(overhead: Mapping[str, Any], factor: float) -> dict[str, Any]:
    return {name: value * factor if name.endswith("_us") else value for name, value in overhead.items()}
