"""The hardware columns that latency expressions read: one value a GPU, in units of microseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MATH = ("bf16", "fp16", "fp32", "fp8", "fp4", "int8")
MICROSECONDS_PER_SECOND = 1e6
# GPUs whose L2 is two halves, each of which keeps what its own multiprocessors read (NVIDIA A100 white paper, section
# "A100 L2 cache"; H100 white paper; assumed of Blackwell's two dies): by compute capability
SPLIT_L2 = ("8.0", "9.0", "10.0", "10.3")
# boards with GDDR6, whose ECC travels in band (estimate; GDDR7 corrects on the die): by compute capability
GDDR6 = ("7.5", "8.6", "8.9")
# boards with GDDR memory of any kind, or LPDDR: by compute capability
GDDR = (*GDDR6, "12.0", "12.1")
# special-function results per clock and multiprocessor: 4 in each of 4 quadrants (CUDA C++ programming guide,
# arithmetic instructions); Blackwell Ultra has twice that (NVIDIA technical blog "Inside NVIDIA Blackwell Ultra", 2025)
EXPONENTIALS_PER_CLOCK = 16.0
DOUBLE_RATE_EXPONENTIALS = ("10.3",)


def hardware_columns(gpus: pa.Table, fabrics: pa.Table) -> dict[str, np.ndarray]:
    """Return float64 columns aligned with ``gpus``, and ``math_flops_per_us`` of shape (GPUs, len(MATH)).

    A GPU without a link has its PCIe rate and, of the PCIe fabrics, the latency of the one nearest in rate. A dtype
    that the GPU lacks has the rate of its 16-bit type, in which such weights are expanded; products in FP32 have the
    rate of matrix cores where they have one, else that of the vector units.
    """
    read = {name: gpus[name].to_numpy(zero_copy_only=False) for name in gpus.column_names}
    sixteen_bit = np.where(np.isnan(_rate(read, "bf16")), _rate(read, "fp16"), _rate(read, "bf16"))
    rates = [np.where(np.isnan(_rate(read, math)), sixteen_bit, _rate(read, math)) for math in MATH]
    fabric = _fabric_rows(gpus, fabrics)
    kinds = fabrics["kind"].to_pylist()
    efficiency = fabrics["efficiency"].to_numpy()[fabric]
    network = fabrics.filter(pc.equal(fabrics["fabric"], "infiniband_ndr")).to_pylist()[0]
    network_bytes_per_us = network["bytes_per_s"] * network["efficiency"] / MICROSECONDS_PER_SECOND
    return {
        "sm_count": read["sm_count"].astype(float),
        "clock_per_us": read["sm_clock_hz"] / MICROSECONDS_PER_SECOND,
        "l2_bytes": read["l2_bytes"].astype(float),
        "l2_partitions": np.where(np.isin(read["compute_capability"].astype(str), SPLIT_L2), 2.0, 1.0),
        "hbm": np.where(np.isin(read["compute_capability"].astype(str), GDDR), 0.0, 1.0),
        "inline_ecc": np.where(np.isin(read["compute_capability"].astype(str), GDDR6), 1.0, 0.0),
        "exponentials_per_clock": EXPONENTIALS_PER_CLOCK
        * np.where(np.isin(read["compute_capability"].astype(str), DOUBLE_RATE_EXPONENTIALS), 2.0, 1.0),
        "tdp_w": read["tdp_w"].astype(float),
        "memory_bytes_per_us": read["memory_bandwidth_bytes_per_s"] / MICROSECONDS_PER_SECOND,
        "math_flops_per_us": np.stack(rates, axis=1) / MICROSECONDS_PER_SECOND,
        "sixteen_bit_flops_per_us": sixteen_bit / MICROSECONDS_PER_SECOND,
        "vector_flops_per_us": read["fp32_flops_per_s"] / MICROSECONDS_PER_SECOND,
        "peak_link_bytes_per_us": read["link_bytes_per_s"] / MICROSECONDS_PER_SECOND,
        "link_bytes_per_us": read["link_bytes_per_s"] * efficiency / MICROSECONDS_PER_SECOND,
        "link_latency_us": fabrics["latency_us"].to_numpy()[fabric],
        "link_over_pcie": np.array([kinds[row] == "pcie" for row in fabric], dtype=float),
        "link_multicast": fabrics["multicast"].to_numpy(zero_copy_only=False).astype(float)[fabric],
        "link_max_gpus": fabrics["max_gpus"].to_numpy().astype(float)[fabric],
        "network_bytes_per_us": np.full(gpus.num_rows, network_bytes_per_us),
    }


def _rate(read: dict[str, np.ndarray], math: str) -> np.ndarray:
    stated = np.asarray(read[f"{math}_flops_per_s"], dtype=float)
    if math != "fp32":
        return stated
    matrix = np.asarray(read["fp32_matrix_flops_per_s"], dtype=float)
    return np.where(np.isnan(matrix), stated, matrix)


def _fabric_rows(gpus: pa.Table, fabrics: pa.Table) -> np.ndarray:
    """Row of ``fabrics`` for each GPU: its own fabric, else the PCIe generation nearest to its rate."""
    names = fabrics["fabric"].to_pylist()
    rates = fabrics["bytes_per_s"].to_numpy()
    pcie = [row for row, kind in enumerate(fabrics["kind"].to_pylist()) if kind == "pcie"]
    rows = []
    for fabric, rate in zip(gpus["link_fabric"].to_pylist(), gpus["link_bytes_per_s"].to_numpy(), strict=True):
        rows.append(names.index(fabric) if fabric else min(pcie, key=lambda row: abs(rates[row] - rate)))
    return np.array(rows, dtype=np.int64)
