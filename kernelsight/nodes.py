"""The Python table nodes: a function named like its table, its inputs as parameters; columns in, columns out."""

from __future__ import annotations

import pyarrow as pa

from kernelsight.dataflow.graph import produces
from kernelsight.kernels.latency import latencies as _latencies


def requests(scenarios: pa.Table) -> pa.Table:
    """The requests of each scenario: read from its trace, or drawn from its load."""
    from kernelsight.serving.load import draw_requests

    return draw_requests(scenarios)


def step_shapes(
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    kv_layout: pa.Table,
    models: pa.Table,
    kernel_implementations: pa.Table,
) -> pa.Table:
    """The knots of each deployment that can run: what step costs are interpolated between."""
    from kernelsight.serving.knots import knot_shapes

    return knot_shapes(deployment_settings, deployment_faults, kv_layout, models, kernel_implementations)


@produces("request_events", "step_cost_uses", "itl_histogram", "replica_totals", "steps", "serving_windows")
def simulation(
    scenarios: pa.Table,
    requests: pa.Table,
    step_costs: pa.Table,
    step_shapes: pa.Table,
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    memory_plan: pa.Table,
    host_settings: pa.Table,
    kv_transfers: pa.Table,
    models: pa.Table,
) -> dict[str, pa.Table]:
    """Serve the requests of every scenario: the batched step-wise loop over step costs."""
    from kernelsight.serving.simulate import simulate_scenarios

    return simulate_scenarios(
        scenarios,
        requests,
        step_costs,
        step_shapes,
        deployment_settings,
        deployment_faults,
        memory_plan,
        host_settings,
        kv_transfers,
        models,
    )


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
