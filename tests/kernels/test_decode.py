"""Decode attention: order, bounds and smoothness for any constants within their bounds; structure by implementation."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.kernels.decode import decode_attention, mla_decode
from kernelsight.kernels.families import FAMILIES as REGISTRY

COLD_BYTES = 1e15
FAMILIES = {"decode_attention": decode_attention, "mla_decode": mla_decode}
# two GPUs of the catalogue, to three digits: HBM with a split L2 (H100), and GDDR6 with one L2 (L40S)
H100 = {
    "sm_count": 132.0, "clock_per_us": 1830.0, "l2_bytes": 52.4e6, "l2_partitions": 2.0, "inline_ecc": 0.0,
    "memory_bytes_per_us": 3.35e6, "math_flops_per_us": 989e6, "uncut_flops_per_us": 989e6,
}  # fmt: skip
L40S = {
    "sm_count": 142.0, "clock_per_us": 2520.0, "l2_bytes": 101e6, "l2_partitions": 1.0, "inline_ecc": 1.0,
    "memory_bytes_per_us": 0.864e6, "math_flops_per_us": 362e6, "uncut_flops_per_us": 362e6,
}  # fmt: skip
STARTS = {one.name: one.start for one in REGISTRY["decode_attention"].latency_model.coefficients}


def shapes(family: str, rows: int, seed: int) -> dict[str, np.ndarray]:
    """Return sizes of random calls, far beyond what a sweep measures."""
    random = np.random.default_rng(seed)
    size = lambda most: np.floor(np.exp(random.uniform(0.0, np.log(most), rows)))  # noqa: E731
    sizes = {"batch": size(1e5), "context": size(1e7) - 1.0}
    if family == "mla_decode":
        return {**sizes, "heads": size(256), "kv_lora_rank": np.full(rows, 512.0), "rope_dim": np.full(rows, 64.0)}
    kv_heads = size(64)
    heads = kv_heads * size(64)
    window = np.where(random.random(rows) < 0.3, size(1e4), 0.0)
    return {**sizes, "heads": heads, "kv_heads": kv_heads, "head_dim": 8.0 * size(64), "window": window}


def work(sizes: dict[str, np.ndarray], kv_bytes: float = 2.0, working_set_bytes: float = COLD_BYTES) -> dict:
    """Return a call: its sizes, FLOP and least bytes, as ``sql/lower`` counts them."""
    batch, heads = sizes["batch"], sizes["heads"]
    keys = sizes["context"] + 1.0
    if "kv_lora_rank" in sizes:
        width = 2.0 * sizes["kv_lora_rank"] + sizes["rope_dim"]
        read = keys * (sizes["kv_lora_rank"] + sizes["rope_dim"]) * kv_bytes + 2.0 * heads * width
        flops = 2.0 * batch * heads * width * keys
    else:
        keys = np.where(sizes["window"] > 0, np.minimum(keys, sizes["window"]), keys)
        read = 4.0 * heads * sizes["head_dim"] + 2.0 * keys * sizes["kv_heads"] * sizes["head_dim"] * kv_bytes
        flops = 4.0 * batch * heads * sizes["head_dim"] * keys
    return {**sizes, "flops": flops, "bytes": batch * read, "working_set_bytes": working_set_bytes}


def latency(family: str, call: dict, gpu: dict, at: dict) -> np.ndarray:
    with np.errstate(all="raise", under="ignore"):
        return np.asarray(FAMILIES[family](np, call, gpu, at)[0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("axis", "per_octave"), [("batch", 6), ("context", 3)])
def test_a_line_joins_two_knots_of_the_step_costs(family: str, axis: str, per_octave: int) -> None:
    """Half way between two knots the time is within 1.5 % of the line; windows have knots of their own."""
    sizes = shapes(family, 5_000, 8)
    low = {**sizes, axis: np.maximum(sizes[axis], 64.0)}
    if "window" in low:
        low["window"] = np.zeros(5_000)
    ratio = 2.0 ** (1.0 / per_octave)
    times = [latency(family, work({**low, axis: low[axis] * ratio**step}), H100, STARTS) for step in (0.0, 0.5, 1.0)]
    share = (ratio**0.5 - 1.0) / (ratio - 1.0)
    line = times[0] + share * (times[2] - times[0])
    assert np.abs(times[1] / line - 1.0).max() < 0.015


def test_keys_that_stay_in_l2_are_read_faster_and_a_whole_l2_keeps_more() -> None:
    sizes = {
        "batch": 64.0, "context": 511.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "window": 0.0,
    }  # fmt: skip
    sizes = {name: np.array([value]) for name, value in sizes.items()}
    cold, warm = (latency("decode_attention", work(sizes, 2.0, size), L40S, STARTS) for size in (COLD_BYTES, 1e6))
    assert warm < 0.5 * cold
    # 90 MB: within the one L2 of 101 MB, beyond what two halves keep
    whole = latency("decode_attention", work(sizes, 2.0, 9e7), L40S, STARTS)
    halves = latency("decode_attention", work(sizes, 2.0, 9e7), {**L40S, "l2_partitions": 2.0}, STARTS)
    assert whole < 0.9 * halves


def test_a_window_costs_what_a_cache_of_its_size_does() -> None:
    sizes = {"batch": 48.0, "context": 99_999.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "window": 1024.0}
    windowed, short = (
        {name: np.array([value]) for name, value in one.items()}
        for one in (sizes, {**sizes, "context": 1023.0, "window": 0.0})
    )
    found, expected = (latency("decode_attention", work(one), H100, STARTS) for one in (windowed, short))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("gpu", "factor"), [(H100, 1.08), (L40S, 1.21)])
def test_the_largest_caches_take_longer_than_the_peak_bandwidth_by_what_dram_loses(gpu: dict, factor: float) -> None:
    sizes = {
        "batch": 512.0, "context": 131071.0, "heads": 8.0, "kv_heads": 8.0, "head_dim": 128.0, "window": 0.0,
    }  # fmt: skip
    call = work({name: np.array([value]) for name, value in sizes.items()})
    found = latency("decode_attention", call, gpu, {**STARTS, "streams": 0.0})
    assert found == pytest.approx(factor * call["bytes"] / gpu["memory_bytes_per_us"], rel=0.01)


@pytest.mark.parametrize(
    ("structure", "group", "window", "passes"),
    [
        ({}, 48.0, 0.0, 1.0), ({"heads_per_block": 16.0}, 48.0, 0.0, 3.0), ({"largest_group": 32.0}, 48.0, 0.0, 48.0),
        ({"largest_group": 32.0}, 32.0, 0.0, 1.0), ({"packs_window": 0.0}, 8.0, 128.0, 8.0),
        ({"packs_window": 0.0}, 8.0, 0.0, 1.0),
    ],
)  # fmt: skip
def test_how_heads_share_blocks_decides_how_many_blocks_read_the_keys(
    structure: dict, group: float, window: float, passes: float
) -> None:
    sizes = {"batch": 4096.0, "context": 127.0, "heads": 8.0 * group, "kv_heads": 8.0, "head_dim": 128.0}
    sizes = {name: np.array([value]) for name, value in {**sizes, "window": window}.items()}
    blocks = decode_attention(np, work(sizes), H100, {**STARTS, **structure})[1]
    # so many streams are not split
    assert blocks == pytest.approx(4096.0 * 8.0 * passes, rel=1e-3)


def test_groups_that_a_kernel_does_not_pack_read_the_cache_once_for_each_head_without_tensor_cores() -> None:
    at = {name: np.full(4, value) for name, value in STARTS.items()} | {"smallest_group": np.full(4, 2.0)}
    at |= {"largest_group": np.full(4, 8.0), "query_rows": np.full(4, 8.0)}
    heads = np.array([8.0, 16.0, 64.0, 128.0])
    sizes = {"batch": np.full(4, 256.0), "context": np.full(4, 4095.0), "kv_heads": np.full(4, 8.0), "heads": heads}
    call = work(sizes | {"head_dim": np.full(4, 128.0), "window": np.zeros(4)}, kv_bytes=1.0)
    single, pair, eight, sixteen = latency("decode_attention", call, H100, at)
    # eight heads are the columns of one instruction
    assert eight < 1.05 * pair
    # what CUDA cores take in, of each head
    elements = 256 * 4096 * 8 * 256
    alone_us = elements / (H100["sm_count"] * H100["clock_per_us"] * STARTS["masked_elements_per_clock"])
    assert single > max(alone_us, 1.1 * pair)
    assert sixteen > 16 * alone_us
