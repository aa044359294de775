"""Hardware columns that latency expressions read, one value per GPU, rates per microsecond: from GPUs and fabrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised

MATH = ("bf16", "fp16", "fp32", "fp8", "fp4", "int8")
# columns with an axis of MATH; an expression gets that of its call
BY_MATH = ("math_flops_per_us", "uncut_flops_per_us")
MICROSECONDS_PER_SECOND = 1e6
# compute capabilities of GPUs whose L2 is two partitions, each of which caches what its own multiprocessors read
# (NVIDIA A100 white paper, section "A100 L2 cache"; H100 white paper; assumed for Blackwell's two dies)
SPLIT_L2 = ("8.0", "9.0", "10.0", "10.3")
# compute capabilities of boards with GDDR or LPDDR memory
GDDR = ("7.5", "8.6", "8.9", "12.0", "12.1")
# exponentials (special-function results) per clock and multiprocessor: 4 in each of 4 quadrants (CUDA C++ programming
# guide, arithmetic instructions); Blackwell Ultra: twice that (NVIDIA blog "Inside NVIDIA Blackwell Ultra", 2025)
EXPONENTIALS_PER_CLOCK = 16.0
DOUBLE_RATE_EXPONENTIALS = ("10.3",)
# dense 16-bit FLOP per clock and multiprocessor, FP32 accumulation, of tensor cores at full rate, by compute
# capability: V100, Turing, A100, GA102, Ada (professional), H100 and RTX Blackwell white papers (NVIDIA, 2017 to 2025);
# of B200 the data sheet's rate at its clock. Export and consumer parts have the same operand feed, and fewer FLOP
UNCUT_16_BIT_PER_CLOCK = {
    "7.0": 1024.0, "7.5": 1024.0, "8.0": 2048.0, "8.6": 1024.0, "8.9": 1024.0, "9.0": 4096.0,
    "10.0": 8192.0, "10.3": 8192.0, "12.0": 1024.0,
}  # fmt: skip
# FLOP rate of a format over that of 16 bits (the same documents)
NARROW_RATIO = {"bf16": 1.0, "fp16": 1.0, "fp32": 0.0, "fp8": 2.0, "fp4": 4.0, "int8": 2.0}
# columns that only collectives read, by the start of their names; CLOCK and SM_COUNT are read by all families
LINKS = ("link_", "peak_link_", "pcie_", "network_")
CLOCK, SM_COUNT = "clock_per_us", "sm_count"
# columns that are better where they are lower
LOWER_IS_BETTER = ("l2_partitions", "inline_ecc", "link_latency_us", "link_over_pcie", "pcie_latency_us")
# share by which clocks of published rates differ from the boost clock: a part this close to the full rate is uncut
CLOCK_TOLERANCE = 0.02


def hardware_columns(gpus: pa.Table, fabrics: pa.Table) -> dict[str, np.ndarray]:
    """Return the hardware columns of ``gpus`` by name, float64, (GPUs,); those of BY_MATH (GPUs, len(MATH)).

    Units end the names. ``uncut_flops_per_us``: the rate of the multiprocessors at their clock with all tensor cores.
    A GPU without a link gets its PCIe rate and the latency of the PCIe fabric nearest in rate. A format that the GPU
    lacks gets the rate of its 16-bit format, to which such weights are expanded; FP32 products that of matrix cores,
    where it has some for FP32, else of the vector units.
    """
    read = {name: gpus[name].to_numpy(zero_copy_only=False) for name in gpus.column_names}
    sixteen_bit = np.where(np.isnan(_rate(read, "bf16")), _rate(read, "fp16"), _rate(read, "bf16"))
    rates = [np.where(np.isnan(_rate(read, math)), sixteen_bit, _rate(read, math)) for math in MATH]
    uncut = np.stack([_uncut(read, math, rate) for math, rate in zip(MATH, rates, strict=True)], axis=1)
    fabric = _fabric_rows(gpus, fabrics)
    fabric_kinds = fabrics["kind"].to_pylist()
    efficiency = fabrics["efficiency"].to_numpy()[fabric]
    network = fabrics.filter(pc.equal(fabrics["fabric"], "infiniband_ndr")).to_pylist()[0]
    network_bytes_per_us = network["bytes_per_s"] * network["efficiency"] / MICROSECONDS_PER_SECOND
    return {
        "sm_count": read["sm_count"].astype(float),
        "clock_per_us": read["sm_clock_hz"] / MICROSECONDS_PER_SECOND,
        "l2_bytes": read["l2_bytes"].astype(float),
        "l2_partitions": np.where(np.isin(read["compute_capability"].astype(str), SPLIT_L2), 2.0, 1.0),
        "hbm": np.where(np.isin(read["compute_capability"].astype(str), GDDR), 0.0, 1.0),
        "inline_ecc": pc.fill_null(gpus["ecc_in_band"], False).to_numpy(zero_copy_only=False).astype(float),
        "exponentials_per_clock": EXPONENTIALS_PER_CLOCK
        * np.where(np.isin(read["compute_capability"].astype(str), DOUBLE_RATE_EXPONENTIALS), 2.0, 1.0),
        "tdp_w": read["tdp_w"].astype(float),
        "memory_bytes_per_us": read["memory_bandwidth_bytes_per_s"] / MICROSECONDS_PER_SECOND,
        "math_flops_per_us": np.stack(rates, axis=1) / MICROSECONDS_PER_SECOND,
        "uncut_flops_per_us": uncut / MICROSECONDS_PER_SECOND,
        "sixteen_bit_flops_per_us": sixteen_bit / MICROSECONDS_PER_SECOND,
        "uncut_16_bit_flops_per_us": _uncut(read, "bf16", sixteen_bit) / MICROSECONDS_PER_SECOND,
        "vector_flops_per_us": read["fp32_flops_per_s"] / MICROSECONDS_PER_SECOND,
        "peak_link_bytes_per_us": read["link_bytes_per_s"] / MICROSECONDS_PER_SECOND,
        "link_bytes_per_us": read["link_bytes_per_s"] * efficiency / MICROSECONDS_PER_SECOND,
        "link_latency_us": fabrics["latency_us"].to_numpy()[fabric],
        "link_over_pcie": np.array([fabric_kinds[row] == "pcie" for row in fabric], dtype=float),
        "link_multicast": fabrics["multicast"].to_numpy(zero_copy_only=False).astype(float)[fabric],
        "link_max_gpus": fabrics["max_gpus"].to_numpy().astype(float)[fabric],
        "link_peers": fabrics["peer_access"].to_numpy(zero_copy_only=False).astype(float)[fabric],
        "pcie_bytes_per_us": read["pcie_bytes_per_s"] / MICROSECONDS_PER_SECOND,
        "pcie_latency_us": fabrics["latency_us"].to_numpy()[_nearest_pcie(fabrics, read["pcie_bytes_per_s"])],
        "network_bytes_per_us": np.full(gpus.num_rows, network_bytes_per_us),
    }


def is_read(column: str, is_collective: bool, tensor_work: bool) -> bool:
    """Return whether expressions read a hardware column: those of collectives, of tensor work, or all others."""
    if column in (CLOCK, SM_COUNT):
        return True
    if column.startswith(LINKS) or is_collective:
        return column.startswith(LINKS) == is_collective
    if column in BY_MATH:
        return tensor_work
    return "flops" not in column or tensor_work != (column == "vector_flops_per_us")


def at_least_matrix(gpus: pa.Table, fabrics: pa.Table, is_collective: bool, math: str | None) -> np.ndarray:
    """Return whether every fact of the second GPU that expressions read is at least as good as the first's.

    Booleans, (GPUs, GPUs); where these facts are equal, all other facts decide. ``math``: the arithmetic of tensor
    work; None: vector work, or a collective.
    """

    def read() -> np.ndarray:
        hardware = memoised((gpus, fabrics), "hardware", lambda: hardware_columns(gpus, fabrics))
        columns = {
            name: values[:, MATH.index(math or MATH[0])] if name in BY_MATH else values
            for name, values in hardware.items()
        }
        reads = [name for name in columns if is_read(name, is_collective, math is not None)]
        matrix, by_all = _no_worse(columns, reads), _no_worse(columns, columns)
        # equal in all facts, or better and worse in others: neither is the better one
        is_worse = matrix & matrix.T & by_all.T & ~by_all
        return matrix & ~is_worse

    return memoised((gpus, fabrics), ("at least", is_collective, math), read)


def _no_worse(columns: Mapping[str, np.ndarray], names: Iterable[str]) -> np.ndarray:
    """Return whether each of some columns of the second GPU is at least as good as the first's, (GPUs, GPUs)."""
    signed = np.stack([-columns[name] if name in LOWER_IS_BETTER else columns[name] for name in names])
    return (signed[:, :, None] <= signed[:, None, :]).all(axis=0)


def _rate(read: dict[str, np.ndarray], math: str) -> np.ndarray:
    """Return the published rate of the math, FLOP/s, (GPUs,), NaN where the GPU lacks it."""
    flops_per_s = np.asarray(read[f"{math}_flops_per_s"], dtype=float)
    if math != "fp32":
        return flops_per_s
    matrix = np.asarray(read["fp32_matrix_flops_per_s"], dtype=float)
    return np.where(np.isnan(matrix), flops_per_s, matrix)


def _uncut(read: dict[str, np.ndarray], math: str, rate: np.ndarray) -> np.ndarray:
    """Return the rate of the math without a cut, FLOP/s, (GPUs,): ``rate``, or the full rate where that is higher."""
    # a format that the GPU lacks runs at the 16-bit rate; FP32 on no tensor core
    ratio = np.where(np.isnan(_rate(read, math)), 1.0, NARROW_RATIO[math])
    flops_per_clock = np.array(
        [UNCUT_16_BIT_PER_CLOCK.get(text, 0.0) for text in read["compute_capability"].astype(str)]
    )
    full = ratio * flops_per_clock * (1.0 - CLOCK_TOLERANCE) * read["sm_count"] * read["sm_clock_hz"]
    return np.maximum(rate, full)


def _fabric_rows(gpus: pa.Table, fabrics: pa.Table) -> np.ndarray:
    """Return the row of ``fabrics`` of each GPU, (GPUs,): its link, else the PCIe generation nearest to its rate."""
    names = fabrics["fabric"].to_pylist()
    pcie = _nearest_pcie(fabrics, gpus["link_bytes_per_s"].to_numpy())
    fabric_names = gpus["link_fabric"].to_pylist()
    return np.array(
        [names.index(fabric) if fabric else pcie[row] for row, fabric in enumerate(fabric_names)], dtype=np.int64
    )


def _nearest_pcie(fabrics: pa.Table, rates: np.ndarray) -> np.ndarray:
    """Return the row of ``fabrics`` of the PCIe generation with peer access nearest to each rate, bytes/s, (rates,)."""
    fabric_bytes_per_s, fabric_kinds = fabrics["bytes_per_s"].to_numpy(), fabrics["kind"].to_pylist()
    peers = fabrics["peer_access"].to_pylist()
    pcie = [row for row, kind in enumerate(fabric_kinds) if kind == "pcie" and peers[row]]
    return np.array([min(pcie, key=lambda row: abs(fabric_bytes_per_s[row] - rate)) for rate in rates], dtype=np.int64)
