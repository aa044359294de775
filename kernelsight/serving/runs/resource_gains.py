"""Gains of a scenario from a fifth more of each resource in turn: it is served again with each that it uses up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.knot_costs import RELIEF
from kernelsight.serving.runs.interval_ends import First, deployments_served, moved_costs
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.slack import never_reached
from kernelsight.serving.runs.statistics_tables import statistics_table
from kernelsight.serving.runs.summaries import Summary, summarise
from kernelsight.serving.runs.world import World, by_deployment

METRICS = ("e2e", "ttft", "tpot")
# the part of the steps' GPU time that a resource of the GPU relieves
RATES = {"prefill compute": "compute_us", "decode bandwidth": "memory_us", "link": "link_us"}
# of a scenario: what spreads the requests of a client, whatever their largest number at once
SENT = ("trace", "request_rate", "ramp_up_strategy", "think_time_s")


def gains_of_resources(
    first: First, step_costs: pa.Table, step_shapes: pa.Table, shares: pa.Table, threads: int | None = None
) -> pa.Table:
    """Return ``resource_gains``: what each scenario's first requests gain from a fifth more of each resource."""
    before, unused = _figures(first.middle), never_reached(first)
    rows: list[dict[str, Any]] = []
    for resource, relieve in _reliefs(first.world, step_costs, step_shapes, shares).items():
        relieved, same = relieve(), unused.get(resource, set())
        served = [row for row in relieved.scenarios if row["scenario_id"] not in same]
        relieved = relieved._replace(scenarios=served)
        after = _figures(summarise(relieved, serve_replicas, threads)) if served else {}
        after |= {name: before[name] for name in same if name in before}
        for name, (throughput, *times_ms) in after.items():
            figures_before = before[name]
            rows.append(
                {
                    "scenario_id": name,
                    "resource": resource,
                    "throughput_gain": throughput / figures_before[0] - 1.0,
                    **{
                        f"{metric}_gain": 1.0 - after_ms / before_ms if before_ms else None
                        for metric, after_ms, before_ms in zip(METRICS, times_ms, figures_before[1:], strict=True)
                    },
                }
            )
    names = ("scenario_id", "resource", "throughput_gain", *(f"{metric}_gain" for metric in METRICS))
    return pa.table({name: [row[name] for row in rows] for name in names})


def _figures(summary: Summary) -> dict[str, tuple[float, ...]]:
    """Return by scenario: output tokens per second, means of METRICS in ms; none where no request is served."""
    rows = statistics_table(summary.counted).to_pylist()
    return {
        row["scenario_id"]: (
            row["output_tokens"] / row["duration_s"],
            *(row[f"{metric}_mean_ms"] or 0.0 for metric in METRICS),
        )
        for row in rows
        if row["completed"] and row["duration_s"]
    }


def _reliefs(
    world: World, step_costs: pa.Table, step_shapes: pa.Table, shares: pa.Table
) -> dict[str, Callable[[], World]]:
    """Return by resource what gives all scenarios a fifth more of it; a world has only those that it matters to."""
    tables = (step_costs, step_shapes, shares)
    parts = by_deployment(shares)

    def faster(column: str) -> World:
        there = {key: pc.sum(parts[key][column]).as_py() or 0.0 for key in parts}
        rows = [row for row in world.scenarios if any(there.get(key) for key in deployments_served(world, row))]
        relief = (RELIEF, lambda costs: _relieved(costs, parts[costs["deployment_id"][0].as_py()][column]))
        return world._replace(scenarios=rows, costs=world.costs | moved_costs(world, rows, tables, column, relief))

    def more(field: str, column: str) -> World:
        rows = {
            key: row | {column: math.ceil(row[column] * RELIEF)} if row[column] else row
            for key, row in getattr(world, field).items()
        }
        return world._replace(**{field: rows})

    def sooner() -> World:
        columns = {"arrival_s": world.columns["arrival_s"] / RELIEF}
        waits = {name: wait._replace(pause_us=wait.pause_us / RELIEF) for name, wait in world.waits.items()}
        # in a closed loop the end of a request is the arrival of the next: only what the client adds can come sooner
        rows = [row for row in world.scenarios if row["max_concurrency"] is None or any(row[name] for name in SENT)]
        return world._replace(scenarios=rows, waits=waits, columns=world.columns | columns)

    return {
        "arrivals": sooner,
        **{resource: lambda column=column: faster(column) for resource, column in RATES.items()},
        "host": lambda: world._replace(hosts={key: _less(row) for key, row in world.hosts.items()}),
        "KV cache": lambda: more("plans", "capacity_units"),
        "seats": lambda: more("deployments", "max_num_seqs"),
        "token budget": lambda: more("deployments", "max_num_batched_tokens"),
    }


def _relieved(costs: pa.Table, part: pa.ChunkedArray) -> np.ndarray:
    """Return the factors on step costs on a GPU with a fifth more of the rate that this part of them goes with."""
    return 1.0 - part.to_numpy() / np.maximum(costs["gpu_us"].to_numpy(), 1e-9) * (1.0 - 1.0 / RELIEF)


def _less(overhead: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value / RELIEF if name.endswith("_us") else value for name, value in overhead.items()}
