"""The Python table nodes: a function named like its table, its inputs as parameters; columns in, columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.graph import produces, reads
from kernelsight.kernels.latency import latencies as _latencies

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Reader


def scenario_loads(scenarios: pa.Table) -> pa.Table:
    """Which scenarios share a load: equal arrivals and lengths."""
    from kernelsight.serving.load import loads_of

    return loads_of(scenarios)


def load_requests(scenarios: pa.Table, scenario_loads: pa.Table) -> pa.Table:
    """The requests of each different load: read from its trace, or drawn."""
    from kernelsight.serving.load import draw_requests

    firsts = pc.equal(scenario_loads["scenario_id"], scenario_loads["load_id"])
    named = scenarios.rename_columns({"scenario_id": "load_id"})
    return draw_requests(
        named.filter(pc.is_in(named["load_id"], scenario_loads.filter(firsts)["load_id"].combine_chunks()))
    )


def requests(scenario_loads: pa.Table, load_requests: pa.Table) -> pa.Table:
    """The requests of each scenario: those of its load."""
    from kernelsight.serving.load import requests_of

    return requests_of(scenario_loads, load_requests)


def deployment_reach(
    scenarios: pa.Table, scenario_loads: pa.Table, load_requests: pa.Table, deployments: pa.Table
) -> pa.Table:
    """The most that the loads of each deployment can bring about."""
    from kernelsight.serving.reach import reach_of

    return reach_of(scenarios, scenario_loads, load_requests, deployments)


def step_shapes(
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    kv_layout: pa.Table,
    models: pa.Table,
    kernel_implementations: pa.Table,
    deployment_reach: pa.Table,
) -> pa.Table:
    """The knots of each deployment that can run: what step costs are interpolated between."""
    from kernelsight.serving.knots import knot_shapes

    return knot_shapes(
        deployment_settings, deployment_faults, kv_layout, models, kernel_implementations, deployment_reach
    )


@reads(
    "gemm_calls",
    "batched_gemm_calls",
    "prefill_attention_calls",
    "decode_attention_calls",
    "mla_prefill_calls",
    "mla_decode_calls",
    "sparse_attention_calls",
    "linear_attention_calls",
    "moe_calls",
    "norm_calls",
    "activation_calls",
    "rope_calls",
    "kv_write_calls",
    "quantize_calls",
    "embedding_calls",
    "sampling_calls",
    "all_reduce_calls",
    "all_gather_calls",
    "reduce_scatter_calls",
    "all_to_all_calls",
    "p2p_calls",
)
def launch_signatures(
    deployment_settings: pa.Table,
    step_shapes: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpu_formats: pa.Table,
    *,
    read: Reader,
) -> pa.Table:
    """Which deployments launch the same kernels at the same step shapes."""
    from kernelsight.kernels.launches import signatures_of

    return signatures_of(deployment_settings, step_shapes, sharded_layers, layer_weights, gpu_formats, read)


@reads(
    "kernel_latencies",
    "gemm_latencies",
    "batched_gemm_latencies",
    "prefill_attention_latencies",
    "decode_attention_latencies",
    "mla_prefill_latencies",
    "mla_decode_latencies",
    "sparse_attention_latencies",
    "linear_attention_latencies",
    "moe_latencies",
    "norm_latencies",
    "activation_latencies",
    "rope_latencies",
    "kv_write_latencies",
    "quantize_latencies",
    "embedding_latencies",
    "sampling_latencies",
    "all_reduce_latencies",
    "all_gather_latencies",
    "reduce_scatter_latencies",
    "all_to_all_latencies",
    "p2p_latencies",
    "gemm_calls",
    "batched_gemm_calls",
    "prefill_attention_calls",
    "decode_attention_calls",
    "mla_prefill_calls",
    "mla_decode_calls",
    "sparse_attention_calls",
    "linear_attention_calls",
    "moe_calls",
    "norm_calls",
    "activation_calls",
    "rope_calls",
    "kv_write_calls",
    "quantize_calls",
    "embedding_calls",
    "sampling_calls",
    "all_reduce_calls",
    "all_gather_calls",
    "reduce_scatter_calls",
    "all_to_all_calls",
    "p2p_calls",
)
def step_costs(
    step_shapes: pa.Table,
    launch_signatures: pa.Table,
    deployment_settings: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    *,
    read: Reader,
    threads: int | None,
) -> pa.Table:
    """GPU time at each knot: the launches of its kernels added up."""
    from kernelsight.kernels.step_costs import step_costs_of

    facts = (gpus, fabrics, eta_coefficients, kernel_implementations)
    return step_costs_of(
        step_shapes, launch_signatures, deployment_settings, sharded_layers, layer_weights, facts, read, threads
    )


@produces(
    "request_statistics",
    "itl_percentiles",
    "itl_histogram",
    "replica_totals",
    "request_events",
    "step_cost_uses",
    "serving_windows",
    "steps",
)
def simulation(
    scenarios: pa.Table,
    scenario_loads: pa.Table,
    load_requests: pa.Table,
    step_costs: pa.Table,
    step_shapes: pa.Table,
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    memory_plan: pa.Table,
    host_settings: pa.Table,
    kv_transfers: pa.Table,
    models: pa.Table,
    *,
    wanted: frozenset[str],
    threads: int | None,
) -> dict[str, Any]:
    """Serve the requests of every scenario: the batched step-wise loop over step costs."""
    from kernelsight.serving.simulate import simulate_scenarios
    from kernelsight.serving.world import read_world

    world = read_world(
        scenarios=scenarios,
        scenario_loads=scenario_loads,
        load_requests=load_requests,
        step_costs=step_costs,
        step_shapes=step_shapes,
        settings=deployment_settings,
        faults=deployment_faults,
        memory_plan=memory_plan,
        host_settings=host_settings,
        kv_transfers=kv_transfers,
        models=models,
    )
    return simulate_scenarios(world, wanted, threads)


def request_metrics(request_events: pa.Table, scenarios: pa.Table) -> pa.Table:
    """Latencies of each finished request, as benchmark clients define them; without warm-ups."""
    from kernelsight.serving.request_metrics import metrics_of

    return metrics_of(request_events, scenarios)


def step_totals(
    kernel_latencies: pa.Table, step_shapes: pa.Table, deployment_settings: pa.Table, host_settings: pa.Table
) -> pa.Table:
    """GPU, exposed host and total time of each whole step."""
    from kernelsight.serving.host import step_totals_of

    return step_totals_of(kernel_latencies, step_shapes, deployment_settings, host_settings)


def gemm_latencies(
    gemm_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of dense matrix products."""
    return _latencies("gemm", gemm_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations)


def batched_gemm_latencies(
    batched_gemm_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of absorbed MLA projections."""
    return _latencies(
        "batched_gemm", batched_gemm_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def prefill_attention_latencies(
    prefill_attention_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of softmax attention over prompts."""
    return _latencies(
        "prefill_attention",
        prefill_attention_calls,
        deployment_settings,
        gpus,
        fabrics,
        eta_coefficients,
        kernel_implementations,
    )


def decode_attention_latencies(
    decode_attention_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of softmax attention of single tokens."""
    return _latencies(
        "decode_attention",
        decode_attention_calls,
        deployment_settings,
        gpus,
        fabrics,
        eta_coefficients,
        kernel_implementations,
    )


def mla_prefill_latencies(
    mla_prefill_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of MLA over prompts."""
    return _latencies(
        "mla_prefill", mla_prefill_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def mla_decode_latencies(
    mla_decode_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of MLA of single tokens."""
    return _latencies(
        "mla_decode", mla_decode_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def sparse_attention_latencies(
    sparse_attention_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of the indexer and attention over selected tokens."""
    return _latencies(
        "sparse_attention",
        sparse_attention_calls,
        deployment_settings,
        gpus,
        fabrics,
        eta_coefficients,
        kernel_implementations,
    )


def linear_attention_latencies(
    linear_attention_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of the gated delta net."""
    return _latencies(
        "linear_attention",
        linear_attention_calls,
        deployment_settings,
        gpus,
        fabrics,
        eta_coefficients,
        kernel_implementations,
    )


def moe_latencies(
    moe_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of routed experts."""
    return _latencies("moe", moe_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations)


def norm_latencies(
    norm_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of norms."""
    return _latencies("norm", norm_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations)


def activation_latencies(
    activation_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of activations."""
    return _latencies(
        "activation", activation_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def rope_latencies(
    rope_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of rotary embeddings."""
    return _latencies("rope", rope_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations)


def kv_write_latencies(
    kv_write_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of KV-cache writes."""
    return _latencies(
        "kv_write", kv_write_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def quantize_latencies(
    quantize_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of quantisation of activations."""
    return _latencies(
        "quantize", quantize_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def embedding_latencies(
    embedding_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of embedding gathers."""
    return _latencies(
        "embedding", embedding_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def sampling_latencies(
    sampling_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of sampling."""
    return _latencies(
        "sampling", sampling_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def all_reduce_latencies(
    all_reduce_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of all-reduces."""
    return _latencies(
        "all_reduce", all_reduce_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def all_gather_latencies(
    all_gather_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of all-gathers."""
    return _latencies(
        "all_gather", all_gather_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def reduce_scatter_latencies(
    reduce_scatter_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of reduce-scatters."""
    return _latencies(
        "reduce_scatter",
        reduce_scatter_calls,
        deployment_settings,
        gpus,
        fabrics,
        eta_coefficients,
        kernel_implementations,
    )


def all_to_all_latencies(
    all_to_all_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of all-to-all exchanges."""
    return _latencies(
        "all_to_all", all_to_all_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )


def p2p_latencies(
    p2p_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """Latencies of transfers between pipeline stages."""
    return _latencies("p2p", p2p_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations)
