"""From tables to the loop and back: one compiled call a scenario, spread over threads.

Replicas that share nothing (requests in turn, by the clock alone) are a call each.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput
from kernelsight.scenario.plan import and_drafts, deployments_of
from kernelsight.serving import records, replica
from kernelsight.serving.inputs import Host, Limits, Load, Routing, Surface, Transfer
from kernelsight.serving.knots import PARTS
from kernelsight.serving.results import (
    CostTables,
    Replica,
    event_rows,
    histogram_rows,
    replicas_of,
    step_rows,
    total_rows,
    use_rows,
    window_rows,
)
from kernelsight.serving.stages import layers_of_stages


def simulate_scenarios(
    scenarios: pa.Table,
    requests: pa.Table,
    step_costs: pa.Table,
    step_shapes: pa.Table,
    settings: pa.Table,
    faults: pa.Table,
    memory_plan: pa.Table,
    host_settings: pa.Table,
    kv_transfers: pa.Table,
    models: pa.Table,
) -> dict[str, pa.Table]:
    """Serve every scenario whose deployment can run.

    Returns request_events, step_cost_uses, itl_histogram, replica_totals, steps and serving_windows by name.
    """
    inputs = read_inputs(
        *(scenarios, requests, step_costs, step_shapes, settings, faults, memory_plan, host_settings, kv_transfers),
        models,
    )
    replicas = serve_replicas(inputs)
    return {
        "request_events": event_rows(replicas, requests),
        "step_cost_uses": use_rows(replicas, inputs.costs, inputs.deployments),
        "itl_histogram": histogram_rows(replicas),
        "replica_totals": total_rows(replicas),
        "steps": step_rows(replicas),
        "serving_windows": window_rows(replicas),
    }


class Inputs(NamedTuple):
    """What scenarios are served from, by key: rows of tables as dicts, step costs as the loop reads them."""

    scenarios: list[dict[str, Any]]  # those whose deployments can run
    requests: pa.Table
    columns: dict[str, np.ndarray]  # of the requests
    spans: dict[str, tuple[int, int]]  # first and last row of each scenario's requests
    deployments: dict[str, dict[str, Any]]
    plans: dict[str, dict[str, Any]]
    hosts: dict[str, dict[str, Any]]
    links: dict[str, dict[str, Any]]
    layers: dict[str, int]  # of each model
    costs: dict[str, CostTables]


def read_inputs(
    scenarios: pa.Table,
    requests: pa.Table,
    step_costs: pa.Table,
    step_shapes: pa.Table,
    settings: pa.Table,
    faults: pa.Table,
    memory_plan: pa.Table,
    host_settings: pa.Table,
    kv_transfers: pa.Table,
    models: pa.Table,
    *,
    spans: dict[str, tuple[int, int]] | None = None,
) -> Inputs:
    """Read the tables once for all scenarios; ``spans``: where their requests stand, if they share some."""
    deployments = by_key(settings, "deployment_id")
    broken = set(faults["deployment_id"].to_pylist())
    wanted = [
        row for row in scenarios.to_pylist() if not broken.intersection(and_drafts(deployments_of(row), deployments))
    ]
    shapes_of, costs_of = split_by_deployment(step_shapes), split_by_deployment(step_costs)
    costs = {
        key: cost_tables(costs_of[key], shapes_of[key], deployments[key])
        for key in and_drafts((key for row in wanted for key in deployments_of(row)), deployments)
    }
    return Inputs(
        wanted, requests, load_columns(requests), spans or _spans(requests["scenario_id"]), deployments,
        by_key(memory_plan, "deployment_id"), by_key(host_settings, "deployment_id"),
        by_key(kv_transfers, "scenario_id"),
        dict(zip(models["model"].to_pylist(), models["layer_count"].to_pylist(), strict=True)), costs,
    )  # fmt: skip


def serve_replicas(inputs: Inputs, *, count_uses: bool = True, threads: int | None = None) -> list[Replica]:
    """Serve every scenario, calls spread over threads.

    Without ``count_uses`` uses of step costs and windows are left out. ``threads``: as many as there are cores, unless
    stated.
    """
    columns, deployments, costs = inputs.columns, inputs.deployments, inputs.costs
    scratches = threading.local()

    def serve(job: tuple[dict[str, Any], np.ndarray, int | None]) -> list[Replica]:
        scenario, rows, number = job
        if rows.size == 0:
            return []
        *_, front = keys = deployments_of(scenario)
        costed = [key for own in keys for key in and_drafts([own], deployments)]
        load = load_of(columns, inputs.requests, rows, scenario, deployments[front], inputs.plans[front])
        scratch = None if count_uses else scratch_of(scratches, sum(costs[key].packed.values.size for key in costed))
        start_us = columns["arrival_s"][inputs.spans[scenario["scenario_id"]][0]] * 1e6
        keep = {"keep_steps": scenario["keep_steps"], "scratch": scratch}
        keep["windows_from_us"] = start_us if count_uses else None
        pools = [pool_of(inputs, key) for key in keys]
        if number is not None:
            served = replica.serve(load, *pools[0][:3], layers=pools[0].layers, draft=pools[0].draft, **keep)
            return [Replica(scenario["scenario_id"], front, number, rows, served)]
        if len(keys) > 1:
            pools = halves_of(scenario, *pools)
            keep["transfer"] = transfer_of(inputs.links[scenario["scenario_id"]])
        together = replica.serve_scenario(load, pools, routing_of(scenario), **keep)
        sizes = [(key, pool.engines) for key, pool in zip(reversed(keys), pools, strict=True)]
        return replicas_of(scenario["scenario_id"], sizes, rows, together)

    jobs = []
    for row in inputs.scenarios:
        start, stop = inputs.spans.get(row["scenario_id"], (0, 0))
        rows, engines = np.arange(start, stop), deployments[row["deployment_id"]]["dp"]
        if len(deployments_of(row)) > 1 or (engines > 1 and engines_meet(row, columns, rows)):
            jobs.append((row, rows, None))
        else:
            jobs += [(row, rows[number::engines], number) for number in range(engines)]
    with ThreadPoolExecutor(max_workers=threads or os.cpu_count()) as pool:
        return [one for served in pool.map(serve, jobs) for one in served]


def pool_of(inputs: Inputs, key: str) -> replica.Pool:
    """Return the engines of a deployment."""
    deployment, cost = inputs.deployments[key], inputs.costs[key]
    limits = limits_of(deployment, inputs.plans[key], cost.window_tokens)
    launches, draft = cost.launches, None
    if deployment["draft_deployment_id"]:
        proposing = inputs.costs[deployment["draft_deployment_id"]]
        draft = replica.Draft(proposing.packed, proposing.window_tokens)
        launches += limits.drafts * proposing.launches
    host = host_of(inputs.hosts[key], deployment, launches)
    stages = layers_of_stages(inputs.layers[deployment["model"]], deployment["pp"], deployment["engine"])
    return replica.Pool(limits, host, cost.packed, deployment["dp"], stages, draft)


def halves_of(scenario: dict[str, Any], decode: replica.Pool, prefill: replica.Pool) -> list[replica.Pool]:
    """Return all engines that compute prompts, and all that decode, where these are others."""
    return [
        prefill._replace(engines=prefill.engines * (scenario["prefill_replicas"] or 1)),
        decode._replace(
            limits=replica.decode_limits(decode.limits), engines=decode.engines * (scenario["decode_replicas"] or 1)
        ),
    ]


def transfer_of(link: dict[str, Any]) -> Transfer:
    """Return what it takes to bring the KV of a prompt from the ones to the others."""
    return Transfer(*(link[name] for name in Transfer._fields))


def engines_meet(scenario: dict[str, Any], columns: dict[str, np.ndarray], rows: np.ndarray) -> bool:
    """Whether what one engine does decides what another one gets, or when."""
    if scenario["max_concurrency"] is not None or scenario["router"] not in (None, "round_robin"):
        return True
    return bool((columns["follows"][rows] >= 0).any() or columns["warmup"][rows].any())


def load_columns(requests: pa.Table) -> dict[str, np.ndarray]:
    """Return the columns of ``requests`` that every scenario's load is cut from."""
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    follows = pc.fill_null(requests["after_request_id"], replica.NOBODY)
    return {
        **{name: requests[name].to_numpy() for name in names},
        "follows": follows.to_numpy(),
        "think_s": pc.fill_null(requests["think_s"], 0.0).to_numpy(),
        "warmup": pc.fill_null(requests["warmup"], False).to_numpy(),
        "request_id": requests["request_id"].to_numpy(),
        "priority": pc.fill_null(requests["priority"], 0).to_numpy(),
    }


def load_of(
    columns: dict[str, np.ndarray],
    requests: pa.Table,
    rows: np.ndarray,
    scenario: dict[str, Any],
    deployment: dict[str, Any],
    plan: dict[str, Any],
) -> Load:
    """Return the load that ``rows`` of the requests are; a session's turns have their positions in ``rows``."""
    follows, sessions = columns["follows"][rows], {}
    if (follows >= 0).any():
        position = np.searchsorted(columns["request_id"][rows], np.maximum(follows, 0))
        sessions = {"follows": np.where(follows >= 0, position, -1), "think_us": columns["think_s"][rows] * 1e6}
    concurrency = scenario["max_concurrency"]
    return Load(
        columns["arrival_s"][rows] * 1e6,
        columns["prompt_tokens"][rows].astype(np.int64),
        columns["output_tokens"][rows].astype(np.int64),
        *shared_prefixes(requests, rows, deployment, plan),
        priority=columns["priority"][rows],
        warmups=int(columns["warmup"][rows].sum()),
        max_concurrency=records.NO_LIMIT if concurrency is None else concurrency,
        **sessions,
    )


def routing_of(scenario: dict[str, Any]) -> Routing:
    """Return how the scenario's router works."""
    stated = {name: scenario[f"router_{name}"] for name in Routing._fields[1:]}
    router = records.ROUTERS.index(scenario["router"] or "round_robin")
    return Routing(router, **{name: value for name, value in stated.items() if value is not None})


def split_by_deployment(table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each deployment, in their order: one sort instead of a search for each deployment."""
    encoded = table["deployment_id"].combine_chunks().dictionary_encode()
    if len(encoded) == 0:
        return {}
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    rows = table if np.array_equal(order, np.arange(order.size)) else table.take(pa.array(order))
    starts = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    spans = zip(encoded.dictionary.to_pylist(), starts, starts[1:], strict=False)
    return {name: rows.slice(start, stop - start) for name, start, stop in spans}


def scratch_of(scratches: threading.local, size: int) -> np.ndarray:
    """Return this thread's array of shape (3, size) for uses that nobody reads; it is never cleared."""
    room = getattr(scratches, "room", np.zeros(0))
    if room.size < 3 * size:
        room = scratches.room = np.zeros(3 * size)
    return room[: 3 * size].reshape(3, size)


def shares_prefixes(deployment: dict[str, Any], plan: dict[str, Any]) -> bool:
    """Tell whether prompts that begin alike share KV blocks."""
    return deployment["enable_prefix_caching"] and plan["full_units"] > 0 and plan["sequence_units"] == 0


def shared_prefixes(
    requests: pa.Table, rows: np.ndarray, deployment: dict[str, Any], plan: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (hash blocks numbered from 0, offsets, tokens of one) of a replica's prompts, empty where none are shared.

    Layers with a state of their own, or with windows alone, share nothing by prefix here. InvalidInput: hash blocks of
    several sizes, or of no whole number of KV blocks.
    """
    nothing = np.zeros(0, np.int64), np.zeros(rows.size + 1, np.int64), 0
    if not shares_prefixes(deployment, plan) or requests["hash_ids"].null_count == requests.num_rows:
        return nothing
    taken = requests.select(["hash_ids", "hash_block_tokens"]).take(pa.array(rows)).combine_chunks()
    sizes = pc.unique(taken["hash_block_tokens"].drop_null()).to_pylist()
    if not sizes:
        return nothing
    block = plan["block_size"]
    if len(sizes) > 1 or sizes[0] % block:
        raise InvalidInput(
            f"hash blocks of {', '.join(map(str, sorted(sizes)))} tokens cannot be laid over KV blocks of {block}; "
            "use one size, a multiple of --block-size."
        )
    lists = taken["hash_ids"].combine_chunks()
    _, numbers = np.unique(lists.flatten().to_numpy(), return_inverse=True)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return numbers.astype(np.int64), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), sizes[0]


def cost_tables(step_costs: pa.Table, step_shapes: pa.Table, deployment: dict[str, Any]) -> CostTables:
    """Lay the knots of a deployment, whose rows alone are given, out as the loop reads them.

    Dense over tokens and sequences, grids over the rest.
    """
    gpu_us = np.zeros(step_shapes.num_rows)
    gpu_us[step_costs["step_shape_id"].to_numpy()] = step_costs["gpu_us"].to_numpy()
    launches = np.zeros(step_shapes.num_rows, dtype=np.int64)
    launches[step_costs["step_shape_id"].to_numpy()] = step_costs["launches"].to_numpy()
    part = step_shapes["part"].combine_chunks().dictionary_encode()
    x, y = step_shapes["x"].to_numpy(), step_shapes["y"].to_numpy()
    axes, ids, grids, parts_us = {}, {}, {}, {}
    for name in PARTS:
        rows = np.flatnonzero(part.indices.to_numpy() == pc.index(part.dictionary, name).as_py())
        axes[name] = (np.unique(x[rows]), np.unique(y[rows]))
        size = (axes[name][0].size, axes[name][1].size)
        ids[name], grids[name] = rows.reshape(size), gpu_us[rows].reshape(size)
    if deployment["pp"] > 1:
        for name in ("embedding_us", "transfer_us"):
            own_us = np.zeros(step_shapes.num_rows)
            own_us[step_costs["step_shape_id"].to_numpy()] = step_costs[name].to_numpy()
            tokens = axes["tokens"][0]
            parts_us[name] = dense(tokens, own_us[ids["tokens"][:, 0]], int(tokens[-1]))
    largest_tokens, largest_sampled = int(axes["tokens"][0][-1]), int(axes["logits"][0][-1])
    surface = Surface(
        dense(axes["tokens"][0], grids["tokens"][:, 0], largest_tokens),
        padded_tokens(largest_tokens, deployment["graph_max_tokens"]),
        dense(axes["logits"][0], grids["logits"][:, 0], largest_sampled),
        *(
            item
            for name in ("decode_attention", "decode_window", "prefill_attention")
            for item in (*axes[name], grids[name])
        ),
        **parts_us,
    )
    # kernels of a whole forward pass: one knot of each part that it visits
    passes = sum(int(launches[ids[name].ravel()[-1]]) for name in PARTS if ids[name].size and name != "decode_window")
    # the window (or the selection of sparse attention) is where its knots end
    window = int(axes["decode_window"][1][-1]) if axes["decode_window"][1].size else 0
    return CostTables(replica.pack(surface), axes, ids, passes, window)


def dense(knots: np.ndarray, values: np.ndarray, largest: int) -> np.ndarray:
    """Interpolate knots to every whole number from 0 (which costs nothing) to ``largest``."""
    table = np.interp(np.arange(largest + 1, dtype=float), knots, values)
    table[0] = 0.0
    return table


def padded_tokens(largest: int, graph_max_tokens: int) -> np.ndarray:
    """Return, for every token count, the captured CUDA-graph size that serves it, or itself beyond the largest capture.

    Sizes as vLLM captures them: 1, 2, 4, then multiples of 8 up to 256, then of 16.
    """
    sizes = np.array([0, 1, 2, 4, *range(8, 257, 8), *range(272, max(graph_max_tokens, 256) + 1, 16)])
    sizes = sizes[sizes <= min(graph_max_tokens, largest)]
    tokens = np.arange(largest + 1)
    if sizes.size == 0:
        return tokens
    position = np.searchsorted(sizes, tokens)
    return np.where(position < sizes.size, sizes[np.minimum(position, sizes.size - 1)], tokens)


def limits_of(deployment: dict[str, Any], plan: dict[str, Any], window_tokens: int) -> Limits:
    """Return the scheduler's limits of one engine."""
    budget = deployment["max_num_batched_tokens"]
    return Limits(
        max_num_seqs=min(deployment["max_num_seqs"], budget),
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=deployment["long_prefill_token_threshold"],
        max_model_len=deployment["max_model_len"],
        block_size=plan["block_size"],
        full_units=plan["full_units"],
        window_units=plan["window_units"],
        window_blocks=plan["window_blocks"],
        sequence_units=plan["sequence_units"],
        capacity_units=plan["capacity_units"],
        window_tokens=window_tokens,
        chunked=deployment["enable_chunked_prefill"],
        prefill_first=deployment["prefill_policy"] == "prefill_first",
        asynchronous=deployment["async_scheduling"],
        prefix_caching=deployment["enable_prefix_caching"],
        static=deployment["scheduling"] == "static",
        capacity_policy=records.CAPACITY_POLICIES.index(deployment["capacity_policy"]),
        schedule_conservativeness=deployment["schedule_conservativeness"],
        batch_wait_timeout_iters=deployment["batch_wait_timeout_iters"],
        batch_wait_tokens=deployment["batch_wait_max_tokens_ratio"] * budget,
        scheduler_recv_interval=deployment["scheduler_recv_interval"],
        max_num_partial_prefills=deployment["max_num_partial_prefills"],
        max_long_partial_prefills=deployment["max_long_partial_prefills"],
        by_priority=deployment["scheduling_policy"] == "priority",
        fewest_generated=deployment["preemption_policy"] == "fewest_generated",
        batch_wait_us=deployment["batch_wait_timeout_ms"] * 1e3,
        drafts=deployment["num_speculative_tokens"],
        acceptance=deployment["draft_acceptance_rate"],
    )


def host_of(overhead: dict[str, Any], deployment: dict[str, Any], launches: int) -> Host:
    """Return the engine's host overhead; none in the roofline tier, which bounds the GPU's work.

    A look for new requests that lasts ``batch_wait_timeout_ms`` is host work of every step.
    """
    wait_us = deployment["batch_wait_timeout_ms"] * 1e3
    if deployment["tier"] == "roofline":
        return Host(0.0, wait_us, 0.0, 0.0, 0.0, 0.0, True, 0)
    gap_us = overhead["launch_gap_us"] * launches
    return Host(
        overhead["step_exposed_us"] + gap_us, overhead["step_base_us"] + wait_us, overhead["per_request_us"],
        overhead["per_token_us"], overhead["per_eager_launch_us"] * launches, overhead["request_us"],
        overhead["overlapped"] and deployment["async_scheduling"], deployment["graph_max_tokens"],
        overhead["per_captured_launch_us"] * launches, gap_us, overhead["exposed_per_request_us"],
        overhead["per_prompt_token_us"],
    )  # fmt: skip


def by_key(table: pa.Table, key: str) -> dict[Any, dict[str, Any]]:
    """Return the rows of a table as dicts, by a column that names each."""
    return {row[key]: row for row in table.to_pylist()}


def _spans(ids: pa.ChunkedArray) -> dict[str, tuple[int, int]]:
    """First and last row of each scenario; the rows of one stand together, in order of arrival."""
    names = ids.combine_chunks()
    if len(names) == 0:
        return {}
    runs = pc.run_end_encode(names)
    ends = runs.run_ends.to_numpy()
    starts = np.concatenate([[0], ends[:-1]])
    return {name: (int(a), int(b)) for name, a, b in zip(runs.values.to_pylist(), starts, ends, strict=True)}
