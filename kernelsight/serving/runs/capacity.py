"""Capacity of each scenario: the request rate at which the busiest station of its deployment is busy all the time.

At capacity the batch is as full as max_num_seqs and KV cache allow, and a waiting request takes the seat of each that
ends (``full_batch``). Nothing is simulated: a few steps are looked up in the step costs that the loop reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from kernelsight.scenario.scenario_rows import deployments_of
from kernelsight.serving.costs.knots import Reach
from kernelsight.serving.engine.host import Z_90
from kernelsight.serving.runs.full_batch import Lengths, Station, lengths_of, station_of
from kernelsight.serving.runs.pools import replicated
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, pool_of

# from this burstiness on, gaps between arrivals are treated as equal
LEAST_REGULAR = 100.0
COLUMNS = {
    **{"scenario_id": pa.string(), "capacity": pa.float64(), "capacity_low": pa.float64()},
    **{"capacity_high": pa.float64(), "capacity_limit": pa.string(), "asked_rate": pa.float64(), "load": pa.float64()},
}


def capacities(inputs: SimulationInputs, statistics: pa.Table) -> pa.Table:
    """Return ``scenario_capacity``, requests/s, of each scenario that completed a request.

    ``statistics``: ``request_statistics``, for the share of prompt tokens that the prefix cache held.
    """
    rows, ends_of_key, loads = [], {}, {}
    served = {row["scenario_id"]: row for row in _selected(statistics)}
    for scenario in inputs.scenarios:
        totals = served.get(scenario["scenario_id"])
        if totals is None or not totals["completed"]:
            continue
        start, stop = inputs.spans[scenario["scenario_id"]]
        cached_share = totals["cached_tokens"] / totals["asked_tokens"] if totals["asked_tokens"] else 0.0
        if (start, stop, cached_share) not in loads:
            prompts, outputs = (inputs.columns[name][start:stop] for name in ("prompt_tokens", "output_tokens"))
            loads[start, stop, cached_share] = lengths_of(prompts, outputs, cached_share)
        lengths = loads[start, stop, cached_share]._replace(
            burstiness=min(scenario["burstiness"] or 1.0, LEAST_REGULAR)
        )
        keys = tuple(deployments_of(scenario))
        replicas = tuple(scenario[name] for name in ("replicas", "prefill_replicas", "decode_replicas"))
        reach = reach_of(inputs, scenario)
        key = (keys, replicas, lengths, reach)
        if key not in ends_of_key:
            ends_of_key[key] = _ends(inputs, scenario, keys, lengths, reach)
        low, middle, high = ends_of_key[key]
        asked_rate = _sending_rate(inputs, scenario, start, stop)
        asked_rate = asked_rate or totals["completed"] / max(totals["duration_s"], 1e-9)
        rows.append(
            {
                "scenario_id": scenario["scenario_id"],
                "capacity": middle.rate,
                "capacity_low": low,
                "capacity_high": high,
                "capacity_limit": middle.limit,
                "asked_rate": asked_rate,
                "load": asked_rate / middle.rate,
            }
        )
    return pa.table({name: pa.array([row[name] for row in rows], arrow_type) for name, arrow_type in COLUMNS.items()})


def reach_of(inputs: SimulationInputs, scenario: Mapping[str, Any]) -> Reach:
    """Return the most requests that run at the same time in a scenario, and the tokens of its longest one."""
    requests = slice(*inputs.spans[scenario["scenario_id"]])
    prompts, outputs = (inputs.columns[name][requests] for name in ("prompt_tokens", "output_tokens"))
    return Reach(min(prompts.size, scenario["max_concurrency"] or prompts.size), int((prompts + outputs).max()))


def _selected(statistics: pa.Table) -> list[dict[str, Any]]:
    names = ["scenario_id", "completed", "duration_s", "asked_tokens", "cached_tokens"]
    return statistics.select(names).to_pylist()


def _sending_rate(inputs: SimulationInputs, scenario: Mapping[str, Any], start: int, stop: int) -> float | None:
    """Return the request rate of an open loop, requests/s; None for a closed loop or requests that wait for others."""
    if scenario["max_concurrency"] is not None and scenario["request_rate"] is None:
        return None
    if scenario["scenario_id"] in inputs.waits:
        return None
    if scenario["request_rate"] is not None:
        return scenario["request_rate"]
    arrivals = inputs.columns["arrival_s"][start:stop]
    span = float(arrivals[-1] - arrivals[0])
    return (stop - start - 1) / span if span > 0.0 else None


def _ends(
    inputs: SimulationInputs, scenario: Mapping[str, Any], keys: tuple[str, ...], lengths: Lengths, reach: Reach
) -> tuple[float, Station, float]:
    """Return the low end of the capacity's 90 % interval in requests/s, its median, and the high end."""
    pools = replicated(dict(scenario), *(pool_of(inputs, key) for key in keys))
    stations = []
    for pool_number, (key, pool) in enumerate(zip(reversed(keys), pools, strict=True)):
        pool_lengths = lengths
        if len(pools) > 1:  # P/D disaggregation: the first pool only prefills, the second only decodes
            prefill_lengths, decode_lengths = lengths._replace(decodes=0.0, longest=0), lengths._replace(prompt=0.0)
            pool_lengths = prefill_lengths if pool_number == 0 else decode_lengths
        station = station_of(pool, pool_lengths, reach)
        # errors of kernels and host are independent: their logarithms add up as squares
        kernels = station.kernels * math.log(inputs.costs[key].spread)
        half = math.hypot(kernels, (1.0 - station.kernels) * Z_90 * inputs.hosts[key]["step_log_sd"])
        stations.append((station._replace(rate=station.rate * pool.engines), math.exp(half)))
    slowest, factor = min(stations)
    return slowest.rate / factor, slowest, slowest.rate * factor
