"""Latency of sparse attention (DeepSeek-V3.2): indexer scores, top-k selection of keys, attention over these.

A call of an indexer (heads as wide as an index key) is both scores and selection; a sweep measures them separately:
``selects`` 0 is scores alone, ``width`` 0 selection alone.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.latency_model import Coefficients, Columns, power_mean, with_cut_rate

# widest head of an indexer; attention in the latent space is wider
INDEX_WIDTH = 256.0
# least query heads in a tile of attention in the latent space, by 16-bit FLOP per clock and multiprocessor: 64, and 128
# where an instruction takes as many rows (FlashMLA on 10.x: SGLang 0.5.20, dsa_backend.py: required_padding; in its
# sweep 128 heads take 1.15 times as long as 64 on B200, 1.90 times on H100)
LEAST_HEADS, WIDE_RATE = 64.0, 6144.0
NORM_EXPONENT = 4.0


def sparse_attention(xp: Any, call: Columns, gpu: Columns, at: Coefficients) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us), (rows,) each: floor + 4-norm(compute, DRAM) + selection.

    Compute takes at least as long as one query on one multiprocessor. ``call``: queries, visible_pairs, heads, width,
    flops, bytes, and selects in sweeps.
    """
    queries, pairs, width = call["queries"], call["visible_pairs"], call["width"]
    units = gpu["sm_count"]
    waves = xp.maximum(queries / units, 1.0)
    attends = width > INDEX_WIDTH
    scores = 2.0 * pairs * call["heads"] * width
    keys = xp.maximum(pairs / queries, at["selected_keys"])
    is_wide = gpu["uncut_16_bit_flops_per_us"] > WIDE_RATE * units * gpu["clock_per_us"]
    query_flops = 2.0 * xp.maximum(call["heads"], LEAST_HEADS * (1.0 + is_wide)) * width * keys
    flops = xp.where(attends, waves * units * query_flops, scores)
    efficiency = xp.where(attends, at["attention_efficiency"], at["score_efficiency"])
    compute_us = with_cut_rate(xp, flops / (gpu["uncut_flops_per_us"] * efficiency), flops, gpu)
    memory_us = call["bytes"] / (gpu["memory_bytes_per_us"] * at["gather_efficiency"])
    selects = xp.where(attends, 0.0, call.get("selects", 1.0))
    each_us = at["select_pair_clocks"] * pairs / (units * gpu["clock_per_us"])
    selection_us = selects * (waves * at["select_query_us"] + each_us)
    return at["floor_us"] + power_mean(xp, compute_us, memory_us, NORM_EXPONENT) + selection_us, None, at["floor_us"]
