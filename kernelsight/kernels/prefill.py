"""Latency of prefill attention (flash attention), of encoders and of MLA with expanded keys: tiles, softmax, bytes.

One expression serves the three families. Nothing rounds up in tokens or sequences, so that step costs can be
interpolated between knots; the empty rows of a last tile count as their mean, ``row_padding``.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.latency_model import Columns, with_cut_rate

# bytes per clock and multiprocessor: of L2, and of a kernel that only copies (estimates; of 10, 20 and 64, the second
# transfers copies from H100 to H200 best at 10)
L2_BYTES_PER_CLOCK = 64.0
COPIED_BYTES_PER_CLOCK = 10.0
# clock at which tile_overhead_us holds
REFERENCE_CLOCK_PER_US = 1800.0
REFERENCE_WIDTH = 128.0
# flash-attention 3 does not split fewer than four key tiles of 128 (hopper/heuristics.h)
SMALLEST_SPLIT = 512.0


def attention(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, tiles, floor_us), (rows,), of fused attention of new tokens over the keys that they see.

    t = floor + gap + sqrt(tiles^2 + memory^2) + copies. ``call``: batch, new_tokens, cached_tokens, heads,
    visible_pairs, flops, bytes; kv_heads (missing: one per head) and window (missing: none); working_set_bytes (bytes
    that pass through L2 before the same bytes are read again).
    """
    batch, new, heads = call["batch"], call["new_tokens"], call["heads"]
    kv_heads, window = call.get("kv_heads", heads), call.get("window", 0.0)
    units, clock = gpu["sm_count"], gpu["clock_per_us"]
    width = call["flops"] / (4.0 * heads * call["visible_pairs"])

    packed = 1.0 + at["packs_group"] * (heads / kv_heads - 1.0)
    tiles = batch * heads / packed * xp.maximum(new * packed / at["query_tile"] + at["row_padding"], 1.0)
    tiles_us = _tiles_us(xp, call, width, window, packed, tiles, gpu, at)

    query_bytes = 4.0 * batch * new * heads * width
    kv_bytes = 4.0 * batch * new * kv_heads * width
    dram_us, byte_us = _byte_us(xp, call["working_set_bytes"], gpu, at)
    cached_bytes = xp.maximum(call["bytes"] - query_bytes - kv_bytes, 0.0)
    memory_us = (query_bytes + kv_bytes) * byte_us + cached_bytes * dram_us
    copied_bytes = at["query_passes"] * query_bytes + at["kv_passes"] * kv_bytes
    copies_us = copied_bytes * (byte_us + 1.0 / (COPIED_BYTES_PER_CLOCK * units * clock))
    return at["floor_us"] + at["gap_us"] + _root_of_squares(xp, tiles_us, memory_us) + copies_us, tiles, at["floor_us"]


def _tiles_us(
    xp: Any, call: Columns, width: Any, window: Any, packed: Any, tiles: Any, gpu: Columns, at: Columns
) -> Any:
    """Return the time of all tiles, microseconds: keys, the unhidden share of the longest tile, starts and ends."""
    units = gpu["sm_count"]
    waves = tiles / units
    mean_keys, most_keys = _keys_of_a_tile(xp, call, window, packed, at)
    # split KV: idle multiprocessors take part of a tile's keys, in pieces of SMALLEST_SPLIT at least (a soft minimum)
    piece = SMALLEST_SPLIT + most_keys * waves
    split_keys = most_keys * piece / _root_of_squares(xp, most_keys, piece)
    longest_keys = most_keys + at["splits_keys"] * (split_keys - most_keys)
    key_us = _pair_us(xp, width, gpu, at) * units * at["query_tile"]
    work_us = (waves * mean_keys + at["longest_factor"] * longest_keys) * key_us
    # tiles of one multiprocessor run one after another; below one wave a tile still takes its full time
    clock_ratio = REFERENCE_CLOCK_PER_US / gpu["clock_per_us"]
    block_us = at["tile_overhead_us"] * _root_of_squares(xp, waves, 1.0) * clock_ratio
    return (work_us + block_us) * xp.where(window > 0.0, at["window_factor"], 1.0)


def _keys_of_a_tile(xp: Any, call: Columns, window: Any, packed: Any, at: Columns) -> tuple[Any, Any]:
    """Return the keys that a query row computes, masked ones of a tile included: (mean, of the longest tile).

    Half a tile lies beyond the causal edge, and another half before the window once that is full.
    """
    new = call["new_tokens"]
    keys = new + call["cached_tokens"]
    visible = call["visible_pairs"] / (call["batch"] * new)
    skipped = xp.where(window > 0.0, at["skips_window"], 0.0)
    computed = visible + (1.0 - skipped) * xp.maximum(keys - 0.5 * (new - 1.0) - visible, 0.0)
    edge = xp.maximum(at["query_tile"] / packed, at["key_tile"])
    longest = keys - skipped * xp.maximum(keys - window - edge, 0.0)
    longest = xp.maximum(longest, at["key_tile"])
    edges = 1.0 + skipped * xp.clip((keys - window) / new, 0.0, 1.0)
    return xp.minimum(computed + 0.5 * edge * edges, longest), longest


def _pair_us(xp: Any, width: Any, gpu: Columns, at: Columns) -> Any:
    """Return the time of one query-key pair on the whole GPU, microseconds: both products plus the softmax.

    A prototype on GB200 found that the softmax hardly overlaps with the products; folds over the training GPUs do not
    contradict. Narrower formats gain less than their peak: their rate is 16-bit rate x (peak / 16-bit peak)^(1 -
    lost_speedup).
    """
    # the width is a quotient: rounding errors must not pad it by another step
    padded = xp.ceil(width / at["head_step"] - 1e-3) * at["head_step"]
    octaves = xp.log2(padded / REFERENCE_WIDTH)
    bend = xp.log(at["narrow_head"]) * xp.maximum(-octaves, 0.0) + xp.log(at["wide_head"]) * xp.maximum(octaves, 0.0)
    lost = at["lost_speedup"] * xp.log(gpu["uncut_flops_per_us"] / gpu["uncut_16_bit_flops_per_us"])
    # never faster than the peak
    slowness = xp.maximum(at["tensor_factor"] * xp.exp(bend + lost), 1.0)
    tensor_us = slowness * 4.0 * padded / gpu["uncut_flops_per_us"]
    softmax_us = at["exponential_factor"] / (gpu["exponentials_per_clock"] * gpu["sm_count"] * gpu["clock_per_us"])
    return with_cut_rate(xp, tensor_us + softmax_us, 4.0 * padded, gpu)


def _byte_us(xp: Any, working_set_bytes: Any, gpu: Columns, at: Columns) -> tuple[Any, Any]:
    """Return microseconds per byte (from DRAM, with L2 hits); hits are 1/(1 + r^6), r: working set over kept bytes."""
    # above r = 100 there are no hits, and larger powers would overflow float32
    ratio = xp.minimum(working_set_bytes / (at["l2_share"] * gpu["l2_bytes"]), 100.0)
    square = ratio * ratio
    hits = 1.0 / (1.0 + square * square * square)
    dram_us = at["memory_factor"] / gpu["memory_bytes_per_us"]
    l2_us = xp.minimum(1.0 / (L2_BYTES_PER_CLOCK * gpu["sm_count"] * gpu["clock_per_us"]), dram_us)
    return dram_us, dram_us + hits * (l2_us - dram_us)


def _root_of_squares(xp: Any, first: Any, second: Any) -> Any:
    return xp.sqrt(first * first + second * second)
