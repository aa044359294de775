"""The tables that kernel calls are priced by, as one argument: settings, GPUs, fabrics, pack, kernels, dies, power."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class PricingTables(NamedTuple):
    """What latency and energy of kernel calls are computed from, beside the calls: tables of a session."""

    settings: pa.Table  # deployment_settings
    gpus: pa.Table
    fabrics: pa.Table
    coefficients: pa.Table  # eta_coefficients, the rows of a pack
    implementations: pa.Table  # kernel_implementations
    dies: pa.Table
    gpu_power: pa.Table
