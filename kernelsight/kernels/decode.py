"""Latency of decode attention, grouped-query and MLA in latent space: KV stream, thread blocks, split KV, head packing.

One expression serves both families. Nothing rounds up in batch or context, so that step costs can be interpolated
between knots, and no term falls when either grows. Fitted are the costs of a block, a split and a launch, and two
limits: the rate at which a block streams keys and values, and the tensor rate of a multiprocessor.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.latency_model import Columns, with_cut_rate

# clock at which block_us and combine_us hold: they carry over between generations in clock cycles, not in time
REFERENCE_CLOCK_PER_US = 1800.0
# e-folding number of pieces beyond the first with which the second pass of a split reaches its full cost
COMBINE_PIECES = 4.0

# DRAM time over that at peak bandwidth: the largest KV caches of H100 and H200 take 1.07 to 1.11, of L40S (GDDR6, with
# in-band ECC) 1.19 to 1.3. Not fitted: over all sizes, it would absorb the ramps of smaller caches
DRAM_FACTOR = 1.08
GDDR6_FACTOR = 1.21


def decode_attention(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, blocks, floor_us), (rows,), of the attention of ``batch`` new tokens over ``context`` each.

    ``call``: batch, context, heads, kv_heads, head_dim, window (0: none), flops, bytes, working_set_bytes (bytes that
    are read before the same keys and values are read again).
    """
    keys = xp.where(call["window"] > 0, xp.minimum(call["context"] + 1.0, call["window"]), call["context"] + 1.0)
    group = call["heads"] / call["kv_heads"]
    masked = (group > at["largest_group"]) | (group < at["smallest_group"])
    packed = ~masked & ((call["window"] <= 0) | (at["packs_window"] > 0))
    passes = xp.where(packed, xp.ceil(group / at["heads_per_block"]), group)
    width = call["head_dim"]
    wasted = (xp.exp2(xp.ceil(xp.log2(width))) / width) ** at["width_padding"]
    query_bytes = 4.0 * call["batch"] * call["heads"] * width
    lanes = call["batch"] * call["kv_heads"]
    return _split_kv(xp, call, gpu, at, lanes, keys, group, passes, masked, query_bytes, 2.0 * width, wasted)


def mla_decode(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, blocks, floor_us), (rows,), of MLA decode: all heads of a sequence read one vector a token.

    ``call``: batch, context, heads, kv_lora_rank, rope_dim, flops, bytes, working_set_bytes.
    """
    heads = call["heads"]
    passes = xp.ceil(heads / at["heads_per_block"])
    query_bytes = 2.0 * call["batch"] * heads * (2.0 * call["kv_lora_rank"] + call["rope_dim"])
    keys, width = call["context"] + 1.0, call["kv_lora_rank"] + call["rope_dim"]
    return _split_kv(xp, call, gpu, at, call["batch"], keys, heads, passes, False, query_bytes, width, 1.0)


def _split_kv(
    xp: Any,
    call: Columns,
    gpu: Columns,
    at: Columns,
    lanes: Any,
    keys: Any,
    group: Any,
    passes: Any,
    masked: Any,
    query_bytes: Any,
    width: Any,
    wasted: Any,
) -> tuple[Any, Any, Any]:
    """Return (latency_us, blocks, floor_us) of ``lanes`` KV streams of ``keys`` tokens, each read ``passes`` times.

    t = floor + gap + narrow + queries + overlap-norm(8-norm(memory, stream, tensor), 2-norm(blocks, combine)).
    ``group``: query heads of a lane; ``masked``: whether CUDA cores replace tensor cores; ``width``: elements that a
    lane reads per token; ``wasted``: factor, at least 1, of the padding of the head width.
    """
    units, clock = gpu["sm_count"], gpu["clock_per_us"]
    slowness = REFERENCE_CLOCK_PER_US / clock
    # sequences are split until the GPU is full, pieces are as short as allowed, or the kernel's limit is reached
    pieces = _norm(xp, 1.0, keys / at["smallest_split"], 2)
    slots = at["blocks_per_unit"] * units
    lacking = lanes * passes / slots
    splits = _norm(xp, 1.0, 1.0 / _norm(xp, _norm(xp, lacking, 1.0 / pieces, 2), 1.0 / at["most_splits"], 2), 2)
    blocks = lanes * passes * splits
    waves = _norm(xp, 1.0, blocks / units, 2)
    busy = blocks / units / waves  # share of the multiprocessors at work
    running = slots / _norm(xp, 1.0, slots / blocks, 2)  # blocks at work

    kv_bytes = xp.maximum(call["bytes"] - query_bytes, 0.0)
    elements = lanes * keys * width
    narrow = xp.clip(2.0 - kv_bytes / elements, 0.0, 1.0)
    dram = gpu["memory_bytes_per_us"] / (DRAM_FACTOR + (GDDR6_FACTOR - DRAM_FACTOR) * gpu["inline_ecc"])
    l2 = xp.maximum(at["l2_bytes_per_clock"] * units * clock, dram)
    # each of two L2 partitions keeps copies of the other's lines; a single one is used whole
    kept_bytes = gpu["l2_bytes"] * at["l2_share"] ** (gpu["l2_partitions"] - 1.0)
    hits = _l2_hits(xp, call["working_set_bytes"] / kept_bytes)
    memory_us = kv_bytes * ((1.0 - hits) / dram + (hits + passes - 1.0) / l2)
    stream_us = at["streams"] * wasted * elements * passes / (running * clock * at["stream_elements_per_clock"])
    padded = passes * xp.ceil(group / passes / at["query_rows"]) * at["query_rows"] / group
    padded_flops = wasted * padded * call["flops"]
    whole_us = at["tensor_factor"] * padded_flops / gpu["uncut_flops_per_us"]
    masked_us = wasted * elements * passes / (units * clock * at["masked_elements_per_clock"])
    tensor_us = xp.where(masked, masked_us, with_cut_rate(xp, whole_us, padded_flops, gpu)) / busy
    core_us = _norm(xp, _norm(xp, memory_us, stream_us, 3), tensor_us, 3)

    # the second pass is hidden in part where blocks run one after another for longer
    combine_us = at["combine_us"] * (1.0 - xp.exp((1.0 - pieces) / COMBINE_PIECES))
    blocks_us = slowness * _norm(xp, at["block_us"] * waves, combine_us, 1)
    larger = xp.maximum(core_us, blocks_us)
    joined_us = larger * (1.0 + (xp.minimum(core_us, blocks_us) / larger) ** at["overlap"]) ** (1.0 / at["overlap"])
    small_us = at["floor_us"] + at["gap_us"] + narrow * at["narrow_us"] + query_bytes / dram
    return small_us + joined_us, blocks, at["floor_us"]


def _l2_hits(xp: Any, filling: Any) -> Any:
    """Return the share of L2 hits, 1/(1 + r^8); ``filling`` r: bytes until their next use over those that L2 keeps."""
    # above 100 there are no hits, and larger powers would overflow float32
    squared = xp.minimum(filling, 100.0) ** 2
    return 1.0 / (1.0 + squared**2 * squared**2)


def _norm(xp: Any, first: Any, second: Any, halvings: int) -> Any:
    """Return the soft maximum (first^p + second^p)^(1/p), p = 2^halvings, of two times or counts, one of them positive.

    At least the larger, at most their sum. By squares and square roots: powers cost ten times as much.
    """
    larger = xp.maximum(first, second)
    # dividing by the larger keeps the powers finite for any size
    power = xp.minimum(first, second) / larger
    for _ in range(halvings):
        power = power * power
    root = 1.0 + power
    for _ in range(halvings):
        root = xp.sqrt(root)
    return larger * root
