"""Derivatives of a scenario's latencies and throughput by the facts of its GPUs, from those of its step costs.

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
from kernelsight.serving.engine.host import front_end_of
from kernelsight.serving.engine.records import FINISHED
from kernelsight.serving.engine.steps import DECODES, END, HOST_TIME, PROMPTS, START
from kernelsight.serving.runs.interval_ends import MOST_REQUESTS, deployments_served
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.resource_gains import SENT
from kernelsight.serving.runs.result_tables import PHASES, Replica, use_rows
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.statistics_tables import QUANTILES, statistics_table
from kernelsight.serving.runs.summaries import summarise
from kernelsight.serving.runs.world import World, first_requests, split_by_deployment

# share of a fact by which a scenario is moved to both sides
STEP = 0.01
# of the GPU time: host time above it may be that of steps for which the GPU waits, which go with no fact
HOST_SHARE = 0.25
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
    costs, shapes, tables = (
        split_by_deployment(table.filter(pc.is_in(table["deployment_id"], pa.array(keys, pa.string()))))
        for table in (step_costs, step_shapes, elasticities)
    )
    moves = {key: _elasticities(table) for key, table in tables.items()}
    ordered = {row["scenario_id"] for row in world.scenarios if keeps_order(short, row)}
    rows: list[tuple] = []
    first, others = (
        short._replace(scenarios=[row for row in short.scenarios if (row["scenario_id"] in ordered) == is_first])
        for is_first in (True, False)
    )
    if first.scenarios:
        rows, again = _first_order(first, costs, moves, threads)
        others = others._replace(
            scenarios=[row for row in short.scenarios if row["scenario_id"] not in ordered - again]
        )
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
    in_load = slice(*world.spans[scenario["scenario_id"]])
    arrivals = world.columns["arrival_s"][in_load]
    if scenario["deployment_id"] in world.tiers:
        return False
    at_once = bool((arrivals == arrivals[:1]).all()) and scenario["scenario_id"] not in world.waits
    return at_once or (scenario["max_concurrency"] is not None and not any(scenario[name] for name in SENT))


def _elasticities(table: pa.Table) -> Elasticities:
    """Lay the elasticities of one deployment out by fact and step shape."""
    encoded = table["fact"].combine_chunks().dictionary_encode()
    ids = table["step_shape_id"].to_numpy()
    values = {}
    for name in set(COLUMNS.values()):
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
    figures_of = {}
    for row in statistics_table(summarise(world, serve_replicas, threads).counted).to_pylist():
        if row["completed"] and row["duration_s"]:
            figures = {
                f"{name}_{word}_ms": row[f"{name}_{word}_ms"] for name in LATENCIES for word in ("mean", *QUANTILES)
            }
            figures["request_throughput"] = row["completed"] / row["duration_s"]
            figures["output_throughput"] = row["output_tokens"] / row["duration_s"]
            figures_of[row["scenario_id"]] = figures
    return figures_of


def _first_order(
    world: World, costs: Mapping[str, pa.Table], moves: Mapping[str, Elasticities], threads: int | None
) -> tuple[list[tuple], set[str]]:
    """Return rows of scenarios in which a small change of step costs changes no step, and the names of the others."""
    rows, others = [], set()
    for one in serve_replicas(world, keep_steps=True, threads=threads):
        deployment, moments = one.deployment, _moments(one, world)
        if not moments.gaps.size:
            continue
        by_phase = _of_phases(use_rows([one], world.costs, world.deployments), costs[deployment], moves[deployment])
        shifts = [_shifts(one.served.steps, elasticity, moments.times_us) for elasticity in by_phase]
        hosted = one.served.totals.host_us > HOST_SHARE * one.served.totals.gpu_us
        if hosted or any(_changes_order(one.served.steps, moments, shift) for shift in shifts):
            others.add(one.scenario)
            continue
        for fact, shift in zip(moves[deployment].facts, shifts, strict=True):
            elasticities = _of_latencies(moments, shift) | _of_throughput(one.served.steps, shift, moments)
            rows += [(one.scenario, fact, metric, value, "first order") for metric, value in elasticities.items()]
    return rows, others


class Moments(NamedTuple):
    """When finished requests were sent, got their first and their last token, microseconds, shape (3, requests)."""

    times_us: np.ndarray
    gaps: np.ndarray  # between tokens
    seen_us: np.ndarray  # when the scheduler saw them


def _moments(one: Replica, world: World) -> Moments:
    out = one.served.out
    finished = (out.status == FINISHED) & ~world.columns["warmup"][one.rows]
    rows = one.rows[finished]
    request_us, token_us = front_end_of(world.hosts[one.deployment], world.deployments[one.deployment])
    seen_us = out.sent_us[finished] + request_us + token_us * world.columns["prompt_tokens"][rows]
    times_us = np.stack([out.sent_us, out.first_token_us, out.finish_us])[:, finished]
    return Moments(times_us, world.columns["output_tokens"][rows] - 1, seen_us)


def _of_phases(uses: pa.Table, costs: pa.Table, moves: Elasticities) -> np.ndarray:
    """Return the elasticity of the GPU time of each phase's steps, shape (facts, PHASES)."""
    gpu_us = np.zeros(moves.values["elasticity"].shape[1])
    gpu_us[costs["step_shape_id"].to_numpy()] = costs["gpu_us"].to_numpy()
    by_phase = np.zeros((len(moves.facts), len(PHASES)))
    for number, phase in enumerate(PHASES):
        of_phase = uses.filter(pc.equal(uses["phase"], phase))
        ids = of_phase["step_shape_id"].to_numpy()
        spent = of_phase["weight"].to_numpy() * gpu_us[ids]
        by_phase[:, number] = moves.values["elasticity"][:, ids] @ spent / max(spent.sum(), 1e-9)
    return by_phase


def _shifts(steps: np.ndarray, elasticity: np.ndarray, times_us: np.ndarray) -> np.ndarray:
    """Return by how much moments come later for one unit of the logarithm of a fact: all steps before them do.

    ``steps``: rows of the loop; ``elasticity``: of the GPU time of each phase.
    """
    prompts, decodes = steps[:, PROMPTS] > 0, steps[:, DECODES] > 0
    phase = np.where(prompts, np.where(decodes, PHASES.index("mixed"), PHASES.index("prefill")), PHASES.index("decode"))
    gpu_us = np.maximum(steps[:, END] - steps[:, START] - steps[:, HOST_TIME], 0.0)
    later_us = np.concatenate([[0.0], np.cumsum(gpu_us * elasticity[phase])])
    moments = np.concatenate([steps[:1, START], steps[:, END]])
    return np.interp(times_us, moments, later_us)


def _changes_order(steps: np.ndarray, moments: Moments, shift: np.ndarray) -> bool:
    """Whether the scheduler sees a request in another step where the fact is moved by STEP: it is sent when another
    ends, and the next step begins soon after."""
    began = steps[:, START]
    later = np.clip(np.searchsorted(began, moments.seen_us), 1, began.size - 1)
    margin = np.minimum(np.abs(began[later] - moments.seen_us), np.abs(moments.seen_us - began[later - 1]))
    waited = moments.seen_us - moments.times_us[0]
    # between its sending and that step, the step moves by no more than this
    return bool((margin < STEP * waited)[moments.times_us[0] > began[0]].any()) and bool(shift.any())


def _of_latencies(moments: Moments, shift: np.ndarray) -> dict[str, float]:
    """Return elasticities of means and quantiles of latencies, moved to both sides."""
    several = moments.gaps > 0
    (sent, first, last), (sent_by, first_by, last_by) = moments.times_us, shift
    samples = {
        "ttft": (first - sent, first_by - sent_by),
        "e2e": (last - sent, last_by - sent_by),
        "tpot": tuple(((b - a) / moments.gaps)[several] for a, b in ((first, last), (first_by, last_by))),
    }
    elasticities = {}
    for name, (values, by) in samples.items():
        if values.size and values.mean() > 0.0:
            elasticities[f"{name}_mean_ms"] = float(by.mean() / values.mean())
            ends = (np.quantile(values + side * STEP * by, list(QUANTILES.values())) for side in (1.0, -1.0))
            slopes = np.subtract(*ends) / (2.0 * STEP * np.quantile(values, list(QUANTILES.values())))
            elasticities |= {f"{name}_{word}_ms": float(slope) for word, slope in zip(QUANTILES, slopes, strict=True)}
    return elasticities


def _of_throughput(steps: np.ndarray, shift: np.ndarray, moments: Moments) -> dict[str, float]:
    (sent, _, last), (sent_by, _, last_by) = moments.times_us, shift
    if not last.size:
        return {}
    end, start = last.argmax(), sent.argmin()
    longer = (last_by[end] - sent_by[start]) / (last[end] - sent[start])
    return dict.fromkeys(THROUGHPUTS, -float(longer))
