"""Elasticities of kernel latencies by the facts of a GPU: central differences of the kernel model, 1 % each way.

A fact is a column of ``gpus``. It is moved on all GPUs together, so that the order of GPUs of one die stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.kernels.energy import has_limit, power_of_gpus
from kernelsight.kernels.hardware import MATH
from kernelsight.kernels.latency import columns_read, evaluate_calls, under_power_limits
from kernelsight.kernels.launch_signatures import launched_families
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import positions

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# columns of gpus
FACTS = (
    "memory_bandwidth_bytes_per_s",
    *(f"{math}_flops_per_s" for math in MATH),
    *("sm_clock_hz", "l2_bytes", "tdp_w", "link_bytes_per_s", "pcie_bytes_per_s"),
)
# relative change of a fact, up and down
STEP = 0.01
KEYS = {"deployment_id": pa.string(), "step_shape_id": pa.int64(), "call": pa.string()}
NO_ROWS = pa.schema(KEYS | {"fact": pa.string(), "elasticity": pa.float64()}).empty_table()


@reads("family_calls")
@produces("kernel_sensitivities")
def sensitivities_of_families(
    deployment_settings: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    dies: pa.Table,
    gpu_power: pa.Table,
    energy_constants: pa.Table,
    *,
    read: Reader,
) -> pa.Table:
    """Elasticity of each kernel's latency by the facts of its GPU: central differences of the kernel model."""
    facts = (gpus, fabrics, eta_coefficients, kernel_implementations, dies, gpu_power)
    tables = PricingTables(deployment_settings, *facts)
    found = []
    for family in launched_families(deployment_settings, sharded_layers, layer_weights):
        columns = read.columns_of(f"{family}_calls")
        wanted = {*columns_read(family, columns), *KEYS} - {"gpu", "engine"}
        calls = read(f"{family}_calls", sorted(wanted))
        owners = deployment_settings["deployment_id"].combine_chunks()
        if not calls.num_rows:
            continue
        setting_row = pc.index_in(calls["deployment_id"], owners)
        for name in ("gpu", "engine"):
            calls = calls.append_column(name, deployment_settings[name].take(setting_row))
        found.append(kernel_sensitivities_of(family, calls, tables, energy_constants))
    return pa.concat_tables(found) if found else NO_ROWS


def kernel_sensitivities_of(
    family: str, calls: pa.Table, tables: PricingTables, energy_constants: pa.Table
) -> pa.Table:
    """Return ``kernel_sensitivities`` of one family's calls: a row for each fact that the GPU of a call states."""
    gpu_row, found = positions(calls["gpu"], tables.gpus["gpu"]), []
    for fact in FACTS:
        more, less = (
            _latencies_us(family, calls, tables, energy_constants, fact, 1.0 + sign * STEP) for sign in (1, -1)
        )
        elasticity = np.log(more / less) / np.log((1.0 + STEP) / (1.0 - STEP))
        stated = pc.is_valid(tables.gpus[fact]).to_numpy(zero_copy_only=False)[gpu_row]
        rows = calls.select(list(KEYS)).append_column("fact", pa.repeat(fact, calls.num_rows))
        found.append(rows.append_column("elasticity", pa.array(elasticity)).filter(pa.array(stated)))
    return pa.concat_tables(found)


def _latencies_us(
    family: str, calls: pa.Table, tables: PricingTables, energy_constants: pa.Table, fact: str, factor: float
) -> np.ndarray:
    """Return the latencies of calls on GPUs that have ``factor`` times a fact, (calls,)."""
    values = pc.multiply(tables.gpus[fact].cast(pa.float64()), factor)
    gpus = tables.gpus.set_column(tables.gpus.column_names.index(fact), fact, values)
    moved = tables._replace(gpus=gpus)
    if fact == "tdp_w":  # the power of work is a share of the board's limit
        moved = moved._replace(gpu_power=power_of_gpus(gpus, energy_constants))
    evaluated = evaluate_calls(family, calls, moved)
    if has_limit(tables.settings):
        evaluated, _ = under_power_limits(family, calls, evaluated, moved)
    return evaluated.latency_us
