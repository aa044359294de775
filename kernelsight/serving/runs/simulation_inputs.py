"""Inputs of a simulation: scenarios, their requests, and the settings and step costs of their deployments, by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.scenario.flag_values import parse_weights
from kernelsight.scenario.scenario_rows import deployments_of, with_drafts
from kernelsight.serving.engine import records, replica
from kernelsight.serving.engine.host import host_of
from kernelsight.serving.engine.inputs import Load, Routing, Waits, Weights
from kernelsight.serving.engine.limits import limits_of
from kernelsight.serving.load.arrivals import ramp_s_of
from kernelsight.serving.load.requests import spans_of, spans_of_loads
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.result_tables import CostTables
from kernelsight.serving.runs.shared_prefixes import shared_prefixes
from kernelsight.serving.runs.tiers import tiers_of


class SimulationInputs(NamedTuple):
    """Inputs of the simulation of all scenarios: rows of tables as dicts by key, step costs as the loop reads them."""

    scenarios: list[dict[str, Any]]  # those whose deployments can run
    requests: pa.Table  # load_requests
    waits: dict[str, Waits]  # by scenario, where requests wait for others: row numbers within its load
    columns: dict[str, np.ndarray]  # of load_requests
    spans: dict[str, tuple[int, int]]  # by scenario: its first row of load_requests, and the one after its last
    deployments: dict[str, dict[str, Any]]  # rows of deployment_settings
    plans: dict[str, dict[str, Any]]  # rows of memory_plan, by deployment
    hosts: dict[str, dict[str, Any]]  # rows of host_settings, by deployment
    links: dict[str, dict[str, Any]]  # rows of kv_transfers, by scenario
    tiers: dict[str, list[dict[str, Any]]]  # rows of kv_tier_settings, by deployment, the nearest tier first
    layers: dict[str, int]  # number of layers, by model
    costs: dict[str, CostTables]  # by deployment
    scorers: dict[str, float]  # default weights of a scored router, by scorer


# of the prefix_aware router (SGLang: cache_aware)
THRESHOLDS = ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")


def inputs_of_session(table: Callable[[str], pa.Table]) -> SimulationInputs:
    """Return the inputs of the simulation, without scenarios whose deployments have faults.

    ``table``: function that returns a table by its name.
    """
    settings, load_requests = table("deployment_settings"), table("load_requests")
    deployments = by_key(settings, "deployment_id")
    broken = set(table("deployment_faults")["deployment_id"].to_pylist())
    wanted = [
        row
        for row in table("scenarios").to_pylist()
        if not broken.intersection(with_drafts(deployments_of(row), deployments))
    ]
    loads = spans_of_loads(load_requests)
    pairs = list(zip(*(table("scenario_loads")[name].to_pylist() for name in ("scenario_id", "load_id")), strict=True))
    waits = waits_of(load_requests, table("load_dependencies"), loads)
    keys = with_drafts((key for row in wanted for key in deployments_of(row)), deployments)
    return SimulationInputs(
        wanted, load_requests, {scenario: waits[load] for scenario, load in pairs if load in waits},
        memoised((load_requests,), "columns", lambda: load_columns(load_requests)),
        {scenario: loads[load] for scenario, load in pairs if load in loads}, deployments,
        by_key(table("memory_plan"), "deployment_id"), by_key(table("host_settings"), "deployment_id"),
        by_key(table("kv_transfers"), "scenario_id"), tiers_by_deployment(table("kv_tier_settings")),
        dict(zip(*(table("models")[name].to_pylist() for name in ("model", "layer_count")), strict=True)),
        laid_out(table("step_costs"), table("step_shapes"), settings, deployments, keys),
        dict(zip(*(table("router_scorers")[name].to_pylist() for name in ("scorer", "weight")), strict=True)),
    )  # fmt: skip


def waits_of(
    load_requests: pa.Table, load_dependencies: pa.Table, spans: Mapping[str, tuple[int, int]]
) -> dict[str, Waits]:
    """Return which requests wait for which as row numbers within their load, by load; only loads with dependencies."""
    waits, ids = {}, load_requests["request_id"].to_numpy() if load_dependencies.num_rows else None
    request, after, think_s = (load_dependencies[name].to_numpy() for name in ("request_id", "after", "think_s"))
    for load, (start, stop) in spans_of(load_dependencies["load_id"]).items():
        ids_of_load = ids[slice(*spans[load])]
        order = np.argsort(ids_of_load)
        places = (order[np.searchsorted(ids_of_load, values[start:stop], sorter=order)] for values in (request, after))
        waits[load] = Waits(*places, think_s[start:stop] * 1e6)
    return waits


def first_requests(inputs: SimulationInputs, most: int) -> SimulationInputs:
    """Return the inputs with at most the first ``most`` requests of each load."""
    spans = sorted(set(inputs.spans.values())) or [(0, 0)]
    counts = [min(stop - start, most) for start, stop in spans]
    if sum(counts) == inputs.requests.num_rows:
        return inputs
    places = dict(zip(spans, np.cumsum([0, *counts]).tolist(), strict=False))
    rows = np.concatenate([np.arange(start, start + count) for (start, _), count in zip(spans, counts, strict=True)])
    return inputs._replace(
        requests=inputs.requests.take(pa.array(rows)),
        waits={
            name: Waits(*(values[(waits.request < most) & (waits.after < most)] for values in waits))
            for name, waits in inputs.waits.items()
        },
        columns={name: values[rows] for name, values in inputs.columns.items()},
        spans={
            name: (places[span], places[span] + min(span[1] - span[0], most)) for name, span in inputs.spans.items()
        },
    )


def laid_out(
    step_costs: pa.Table,
    step_shapes: pa.Table,
    settings: pa.Table,
    deployments: Mapping[str, dict[str, Any]],
    keys: Iterable[str],
) -> dict[str, CostTables]:
    """Return the step costs of the deployments ``keys`` as the loop reads them; cached by the tables."""

    def costs_by_deployment() -> dict[str, CostTables]:
        shapes_of, costs_of = by_deployment(step_shapes), by_deployment(step_costs)
        return {key: cost_tables(costs_of[key], shapes_of[key], deployments[key]) for key in costs_of}

    costs = memoised((step_costs, step_shapes, settings), "laid out", costs_by_deployment)
    return {key: costs[key] for key in keys}


def pool_of(inputs: SimulationInputs, key: str) -> replica.Pool:
    """Return a deployment's engines for the loop: limits, host constants, step costs, stages, ranks and KV tiers."""
    deployment, cost = inputs.deployments[key], inputs.costs[key]
    limits = limits_of(deployment, inputs.plans[key], cost.window_tokens)
    launches, draft = cost.launches, None
    if deployment["draft_deployment_id"]:
        proposing = inputs.costs[deployment["draft_deployment_id"]]
        draft = replica.Draft(proposing.packed, proposing.window_tokens)
        launches += (1 if limits.draft_block else min(limits.draft_depth, limits.drafts)) * proposing.launches
    host = host_of(inputs.hosts[key], deployment, launches, cost.adapter_launches)
    stages = layers_of_stages(inputs.layers[deployment["model"]], deployment["pp"], deployment["engine"])
    ranks = deployment["dp"] if deployment["lock_step"] else 1
    tiers = tiers_of(inputs.tiers.get(key, []))
    return replica.Pool(limits, host, cost.packed, deployment["dp"], stages, draft, ranks, tiers)


def layers_of_stages(layers: int, stages: int, engine: str) -> tuple[int, ...]:
    """Return the number of layers of each stage: equal shares, and one of the remaining layers for some stages.

    vLLM and SGLang give these to the stages before the last one, backwards (``get_pp_indices``), TensorRT-LLM to the
    first ones (``Mapping.pp_layers``).

    >>> layers_of_stages(61, 4, "vllm"), layers_of_stages(62, 4, "vllm"), layers_of_stages(62, 4, "trtllm")
    ((15, 15, 16, 15), (15, 16, 16, 15), (16, 16, 15, 15))
    """
    each, extra_layers = divmod(layers, stages)
    first = 0 if engine == "trtllm" else stages - 1 - extra_layers
    return tuple(each + (first <= stage < first + extra_layers) for stage in range(stages))


def by_key(table: pa.Table, key: str) -> dict[Any, dict[str, Any]]:
    """Return the rows of a table as dicts, by the value of a key column."""
    return {row[key]: row for row in table.to_pylist()}


def tiers_by_deployment(kv_tier_settings: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of ``kv_tier_settings`` by deployment, the nearest tier first."""
    tiers: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(kv_tier_settings.to_pylist(), key=lambda row: row["position"]):
        tiers.setdefault(row["deployment_id"], []).append(row)
    return tiers


def load_columns(requests: pa.Table) -> dict[str, np.ndarray]:
    """Return the columns of ``load_requests`` as arrays; the loads of scenarios are slices of them."""
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    return {
        **{name: requests[name].to_numpy() for name in names},
        "warmup": pc.fill_null(requests["warmup"], False).to_numpy(),
        "request_id": requests["request_id"].to_numpy(),
        "priority": pc.fill_null(requests["priority"], 0).to_numpy(),
        "adapter": pc.fill_null(requests["adapter"], -1).to_numpy(),
    }


def load_of(
    inputs: SimulationInputs,
    rows: np.ndarray,
    scenario: dict[str, Any],
    deployment: dict[str, Any],
    plan: dict[str, Any],
) -> Load:
    """Return ``rows`` of the requests as a load of the loop; evenly spaced rows: those of one replica.

    Where requests wait for others, ``rows`` must be all of the scenario's.
    """
    every = slice(rows[0], rows[-1] + 1, rows[1] - rows[0] if rows.size > 1 else 1)  # a slice is no copy
    columns = inputs.columns
    concurrency = scenario["max_concurrency"]
    return Load(
        columns["arrival_s"][every] * 1e6,
        columns["prompt_tokens"][every].astype(np.int64),
        columns["output_tokens"][every].astype(np.int64),
        *shared_prefixes(inputs.requests, rows, deployment, plan),
        priority=columns["priority"][every],
        adapter=adapters_of(columns["adapter"][every], deployment),
        warmups=int(columns["warmup"][every].sum()),
        max_concurrency=records.NO_LIMIT if concurrency is None else concurrency,
        user_us=user_us_of(scenario),
        waits=inputs.waits.get(scenario["scenario_id"]),
    )


def adapters_of(adapter: np.ndarray, deployment: dict[str, Any]) -> np.ndarray:
    """Return the adapters of a load's requests as the loop reads them; empty: none has one that its engine serves."""
    return adapter if deployment["max_loras"] > 0 and (adapter >= 0).any() else adapter[:0]


def user_us_of(scenario: Mapping[str, Any]) -> float:
    """Return the time between two users of a closed loop who start, us: the last one starts as the ramp ends.

    >>> user_us_of({"concurrency_ramp_s": 6.0, "max_concurrency": 4}), user_us_of({"max_concurrency": None})
    (2000000.0, 0.0)
    """
    users = scenario["max_concurrency"]
    return 0.0 if users is None else 1e6 * ramp_s_of(scenario) / max(users - 1, 1)


def routing_of(scenario: dict[str, Any], deployment: dict[str, Any], scorers: Mapping[str, float]) -> Routing:
    """Return the router of a scenario: policy, thresholds and weights.

    Data-parallel ranks that step together take their engine's policy by default. ``scorers``: default weights.
    """
    thresholds = {name: scenario[f"router_{name}"] for name in THRESHOLDS}
    default_router = deployment["rank_router"] if deployment["lock_step"] else "round_robin"
    router = records.ROUTERS.index(scenario["router"] or default_router)
    weights = Weights()
    if router == records.SCORED:
        scorer_weights = parse_weights(scenario["router_weights"]) if scenario["router_weights"] else scorers
        weights = Weights(**{"tier": scorers.get("tier", 0.0), **scorer_weights})
    return Routing(router, **{name: value for name, value in thresholds.items() if value is not None}, weights=weights)


def replicas_interact(
    inputs: SimulationInputs, scenario: dict[str, Any], deployment: dict[str, Any], rows: np.ndarray
) -> bool:
    """Whether the state of one engine affects which requests another one gets, or when."""
    if (
        deployment["lock_step"]
        or any(tier["shared"] for tier in inputs.tiers.get(deployment["deployment_id"], []))
        or scenario["max_concurrency"] is not None
        or scenario["router"] not in (None, "round_robin")
    ):
        return True
    return scenario["scenario_id"] in inputs.waits or bool(inputs.columns["warmup"][rows].any())


def by_deployment(table: pa.Table) -> dict[str, pa.Table]:
    """Return ``split_by_deployment``; cached by the table."""
    return memoised((table,), "by deployment", lambda: split_by_deployment(table))


def split_by_deployment(table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each deployment in their order, by one sort instead of a filter for each deployment."""
    encoded = table["deployment_id"].combine_chunks().dictionary_encode()
    if len(encoded) == 0:
        return {}
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    rows = table if np.array_equal(order, np.arange(order.size)) else table.take(pa.array(order))
    starts = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    spans = zip(encoded.dictionary.to_pylist(), starts, starts[1:], strict=False)
    return {name: rows.slice(start, stop - start) for name, start, stop in spans}
