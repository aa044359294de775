"""Gains from 20 % more of each resource in turn (compute, bandwidth, KV cache, ...), by simulating scenarios again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.knot_costs import RELIEF
from kernelsight.serving.runs.interval_ends import FirstRequests, deployments_served, moved_costs
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, by_deployment
from kernelsight.serving.runs.slack import never_reached
from kernelsight.serving.runs.statistics_tables import statistics_table
from kernelsight.serving.runs.summaries import Summary, summarise

METRICS = ("e2e", "ttft", "tpot")
# columns of step_cost_shares: the part of GPU time that shrinks with more of a GPU's resource
RATES = {"prefill compute": "compute_us", "decode bandwidth": "memory_us", "link": "link_us"}
# flags of a scenario with which a client does not send a request as soon as another ends
SENT = ("trace", "request_rate", "ramp_up_strategy", "think_time_s")


def gains_of_resources(
    first: FirstRequests, step_costs: pa.Table, step_shapes: pa.Table, shares: pa.Table, threads: int | None = None
) -> pa.Table:
    """Return ``resource_gains``: gains of each scenario's first requests from 20 % more of each resource.

    ``shares``: ``step_cost_shares``.
    """
    before, unused = _figures(first.middle), never_reached(first)
    rows: list[dict[str, Any]] = []
    for resource, inputs_with_more in _inputs_with_more(first.inputs, step_costs, step_shapes, shares).items():
        inputs, unchanged = inputs_with_more(), unused.get(resource, set())
        changed = [row for row in inputs.scenarios if row["scenario_id"] not in unchanged]
        inputs = inputs._replace(scenarios=changed)
        after = _figures(summarise(inputs, serve_replicas, threads)) if changed else {}
        after |= {name: before[name] for name in unchanged if name in before}
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
    """Return output tokens/s and the means of METRICS in ms by scenario; without those that completed no request."""
    rows = statistics_table(summary.counted).to_pylist()
    return {
        row["scenario_id"]: (
            row["output_tokens"] / row["duration_s"],
            *(row[f"{metric}_mean_ms"] or 0.0 for metric in METRICS),
        )
        for row in rows
        if row["completed"] and row["duration_s"]
    }


def _inputs_with_more(
    inputs: SimulationInputs, step_costs: pa.Table, step_shapes: pa.Table, shares: pa.Table
) -> dict[str, Callable[[], SimulationInputs]]:
    """Return, by resource, a function that returns the inputs with 20 % more of it.

    They have only the scenarios that use the resource.
    """
    tables = (step_costs, step_shapes, shares)
    shares_of = by_deployment(shares)

    def faster(column: str) -> SimulationInputs:
        time_of = {key: pc.sum(shares_of[key][column]).as_py() or 0.0 for key in shares_of}
        rows = [row for row in inputs.scenarios if any(time_of.get(key) for key in deployments_served(inputs, row))]
        relief = (RELIEF, lambda costs: _shorter(costs, shares_of[costs["deployment_id"][0].as_py()][column]))
        return inputs._replace(scenarios=rows, costs=inputs.costs | moved_costs(inputs, rows, tables, column, relief))

    def more(field: str, column: str) -> SimulationInputs:
        rows = {
            key: row | {column: math.ceil(row[column] * RELIEF)} if row[column] else row
            for key, row in getattr(inputs, field).items()
        }
        return inputs._replace(**{field: rows})

    def sooner() -> SimulationInputs:
        columns = {"arrival_s": inputs.columns["arrival_s"] / RELIEF}
        waits = {name: wait._replace(pause_us=wait.pause_us / RELIEF) for name, wait in inputs.waits.items()}
        # in a closed loop the end of a request is the arrival of the next: only delays of the client can shrink
        rows = [row for row in inputs.scenarios if row["max_concurrency"] is None or any(row[name] for name in SENT)]
        return inputs._replace(scenarios=rows, waits=waits, columns=inputs.columns | columns)

    return {
        "arrivals": sooner,
        **{resource: lambda column=column: faster(column) for resource, column in RATES.items()},
        "host": lambda: inputs._replace(hosts={key: _faster_host(row) for key, row in inputs.hosts.items()}),
        "KV cache": lambda: more("plans", "capacity_units"),
        "seats": lambda: more("deployments", "max_num_seqs"),
        "token budget": lambda: more("deployments", "max_num_batched_tokens"),
    }


def _shorter(costs: pa.Table, part: pa.ChunkedArray) -> np.ndarray:
    """Return the factors on step costs when ``part`` of their GPU time runs at a 20 % higher rate."""
    return 1.0 - part.to_numpy() / np.maximum(costs["gpu_us"].to_numpy(), 1e-9) * (1.0 - 1.0 / RELIEF)


def _faster_host(overhead: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants of the host with all times divided by ``RELIEF``."""
    return {name: value / RELIEF if name.endswith("_us") else value for name, value in overhead.items()}
