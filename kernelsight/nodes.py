"""The Python table nodes: a function named like its table, its inputs as parameters; columns in, columns out."""

from __future__ import annotations

import pyarrow as pa

from kernelsight.dataflow.generated_nodes import for_each
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


@for_each("family")
def _family_latencies(
    family_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    *,
    family: str,
) -> pa.Table:
    """Latencies of {family}."""
    return _latencies(
        family, family_calls, deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations
    )
