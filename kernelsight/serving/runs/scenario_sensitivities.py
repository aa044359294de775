"""How a scenario's latencies and throughput go with the facts of its GPUs, from the elasticities of its step costs.

In a closed loop, or where all requests are sent at once, what the steps hold does not depend on how long they take: a
small change of step costs makes every wait longer or shorter by the share of it that goes with the fact, and one
simulation says of what each wait was made. Requests with arrivals of their own meet other steps when these get
shorter, so that batches change with them: there the scenario is served again with moved step costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.scenario.plan import deployments_of
from kernelsight.serving.runs.interval_ends import MOST_REQUESTS, deployments_served
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.resource_gains import SENT
from kernelsight.serving.runs.result_tables import Replica, part_rows, use_rows
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.statistics_tables import QUANTILES, statistics_table
from kernelsight.serving.runs.summaries import summarise
from kernelsight.serving.runs.world import World, first_requests, split_by_deployment

# share of a fact by which a scenario is moved to both sides
STEP = 0.01
LATENCIES = ("ttft", "tpot", "e2e")
THROUGHPUTS = ("request_throughput", "output_throughput")
# elasticity of each column of step costs; what pipeline stages do not share goes with the whole
COLUMNS = {
    "gpu_us": "elasticity",
    "embedding_us": "elasticity",
    "transfer_us": "elasticity",
    "moe_us": "moe_elasticity",
    "communication_us": "communication_elasticity",
}
PROMPTS = ("prefill", "mixed")


class Elasticities(NamedTuple):
    """Of one deployment: its facts, and elasticities by name, shape (facts, step shapes by id); 0 where none is."""

    facts: list[str]
    values: dict[str, np.ndarray]


def sensitivities_of_scenarios(
    world: World, step_costs: pa.Table, step_shapes: pa.Table, elasticities: pa.Table, threads: int | None = None
) -> pa.Table:
    """Return ``scenario_sensitivities`` of each scenario's first requests; ``elasticities``: of their step costs."""
    short = first_requests(world, MOST_REQUESTS)
    keys = list(dict.fromkeys(key for row in world.scenarios for key in deployments_served(world, row)))
    costs, shapes, found = (
        split_by_deployment(table.filter(pc.is_in(table["deployment_id"], pa.array(keys, pa.string()))))
        for table in (step_costs, step_shapes, elasticities)
    )
    moves = {key: _elasticities(table) for key, table in found.items()}
    ordered = {row["scenario_id"] for row in world.scenarios if keeps_order(short, row)}
    rows: list[tuple] = []
    first, others = (
        short._replace(scenarios=[row for row in short.scenarios if (row["scenario_id"] in ordered) == is_first])
        for is_first in (True, False)
    )
    if first.scenarios:
        rows += _first_order(first, costs, shapes, moves, threads)
    if others.scenarios:
        rows += _replayed(others, costs, shapes, moves, threads)
    names = ("scenario_id", "fact", "metric", "elasticity", "method")
    columns = zip(*sorted(rows), strict=True) if rows else [[]] * len(names)
    types = dict.fromkeys(names, pa.string()) | {"elasticity": pa.float64()}
    return pa.table({name: pa.array(values, types[name]) for name, values in zip(names, columns, strict=True)})


def keeps_order(world: World, scenario: Mapping[str, Any]) -> bool:
    """Whether steps alone decide which requests each of them holds, on one engine of one stage without drafts."""
    settings, plain = world.deployments[scenario["deployment_id"]], len(deployments_of(scenario)) == 1
    engines = settings["dp"] * settings["pp"] * (scenario["replicas"] or 1)
    if not plain or engines > 1 or settings["num_speculative_tokens"] or scenario["scenario_id"] not in world.spans:
        return False
    own = slice(*world.spans[scenario["scenario_id"]])
    arrivals = world.columns["arrival_s"][own]
    if scenario["deployment_id"] in world.tiers:
        return False
    at_once = bool((arrivals == arrivals[:1]).all()) and scenario["scenario_id"] not in world.waits
    return at_once or (scenario["max_concurrency"] is not None and not any(scenario[name] for name in SENT))


def _elasticities(table: pa.Table) -> Elasticities:
    """Lay the elasticities of one deployment out by fact and step shape."""
    encoded = table["fact"].combine_chunks().dictionary_encode()
    ids = table["step_shape_id"].to_numpy()
    values = {}
    for name in {*COLUMNS.values(), "rest_elasticity"}:
        values[name] = np.zeros((len(encoded.dictionary), ids.max(initial=-1) + 1))
        values[name][encoded.indices.to_numpy(), ids] = pc.fill_null(table[name], 0.0).to_numpy()
    return Elasticities(encoded.dictionary.to_pylist(), values)


def _replayed(
    world: World,
    costs: Mapping[str, pa.Table],
    shapes: Mapping[str, pa.Table],
    moves: Mapping[str, Elasticities],
    threads: int | None,
) -> list[tuple]:
    """Return rows of scenarios that are served again with 1 % more and 1 % less of each fact that moves anything."""
    rows = []
    for fact in dict.fromkeys(fact for one in moves.values() for fact in one.facts):
        moved = {
            key
            for key, one in moves.items()
            if fact in one.facts and one.values["elasticity"][one.facts.index(fact)].any()
        }
        stated = [row for row in world.scenarios if any(fact in moves[key].facts for key in _costed(world, row, moves))]
        served = [row for row in stated if moved.intersection(deployments_served(world, row))]
        ends = [
            _metrics(_moved(world._replace(scenarios=served), costs, shapes, moves, fact, factor), threads)
            for factor in (1.0 + STEP, 1.0 - STEP)
            if served
        ]
        still = [row for row in stated if row not in served]
        ends = ends or [{}, {}]
        for scenario in (row["scenario_id"] for row in served):
            for metric, more in ends[0].get(scenario, {}).items():
                less = ends[1].get(scenario, {}).get(metric)
                if more and less:
                    value = float(np.log(more / less) / np.log((1.0 + STEP) / (1.0 - STEP)))
                    rows.append((scenario, fact, metric, value, "replay"))
        for scenario, figures in _metrics(world._replace(scenarios=still), threads).items() if still else ():
            rows += [(scenario, fact, metric, 0.0, "replay") for metric, value in figures.items() if value]
    return rows


def _costed(world: World, row: dict[str, Any], moves: Mapping[str, Elasticities]) -> list[str]:
    return [key for key in deployments_served(world, row) if key in moves]


def _moved(
    world: World,
    costs: Mapping[str, pa.Table],
    shapes: Mapping[str, pa.Table],
    moves: Mapping[str, Elasticities],
    fact: str,
    factor: float,
) -> World:
    """Return a world whose step costs are those of GPUs with ``factor`` times a fact."""
    laid_out = dict(world.costs)
    for key in dict.fromkeys(key for row in world.scenarios for key in deployments_served(world, row)):
        if key in costs and key in moves and fact in moves[key].facts:
            table, one = costs[key], moves[key]
            ids = table["step_shape_id"].to_numpy()
            for name, elasticity in COLUMNS.items():
                change = factor ** one.values[elasticity][one.facts.index(fact)][ids]
                column = pa.array(table[name].to_numpy() * change)
                table = table.set_column(table.column_names.index(name), name, column)
            laid_out[key] = cost_tables(table, shapes[key], world.deployments[key])
    return world._replace(costs=laid_out)


def _metrics(world: World, threads: int | None) -> dict[str, dict[str, float | None]]:
    """Return the figures of each scenario by their names in ``scenario_summary``."""
    found = {}
    for row in statistics_table(summarise(world, serve_replicas, threads).counted).to_pylist():
        if row["completed"] and row["duration_s"]:
            figures = {
                f"{name}_{word}_ms": row[f"{name}_{word}_ms"] for name in LATENCIES for word in ("mean", *QUANTILES)
            }
            figures["request_throughput"] = row["completed"] / row["duration_s"]
            figures["output_throughput"] = row["output_tokens"] / row["duration_s"]
            found[row["scenario_id"]] = figures
    return found


def _first_order(
    world: World,
    costs: Mapping[str, pa.Table],
    shapes: Mapping[str, pa.Table],
    moves: Mapping[str, Elasticities],
    threads: int | None,
) -> list[tuple]:
    """Return rows of scenarios in which a small change of step costs changes no step."""
    rows = []
    replicas = serve_replicas(world, split=True, threads=threads)
    for one in replicas:
        key = one.deployment
        if key not in moves:
            continue
        uses = use_rows([one], world.costs, world.deployments)
        waits = _waits_of(one, world)
        parts = _of_parts(uses, costs[key], shapes[key], moves[key])
        gpu_us, host_us = one.served.totals.gpu_us, one.served.totals.host_us
        whole = parts["whole"] * gpu_us / max(gpu_us + host_us, 1e-9)
        span_us = one.served.totals.last_us - one.served.totals.first_us
        for number, fact in enumerate(moves[key].facts):
            own = {name: values[number] for name, values in parts.items()} | {
                "queue": whole[number],
                "preemption": whole[number],
            }
            rows += [(one.scenario, fact, *rest, "first order") for rest in _of_waits(waits, own)]
            change = -parts["whole"][number] * gpu_us / max(span_us, 1e-9)
            rows += [(one.scenario, fact, name, float(change), "first order") for name in THROUGHPUTS]
    return rows


def _waits_of(one: Replica, world: World) -> dict[str, Any]:
    """Return what finished requests waited for, nanoseconds by phase and part, and what TPOT divides by."""
    table = part_rows([one], world.requests)
    first = slice(None, table.num_rows // 2)
    place = np.flatnonzero(np.isin(world.columns["request_id"][one.rows], table["request_id"].to_numpy()[first]))
    rows = one.rows[place]
    kept = ~world.columns["warmup"][rows]
    names = [name.removesuffix("_ns") for name in table.column_names if name.endswith("_ns")]
    both = {name: table[f"{name}_ns"].to_numpy().reshape(2, -1)[:, kept].astype(float) for name in names}
    return {"parts": both, "gaps": world.columns["output_tokens"][rows][kept] - 1}


def _of_parts(uses: pa.Table, costs: pa.Table, shapes: pa.Table, moves: Elasticities) -> dict[str, np.ndarray]:
    """Return the elasticity of each part of what requests wait for, shape (facts,), and that of all GPU time."""
    size = moves.values["elasticity"].shape[1]
    time = {name: np.zeros(size) for name in ("gpu_us", "moe_us", "communication_us")}
    for name, values in time.items():
        values[costs["step_shape_id"].to_numpy()] = costs[name].to_numpy()
    rest = time["gpu_us"] - time["moe_us"] - time["communication_us"]
    part = np.full(size, "", dtype=object)
    part[shapes["step_shape_id"].to_numpy()] = shapes["part"].to_pylist()
    ids, weight = uses["step_shape_id"].to_numpy(), uses["weight"].to_numpy()
    prompts = pc.is_in(uses["phase"], pa.array(PROMPTS)).to_numpy(zero_copy_only=False)
    prefills, decodes = (
        part[ids] == "prefill_attention",
        np.isin(part[ids].astype(str), ["decode_attention", "decode_window"]),
    )
    plain = ~prefills & ~decodes

    def mean(rows: np.ndarray, us: np.ndarray, name: str) -> np.ndarray:
        spent = weight[rows] * us[ids[rows]]
        return moves.values[name][:, ids[rows]] @ spent / max(spent.sum(), 1e-9)

    everywhere = np.ones(ids.size, bool)
    return {
        "prefill_gemm": mean(plain & prompts, rest, "rest_elasticity"),
        "decode_gemm": mean(plain & ~prompts, rest, "rest_elasticity"),
        "prefill_attention": mean(prefills, rest, "rest_elasticity"),
        "decode_attention": mean(decodes, rest, "rest_elasticity"),
        "moe": mean(everywhere, time["moe_us"], "moe_elasticity"),
        "communication": mean(everywhere, time["communication_us"], "communication_elasticity"),
        "whole": mean(everywhere, time["gpu_us"], "elasticity"),
    }


def _of_waits(waits: dict[str, Any], elasticity: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return metrics and their elasticities: means and quantiles of latencies that are moved to both sides."""
    total = sum(waits["parts"].values())
    change = sum(values * elasticity.get(name, 0.0) for name, values in waits["parts"].items())
    several = waits["gaps"] > 0
    gaps = waits["gaps"][several]
    samples = {
        "ttft": (total[0], change[0]),
        "e2e": (total.sum(axis=0), change.sum(axis=0)),
        "tpot": (total[1, several] / gaps, change[1, several] / gaps),
    }
    rows = []
    for name, (values, slope) in samples.items():
        if not values.size or not values.mean() > 0.0:
            continue
        rows.append((f"{name}_mean_ms", float(slope.mean() / values.mean())))
        more, less = (np.quantile(values + side * STEP * slope, list(QUANTILES.values())) for side in (1.0, -1.0))
        middle = np.quantile(values, list(QUANTILES.values()))
        rows += [
            (f"{name}_{word}_ms", float(one))
            for word, one in zip(QUANTILES, (more - less) / (2.0 * STEP * middle), strict=True)
        ]
    return rows
