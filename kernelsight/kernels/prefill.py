"""Latency of prefill attention (flash attention), of encoders and of MLA with expanded keys: tiles, softmax, bytes.

One expression serves the three families. Nothing rounds up in tokens or sequences, so that step costs can be
interpolated between knots; the empty rows of a last tile count as their mean, ``row_padding``.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.coefficients import Coefficient
from kernelsight.kernels.latency_model import LANES, Columns, Features, with_cut_rate
from kernelsight.kernels.work import fields, optional

# bytes per clock and multiprocessor: of L2, and of a kernel that only copies (estimates; of 10, 20 and 64, the second
# transfers copies from H100 to H200 best at 10)
L2_BYTES_PER_CLOCK = 64.0
COPIED_BYTES_PER_CLOCK = 10.0
# clock at which tile_overhead_us holds
REFERENCE_CLOCK_PER_US = 1800.0
REFERENCE_WIDTH = 128.0
# flash-attention 3 does not split fewer than four key tiles of 128 (hopper/heuristics.h)
SMALLEST_SPLIT = 512.0

COEFFICIENTS = (
    Coefficient("floor_us", "us", 2.0, 1.0, 5.0, "hardware", "launch and drain inside a CUDA graph", 0.2),
    Coefficient("gap_us", "us", 5.0, 0.3, 20.0, "engine", "what one call per graph replay adds"),
    Coefficient(
        "tensor_factor", "1", 1.4, 1.0, 16.0, "implementation", "tensor time of computed pairs against the peak"
    ),
    Coefficient("exponential_factor", "1", 0.6, 0.1, 10.0, "implementation", "other time of a pair in exponentials"),
    Coefficient(
        "window_factor", "1", 1.0, 0.5, 4.0, "implementation", "time of a tile with a window, without one: 1", 0.3
    ),
    Coefficient("narrow_head", "1", 1.0, 0.4, 3.0, "implementation", "tensor factor at head width 64 against 128", 0.2),
    Coefficient("wide_head", "1", 1.0, 0.4, 6.0, "implementation", "tensor factor at head width 256 against 128", 0.3),
    Coefficient(
        "lost_speedup", "1", 0.4, 0.05, 1.0, "implementation", "0: products in FP8 gain all that the peak does", 0.4
    ),
    Coefficient("tile_overhead_us", "us", 2.0, 0.1, 20.0, "implementation", "start and end of a tile at 1.8 GHz"),
    Coefficient(
        "longest_factor", "1", 0.8, 0.05, 3.0, "implementation", "share of the longest tile that nothing hides"
    ),
    Coefficient("memory_factor", "1", 1.07, 1.0, 2.0, "hardware", "DRAM time against the peak bandwidth", 0.1),
    Coefficient("l2_share", "1", 0.7, 0.2, 2.0, "hardware", "share of L2 that keeps bytes until their next use", 0.3),
    Coefficient("query_passes", "1", 0.3, 0.01, 10.0, "engine", "passes over queries and outputs in kernels around"),
    Coefficient("kv_passes", "1", 1.0, 0.01, 10.0, "engine", "passes over new keys and values in kernels around"),
    Coefficient("query_tile", "rows", 128.0, 16.0, 512.0, "fixed", "rows of queries that one thread block takes"),
    Coefficient("key_tile", "tokens", 64.0, 16.0, 256.0, "fixed", "keys of one inner step"),
    Coefficient("head_step", "1", 16.0, 1.0, 256.0, "fixed", "head widths are padded to a multiple of it"),
    Coefficient("packs_group", "1", 1.0, 0.0, 1.0, "fixed", "1: query heads of one KV head share the rows of a tile"),
    Coefficient("splits_keys", "1", 1.0, 0.0, 1.0, "fixed", "1: idle multiprocessors take part of a tile's keys"),
    Coefficient("skips_window", "1", 1.0, 0.0, 1.0, "fixed", "share of the work outside the window that is left out"),
    Coefficient("row_padding", "1", 0.0, 0.0, 1.0, "fixed", "mean share of a query tile that holds no rows"),
)

FEATURES_OF_PAIRS = Features(
    ("new_tokens", "lanes", "flops", "bytes"),
    paddings=(("new_tokens", 64.0), ("new_tokens", 128.0)),
    grids=tuple((*LANES, ("new_tokens", tile)) for tile in (64.0, 128.0)),
)
FEATURES = FEATURES_OF_PAIRS._replace(
    sizes=("new_tokens", "cached_tokens", "lanes", "group", "head_dim", "flops", "bytes"),
    flags=("window",),
    grids=(
        *FEATURES_OF_PAIRS.grids,
        *((("batch", 1.0), ("kv_heads", 1.0), ("packed", tile)) for tile in (64.0, 128.0)),
    ),
)
COLUMNS = {
    **fields("batch", "new_tokens"),
    **optional("cached_tokens"),
    **fields("heads", "kv_heads", "head_dim"),
    **optional("window"),
    "visible_pairs": 'batch * visible_pairs(new_tokens, cached_tokens, "window")',
    "flops": "attention_flops(heads, head_dim, visible_pairs)",
    "bytes": 'prefill_attention_bytes(batch, new_tokens, cached_tokens, "window", heads, kv_heads, head_dim, '
    "weight_bits / 8)",
    "working_set_bytes": "bytes",
}
# every query attends to every key; one KV head per query head, 16 bits
ENCODER_COLUMNS = {
    **fields("batch", "new_tokens"),
    **optional("cached_tokens"),
    **fields("heads", kv_heads="heads", head_dim="head_dim"),
    "window": "0",
    "visible_pairs": "batch * new_tokens * (cached_tokens + new_tokens)",
    "flops": "attention_flops(heads, head_dim, visible_pairs)",
    "bytes": "prefill_attention_bytes(batch, new_tokens, cached_tokens, 0, heads, heads, head_dim, 2)",
    "working_set_bytes": "bytes",
}
LATENT_COLUMNS = {
    **fields("batch", "new_tokens"),
    **optional("cached_tokens"),
    **fields("heads", qk_head_dim="head_dim", v_head_dim="v_head_dim"),
    "visible_pairs": "batch * visible_pairs(new_tokens, cached_tokens, 0)",
    "flops": "mla_prefill_flops(heads, qk_head_dim, v_head_dim, visible_pairs)",
    "bytes": "mla_prefill_bytes(batch, new_tokens, cached_tokens, heads, qk_head_dim, v_head_dim)",
    "working_set_bytes": "bytes",
}


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
