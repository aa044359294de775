"""Latency of GEMMs, plain and batched: the fastest of a list of tiles, wave quantisation, split-K, DRAM and L2, power.

Coefficients are in units that carry over between GPUs: operand feed in FLOP per element (a tile loses the same share of
the uncut tensor rate to it on every generation), a tile's overhead in elements of k at that rate, power as energy per
FLOP. On a part with a cut tensor rate the longer tensor time hides these losses (``with_cut_rate``).

How long a GPU has worked decides its clock: a sweep measures bursts, each collector for its own time; a served step
lasts longer than the power limit takes to act, so that its products of 16 bits run at the sustained clock
(``sustained_us``; others keep the time of their sweep: ``call_kinds.SUSTAINED``).
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.latency_model import Columns, with_cut_rate

# rows of the activation x rows of the weight of one thread block: from small batches, where the weight is on the wide
# side of the instruction, to the largest that fit the accumulators
TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256))
# upper bound of ``least_rows`` x m: a library that selects by m alone uses tiles of at least this many rows for large m
LARGEST_ROWS = 128.0
# time of a tile that a library does not consider: never the minimum, and its square fits a float32
BARRED_US = 1e15
# an element is read in 16 bits and written in 8; share of L2 that they may fill, as in the quantisation sweeps
QUANTIZED_ELEMENT_BYTES = 3.0
L2_KEEPS = 0.8
# working set over cache above which there are no hits; larger powers would overflow float32
FULL = 1e4
# share of DRAM traffic that in-band ECC takes: its share of the memory
ECC_SHARE = 1.0 / 16.0
# tensor rate of one multiprocessor at which energy_pj holds, FLOP/us: that of an A100 in BF16
REFERENCE_UNIT_RATE = 3e6


def gemm(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, tiles, floor_us), (rows,) each, of ``batch`` products (m x k) times (k x n).

    t = floor + sustained(min over tiles of sqrt(c^2 + d^2)) + quantisation, where compute c takes whole waves of tiles,
    or a split-K sum where that is faster than an idle part of the last wave, and d is DRAM or L2 time.
    """
    batch = call.get("batch", 1.0)
    m, n, k = call["m"], call["n"], call["k"]
    units, clock = gpu["sm_count"], gpu["clock_per_us"]
    unit_us = units / gpu["uncut_flops_per_us"]
    stream_us = _memory_us(xp, call, gpu, at)
    split_us = at["split_clocks"] / clock
    least_rows = xp.minimum(at["least_rows"] * m, LARGEST_ROWS)
    rows = {tile_m: batch * xp.ceil(m / tile_m) for tile_m, _ in TILES}
    columns = {tile_n: xp.ceil(n / tile_n) for _, tile_n in TILES}
    best, best_tiles = None, None
    for tile_m, tile_n in TILES:
        tiles = rows[tile_m] * columns[tile_n]
        waves = tiles / units
        tensor = 2.0 * tile_m * tile_n / at["compute_efficiency"]
        step_us = unit_us * _fourth_mean(xp, tensor, (tile_m + tile_n) * at["feed_flops"])
        one_us = k * with_cut_rate(xp, step_us, 2.0 * tile_m * tile_n * units, gpu) + at["tile_depth"] * step_us
        rest_us = xp.minimum(at["wave_softness"] * one_us, split_us)
        compute_us = one_us * waves + rest_us * (xp.ceil(waves) - waves)
        compute_us = xp.where(least_rows > tile_m, BARRED_US, compute_us)
        if best is None:
            best, best_tiles = compute_us, tiles
        else:
            best_tiles = xp.where(compute_us < best, tiles, best_tiles)
            best = xp.minimum(compute_us, best)
    # bytes are the same for every tile, so that the fastest compute gives the fastest time
    best = xp.sqrt(best * best + stream_us * stream_us)
    floor_us = at["floor_us"] + at["floor_clocks"] / clock
    # rows that pad a tile of 64 draw power too: the limit does not rise between two multiples of 64
    latency_us = floor_us + sustained_us(xp, best, call["flops"] * xp.ceil(m / 64.0) * 64.0 / m, gpu, at)
    latency_us = latency_us + at["quantizes"] * _quantize_us(xp, batch * m, k, gpu, at)
    return latency_us, best_tiles, floor_us


def batched_gemm(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, tiles, floor_us), (rows,) each, of a batched GEMM, with the gap that a sweep measures."""
    latency_us, tiles, floor_us = gemm(xp, call, gpu, at)
    return at["gap_us"] + latency_us, tiles, floor_us


def _memory_us(xp: Any, call: Columns, gpu: Columns, at: Columns) -> Any:
    """Return the time of the call's bytes, microseconds: through DRAM, or L2 for the share of hits."""
    filling = call["working_set_bytes"] / (at["l2_share"] * gpu["l2_bytes"])
    return call["bytes"] * _byte_us(xp, filling, gpu, at)


def _quantize_us(xp: Any, rows: Any, columns: Any, gpu: Columns, at: Columns) -> Any:
    """Return the time of the quantisation before a product, microseconds: traffic through L2 or DRAM, or dispatch."""
    elements = rows * columns
    filling = QUANTIZED_ELEMENT_BYTES * elements / (L2_KEEPS * gpu["l2_bytes"])
    traffic_us = elements * at["quantize_bytes"] * _byte_us(xp, filling, gpu, at)
    dispatch_us = rows * at["quantize_clocks"] / gpu["clock_per_us"]
    return at["quantize_us"] + _fourth_mean(xp, traffic_us, dispatch_us)


def _byte_us(xp: Any, filling: Any, gpu: Columns, at: Columns) -> Any:
    """Return the time of one byte, microseconds; L2 hits are 1/(1 + x^4), ``filling`` x: working set over cache."""
    square = xp.minimum(filling, FULL) * xp.minimum(filling, FULL)
    hits = 1.0 / (1.0 + square * square)
    dram = gpu["memory_bytes_per_us"] * (1.0 - ECC_SHARE * gpu["inline_ecc"]) * at["memory_efficiency"]
    cache = xp.maximum(at["l2_bytes_per_clock"] * gpu["sm_count"] * gpu["clock_per_us"], dram)
    return (1.0 - hits) / dram + hits / cache


def sustained_us(xp: Any, burst_us: Any, flops: Any, gpu: Columns, at: Columns) -> Any:
    """Return the time under the board's power limit, microseconds; ``burst_us``: before the limit acts.

    Power as the clock to ``clock_exponent``: t = burst^(1 - 1/x) limit^(1/x), where ``limit`` is the time that the
    energy takes at the limit. Energy per FLOP falls with the square root of the tensor rate of one multiprocessor:
    larger instructions read fewer operands, and a cut one spends the energy of its clock on fewer FLOP (exponent and
    energy fitted on A100, L40S, H100, H200). Repetitions of a sweep heat the chip by as much as a call is long:
    the limit acts by t / (t + ``throttle_us``), which is nil in serving.
    """
    energy_pj = at["energy_pj"] * xp.sqrt(REFERENCE_UNIT_RATE * gpu["sm_count"] / gpu["math_flops_per_us"])
    over = xp.maximum(flops * energy_pj * 1e-6 / gpu["tdp_w"] / burst_us, 1.0)
    share = burst_us / (burst_us + at["throttle_us"])
    return burst_us * (1.0 + (xp.exp(xp.log(over) / at["clock_exponent"]) - 1.0) * share)


def _fourth_mean(xp: Any, first: Any, second: Any) -> Any:
    """Return the soft maximum (first^4 + second^4)^(1/4) of positive times."""
    larger, smaller = xp.maximum(first, second), xp.minimum(first, second)
    # powers of the ratio fit a float32 whatever the times
    ratio = smaller / larger
    square = ratio * ratio
    return larger * xp.sqrt(xp.sqrt(1.0 + square * square))
