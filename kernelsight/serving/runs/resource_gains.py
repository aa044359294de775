"""Gains from 20 % more of each resource in turn (compute, bandwidth, KV cache, ...), by simulating scenarios again.

Of a limit with slack, which a scenario's requests never reach, more would change nothing: its gain is 0 without a
simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.knot_costs import RELIEF
from kernelsight.serving.engine.batch import units_held
from kernelsight.serving.engine.limits import is_plain, limits_of
from kernelsight.serving.runs.interval_ends import FirstRequests, deployments_served, moved_costs
from kernelsight.serving.runs.shared_prefixes import shares_prefixes
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, by_deployment
from kernelsight.serving.runs.statistics_tables import statistics_table
from kernelsight.serving.runs.summaries import Summary, summarise

# scheduling policies may keep as many KV units free as all requests hold when they end
KEPT_FREE = 2


def never_reached(first: FirstRequests) -> dict[str, set[str]]:
    """Return the scenarios that never reach the limit, by resource: "seats" (max_num_seqs) and "KV cache"."""
    inputs = first.inputs
    peaks = _peaks(first.middle.totals())
    unreached: dict[str, set[str]] = {"seats": set(), "KV cache": set()}
    for row in inputs.scenarios:
        name, keys = row["scenario_id"], deployments_served(inputs, row)
        if name not in inputs.spans:
            continue
        start, stop = inputs.spans[name]
        if all(stop - start < inputs.deployments[key]["max_num_seqs"] for key in keys):
            unreached["seats"].add(name)
        tokens = inputs.columns["prompt_tokens"][start:stop] + inputs.columns["output_tokens"][start:stop]
        largest = int(tokens.max(initial=0))
        if all(_kv_cache_suffices(inputs, row, key, largest, peaks.get((name, key))) for key in keys):
            unreached["KV cache"].add(name)
    return unreached


def _peaks(totals: pa.Table) -> dict[tuple[str, str], int]:
    """Return the most KV units in use on one engine, by (scenario, deployment)."""
    peaks: dict[tuple[str, str], int] = {}
    columns = (totals[name].to_pylist() for name in ("scenario_id", "deployment_id", "peak_kv_units"))
    for scenario, deployment, units in zip(*columns, strict=True):
        peaks[scenario, deployment] = max(peaks.get((scenario, deployment), 0), units)
    return peaks


def _kv_cache_suffices(
    inputs: SimulationInputs, scenario: dict[str, Any], key: str, tokens: int, peak_units: int | None
) -> bool:
    """Whether no request waited for KV units or was preempted; ``tokens``: of the longest request at its end.

    Either all requests fit together, or one more whole request fits beside the most units that were in use.
    """
    deployment, (start, stop) = inputs.deployments[key], inputs.spans[scenario["scenario_id"]]
    limits = limits_of(deployment, inputs.plans[key], 0)
    # a scored router and KV tiers look at the share of the KV cache that is in use
    if scenario["router"] == "scored" or inputs.tiers.get(key):
        return False
    # drafts that are rejected hold KV units within their step
    request_units = units_held.py_func(tokens + limits.drafts + 1, limits)
    if KEPT_FREE * (stop - start) * request_units <= limits.capacity_units:
        return True
    if peak_units is None or limits.drafts or not is_plain(limits):
        return False
    has_hashes = pc.is_valid(inputs.requests["hash_ids"].slice(start, stop - start))
    shares = shares_prefixes(deployment, inputs.plans[key]) and pc.any(has_hashes).as_py()
    return not shares and peak_units + request_units < limits.capacity_units


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
