"""Elasticities of a scenario's latencies and throughput with respect to the facts of its GPUs (bandwidth, clock, ...).

No kernel latency is computed again: the scenario is simulated with 1 % more and 1 % less of each fact, its step costs
moved along their elasticities. In a closed loop, or where all requests are sent at once, the batches of the steps do
not depend on their times. In an open loop requests arrive in other steps when these get shorter, so that batches
change, and latencies by leaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.scenario.scenario_rows import deployments_of
from kernelsight.serving.runs.interval_ends import MOST_REQUESTS, deployments_served
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.resource_gains import SENT
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, first_requests, split_by_deployment
from kernelsight.serving.runs.statistics_tables import QUANTILES, statistics_table
from kernelsight.serving.runs.summaries import summarise

# relative change of a fact, up and down, for the central difference
STEP = 0.01
# the method where batches do not depend on the times of steps
ORDERED = "replay in order"
LATENCIES = ("ttft", "tpot", "e2e")
# the elasticity that each column of step costs takes; embedding and stage transfers take that of the whole step
COLUMNS = {
    "gpu_us": "elasticity",
    "embedding_us": "elasticity",
    "transfer_us": "elasticity",
    "moe_us": "moe_elasticity",
    "communication_us": "communication_elasticity",
}


class Elasticities(NamedTuple):
    """Elasticities of one deployment's step costs by name, shape [facts, step shapes by id]; 0 where there is none."""

    facts: list[str]
    values: dict[str, np.ndarray]


def sensitivities_of_scenarios(
    inputs: SimulationInputs,
    step_costs: pa.Table,
    step_shapes: pa.Table,
    elasticities: pa.Table,
    threads: int | None = None,
) -> pa.Table:
    """Return ``scenario_sensitivities`` of each scenario's first requests.

    ``elasticities``: ``step_cost_sensitivities``.
    """
    short = first_requests(inputs, MOST_REQUESTS)
    keys = list(dict.fromkeys(key for row in inputs.scenarios for key in deployments_served(inputs, row)))
    costs, shapes, tables = (
        split_by_deployment(table.filter(pc.is_in(table["deployment_id"], pa.array(keys, pa.string()))))
        for table in (step_costs, step_shapes, elasticities)
    )
    moves = {key: _elasticities(table) for key, table in tables.items()}
    methods = {row["scenario_id"]: ORDERED if keeps_order(short, row) else "replay" for row in inputs.scenarios}
    replayed = _replayed(short, costs, shapes, moves, threads) if short.scenarios else []
    rows = [(*row, methods[row[0]]) for row in replayed]
    names = ("scenario_id", "fact", "metric", "elasticity", "method")
    columns = zip(*sorted(rows), strict=True) if rows else [[]] * len(names)
    types = dict.fromkeys(names, pa.string()) | {"elasticity": pa.float64()}
    return pa.table({name: pa.array(values, types[name]) for name, values in zip(names, columns, strict=True)})


def keeps_order(inputs: SimulationInputs, scenario: Mapping[str, Any]) -> bool:
    """Whether batches do not depend on the times of steps: a closed loop or one burst, on one engine of one stage."""
    settings, one_pool = inputs.deployments[scenario["deployment_id"]], len(deployments_of(scenario)) == 1
    engines = settings["dp"] * settings["pp"] * (scenario["replicas"] or 1)
    if not one_pool or engines > 1 or settings["num_speculative_tokens"] or scenario["scenario_id"] not in inputs.spans:
        return False
    in_load = slice(*inputs.spans[scenario["scenario_id"]])
    arrivals = inputs.columns["arrival_s"][in_load]
    if scenario["deployment_id"] in inputs.tiers:
        return False
    one_burst = bool((arrivals == arrivals[:1]).all()) and scenario["scenario_id"] not in inputs.waits
    return one_burst or (scenario["max_concurrency"] is not None and not any(scenario[name] for name in SENT))


def _elasticities(table: pa.Table) -> Elasticities:
    """Return the elasticities of one deployment's step costs as arrays."""
    encoded = table["fact"].combine_chunks().dictionary_encode()
    ids = table["step_shape_id"].to_numpy()
    values = {}
    for name in set(COLUMNS.values()):
        values[name] = np.zeros((len(encoded.dictionary), ids.max(initial=-1) + 1))
        values[name][encoded.indices.to_numpy(), ids] = pc.fill_null(table[name], 0.0).to_numpy()
    return Elasticities(encoded.dictionary.to_pylist(), values)


def _replayed(
    inputs: SimulationInputs,
    costs: Mapping[str, pa.Table],
    shapes: Mapping[str, pa.Table],
    moves: Mapping[str, Elasticities],
    threads: int | None,
) -> list[tuple]:
    """Return (scenario, fact, metric, elasticity), each scenario simulated with 1 % more and 1 % less of a fact.

    A scenario whose step costs do not change with the fact has elasticity 0 in all its metrics.
    """
    rows = []
    for fact in dict.fromkeys(fact for elasticities in moves.values() for fact in elasticities.facts):
        moved_deployments = {
            key
            for key, elasticities in moves.items()
            if fact in elasticities.facts and elasticities.values["elasticity"][elasticities.facts.index(fact)].any()
        }
        moved_scenarios = [
            row
            for row in inputs.scenarios
            if any(fact in moves[key].facts for key in _with_elasticities(inputs, row, moves))
        ]
        replayed = [row for row in moved_scenarios if moved_deployments.intersection(deployments_served(inputs, row))]
        ends = [
            _metrics(_moved(inputs._replace(scenarios=replayed), costs, shapes, moves, fact, factor), threads)
            for factor in (1.0 + STEP, 1.0 - STEP)
            if replayed
        ]
        unmoved = [row for row in moved_scenarios if row not in replayed]
        ends = ends or [{}, {}]
        for scenario in (row["scenario_id"] for row in replayed):
            for metric, value_up in ends[0].get(scenario, {}).items():
                value_down = ends[1].get(scenario, {}).get(metric)
                if value_up and value_down:
                    elasticity = float(np.log(value_up / value_down) / np.log((1.0 + STEP) / (1.0 - STEP)))
                    rows.append((scenario, fact, metric, elasticity))
        for scenario, figures in _metrics(inputs._replace(scenarios=unmoved), threads).items() if unmoved else ():
            rows += [(scenario, fact, metric, 0.0) for metric, value in figures.items() if value]
    return rows


def _with_elasticities(inputs: SimulationInputs, row: dict[str, Any], moves: Mapping[str, Elasticities]) -> list[str]:
    return [key for key in deployments_served(inputs, row) if key in moves]


def _moved(
    inputs: SimulationInputs,
    costs: Mapping[str, pa.Table],
    shapes: Mapping[str, pa.Table],
    moves: Mapping[str, Elasticities],
    fact: str,
    factor: float,
) -> SimulationInputs:
    """Return the inputs with the step costs of GPUs that have ``factor`` times a fact."""
    costs_of = dict(inputs.costs)
    for key in dict.fromkeys(key for row in inputs.scenarios for key in deployments_served(inputs, row)):
        if key in costs and key in moves and fact in moves[key].facts:
            table, elasticities = costs[key], moves[key]
            ids = table["step_shape_id"].to_numpy()
            for name, elasticity in COLUMNS.items():
                change = factor ** elasticities.values[elasticity][elasticities.facts.index(fact)][ids]
                column = pa.array(table[name].to_numpy() * change)
                table = table.set_column(table.column_names.index(name), name, column)
            costs_of[key] = cost_tables(table, shapes[key], inputs.deployments[key])
    return inputs._replace(costs=costs_of)


def _metrics(inputs: SimulationInputs, threads: int | None) -> dict[str, dict[str, float | None]]:
    """Return the metrics of each simulated scenario by their names in ``scenario_summary``."""
    figures_of = {}
    for row in statistics_table(summarise(inputs, serve_replicas, threads).counted).to_pylist():
        if row["completed"] and row["duration_s"]:
            figures = {
                f"{name}_{word}_ms": row[f"{name}_{word}_ms"] for name in LATENCIES for word in ("mean", *QUANTILES)
            }
            figures["request_throughput"] = row["completed"] / row["duration_s"]
            figures["output_throughput"] = row["output_tokens"] / row["duration_s"]
            figures_of[row["scenario_id"]] = figures
    return figures_of
