"""The nodes of kernels: launch signatures, step costs, latencies, sensitivities, GPU power; and corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kernelsight.dataflow.generated_nodes import for_each
from kernelsight.dataflow.graph import produces, reads
from kernelsight.kernels.latency import latencies as _latencies

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader


def corrections(deployment_settings: pa.Table, log_corrections: pa.Table) -> pa.Table:
    """Factors on kernels and additional host time of each deployment."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table
    from kernelsight.scenario.corrections import corrections_of

    return as_table(contracts()["corrections"], corrections_of(deployment_settings, log_corrections))


@reads("family_calls")
def launch_signatures(
    deployment_settings: pa.Table,
    step_shapes: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpu_formats: pa.Table,
    *,
    read: Reader,
) -> pa.Table:
    """Launch signatures: deployments that launch the same kernels at the same step shapes share one."""
    from kernelsight.kernels.launch_signatures import signatures_of

    return signatures_of(deployment_settings, step_shapes, sharded_layers, layer_weights, gpu_formats, read)


@reads("kernel_latencies", "family_latencies", "family_calls")
@produces("step_costs", "kernel_evidence", "step_cost_shares", "knot_evidence")
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
    dies: pa.Table,
    gpu_power: pa.Table,
    knot_corrections: pa.Table,
    *,
    read: Reader,
    wanted: frozenset[str],
    threads: int | None,
) -> dict[str, pa.Table]:
    """GPU time of each step shape (knot): its kernels' latencies added up; and the evidence for them."""
    from kernelsight.kernels.step_costs import step_costs_of

    facts = (gpus, fabrics, eta_coefficients, kernel_implementations, dies, gpu_power)
    return step_costs_of(
        *(step_shapes, launch_signatures, deployment_settings, sharded_layers, layer_weights, facts, knot_corrections),
        *(read, threads, wanted),
    )


def deployment_tiers(
    deployment_settings: pa.Table,
    gpus: pa.Table,
    gpu_engines: pa.Table,
    kernel_evidence: pa.Table,
    eta_coefficients: pa.Table,
    corrections: pa.Table,
    host_settings: pa.Table,
) -> pa.Table:
    """Label of the kernels of each deployment over its step shapes, and what was not measured."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table
    from kernelsight.kernels.deployment_tiers import tier_rows

    facts = (gpus, gpu_engines, host_settings, corrections)
    rows = tier_rows(deployment_settings, kernel_evidence, eta_coefficients, *facts)
    return as_table(contracts()["deployment_tiers"], rows)


def deployment_evidence(kernel_evidence: pa.Table, host_evidence: pa.Table, eta_coefficients: pa.Table) -> pa.Table:
    """Data behind each component of a deployment's steps, over its step shapes: kernels used, and host times."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table
    from kernelsight.kernels.deployment_tiers import evidence_rows

    return as_table(contracts()["deployment_evidence"], evidence_rows(kernel_evidence, host_evidence, eta_coefficients))


def deployment_families(kernel_evidence: pa.Table) -> pa.Table:
    """Kernel families that each deployment launches."""
    names = ("deployment_id", "family")
    pairs = sorted(set(zip(*(kernel_evidence[name].to_pylist() for name in names), strict=True)))
    columns = zip(*pairs, strict=True) if pairs else [[], []]
    return pa.table({name: pa.array(values, pa.string()) for name, values in zip(names, columns, strict=True)})


@reads("family_calls")
def kernel_sensitivities(
    deployment_settings: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    dies: pa.Table,
    gpu_power: pa.Table,
    *,
    read: Reader,
) -> pa.Table:
    """Elasticity of each kernel's latency by the facts of its GPU: derivatives of the kernel model, by JAX."""
    from kernelsight.kernels.launch_signatures import launched_families
    from kernelsight.kernels.pricing_tables import PricingTables
    from kernelsight.kernels.sensitivities import sensitivities_of_families

    tables = PricingTables(
        deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations, dies, gpu_power
    )
    families = launched_families(deployment_settings, sharded_layers, layer_weights)
    return sensitivities_of_families(families, tables, read)


def gpu_power(gpus: pa.Table, energy_constants: pa.Table) -> pa.Table:
    """Power of each GPU by constants of its architecture, else general ones, as shares of its limit."""
    from kernelsight.kernels.gpu_power import power_of_gpus

    return power_of_gpus(gpus, energy_constants)


@for_each("family")
def _family_latencies(
    family_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    dies: pa.Table,
    gpu_power: pa.Table,
    *,
    family: str,
) -> pa.Table:
    """Latencies of {family}."""
    from kernelsight.kernels.pricing_tables import PricingTables

    tables = PricingTables(
        deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations, dies, gpu_power
    )
    return _latencies(family, family_calls, tables)
