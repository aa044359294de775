"""Latency of sparse attention (DeepSeek-V3.2): indexer scores, top-k selection of keys, attention over these.

A call of an indexer (heads as wide as an index key) is both scores and selection; a sweep measures them separately:
``selects`` 0 is scores alone, ``width`` 0 selection alone.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.coefficients import Coefficient
from kernelsight.kernels.latency_model import Coefficients, Columns, Features, power_mean, with_cut_rate
from kernelsight.kernels.work import fields

# widest head of an indexer; attention in the latent space is wider
INDEX_WIDTH = 256.0
# least query heads in a tile of attention in the latent space (FlashMLA: 64 or 128)
LEAST_HEADS = 64.0
NORM_EXPONENT = 4.0

COEFFICIENTS = (
    Coefficient("floor_us", "us", 4.0, 1.0, 20.0, "hardware", "launch and drain", 0.2),
    Coefficient("score_efficiency", "1", 0.6, 0.1, 1.0, "implementation", "scores: share of the dense peak"),
    Coefficient("attention_efficiency", "1", 0.6, 0.1, 1.0, "implementation", "attention: share of the dense peak"),
    Coefficient("gather_efficiency", "1", 0.7, 0.2, 1.0, "hardware", "share of the DRAM peak, gathered keys", 0.2),
    Coefficient("select_query_us", "us", 1.5, 0.1, 20.0, "implementation", "selection: each query of a multiprocessor"),
    Coefficient("select_pair_clocks", "1", 0.8, 0.05, 8.0, "implementation", "selection: clocks for each score"),
    Coefficient(
        "selected_keys", "tokens", 0.0, 0.0, 65536.0, "fixed", "keys that attention takes, however few it sees"
    ),
)

FEATURES = Features(("queries", "visible_pairs", "heads", "width", "flops", "bytes"))
# width 0 is the selection alone, which reads FP32 scores. Attention is that of DeepSeek-V3.2: over 2,048 selected keys
# of 512 + 64 numbers in 8 bits
COLUMNS = {
    **fields("queries", visible_pairs="pairs", heads="heads", width="width"),
    "selects": 'case when shape."width" = 0 then 1 else 0 end',
    "keys": f"""case when shape."width" > {INDEX_WIDTH:.0f} then
        least(shape."cached_tokens" + shape."new_tokens", shape."new_tokens" * 2048)
        else shape."cached_tokens" + shape."new_tokens" end""",
    "flops": "index_flops(visible_pairs, heads, width)",
    "bytes": f"""case when width = 0 then 4.0 * visible_pairs
        when width > {INDEX_WIDTH:.0f} then latent_bytes(shape."batch" * keys, queries, heads, 512, 64, 1)
        else index_bytes(shape."batch" * keys, queries, heads, 128) end""",
    "working_set_bytes": "bytes",
}


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
    query_flops = 2.0 * xp.maximum(call["heads"], LEAST_HEADS) * width * keys
    flops = xp.where(attends, waves * units * query_flops, scores)
    efficiency = xp.where(attends, at["attention_efficiency"], at["score_efficiency"])
    compute_us = with_cut_rate(xp, flops / (gpu["uncut_flops_per_us"] * efficiency), flops, gpu)
    memory_us = call["bytes"] / (gpu["memory_bytes_per_us"] * at["gather_efficiency"])
    selects = xp.where(attends, 0.0, call.get("selects", 1.0))
    each_us = at["select_pair_clocks"] * pairs / (units * gpu["clock_per_us"])
    selection_us = selects * (waves * at["select_query_us"] + each_us)
    return at["floor_us"] + power_mean(xp, compute_us, memory_us, NORM_EXPONENT) + selection_us, None, at["floor_us"]
