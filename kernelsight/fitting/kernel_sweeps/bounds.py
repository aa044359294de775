"""Roofline lower bounds of kernel latency, to reject impossible rows: FLOP at peak rate, bytes from memory and links.

A bound holds for any routing, fusion and cache state: for MoE the fewest experts that tokens can reach, and two
matrices per expert if experts without a gate cannot be identified; bytes minus the size of L2; for arithmetic the
fastest rate that a row's labels allow (an 8-bit KV cache may use 8-bit products).

FLOP are counted as for all calls (``sql/macros/work.sql``), with nothing cached; bytes are deliberately fewer than
there.
"""

from __future__ import annotations

import polars as pl

from kernelsight.kernels.work import evaluated

TOLERANCE = 0.95  # boost clocks above the catalogue's and rounding
MICROSECONDS_PER_SECOND = 1e6
# NVIDIA Nemotron-H and Nemotron 3 models: experts of two matrices (squared ReLU); hidden x intermediate of an expert
TWO_MATRIX_TOP_K = 22
TWO_MATRIX_HIDDEN, TWO_MATRIX_INTERMEDIATE = 2688, 1856


def _column(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64)


def _bytes_of(label: str) -> pl.Expr:
    """Return the bytes of one element of the format in column ``label``, without scales."""
    sizes = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "int8_wo": 1.0}
    return pl.col(label).replace_strict({**sizes, "nvfp4": 0.5, "mxfp4": 0.5, "int4_wo": 0.5}, default=0.0)


M, N, K, BATCH, HEADS, HEAD_DIM = map(_column, ("m", "n", "k", "batch", "heads", "head_dim"))
NEW, CONTEXT, KV_HEADS, V_HEAD_DIM = map(_column, ("new_tokens", "context", "kv_heads", "v_head_dim"))
TOKENS, HIDDEN, INTERMEDIATE, TOP_K, EP = map(_column, ("tokens", "hidden", "intermediate", "top_k", "moe_ep"))
ROWS, COLUMNS, SENT, GPUS = map(_column, ("rows", "columns", "bytes", "gpus"))
WINDOW = pl.when(_column("window") > 0).then(_column("window")).otherwise(float("inf"))
KEYS = pl.min_horizontal(CONTEXT + 1, WINDOW)
MATRICES = pl.min_horizontal(
    _column("expert_matrices"),
    pl.when(
        (TOP_K == TWO_MATRIX_TOP_K)
        | (HIDDEN.eq(TWO_MATRIX_HIDDEN) & (INTERMEDIATE * _column("moe_tp")).eq(TWO_MATRIX_INTERMEDIATE))
    )
    .then(2.0)
    .otherwise(3.0),
)
EXPERT = MATRICES * HIDDEN * INTERMEDIATE
# with expert parallelism a rank may get no token, unless the sweep used balanced routing
SHARE = pl.when(EP == 1).then(1.0).when(pl.col("distribution") == "balanced").then(1 / EP).otherwise(0.0)
FEWEST_EXPERTS = pl.when(EP == 1).then(TOP_K).otherwise((TOP_K / EP).floor() * (pl.col("distribution") == "balanced"))
EXCHANGED = SENT * (GPUS - 1) / GPUS

# SQL over the fields of a shape; routed experts: see least_flops
FLOPS: dict[str, str] = {
    "gemm": "gemm_flops(m, n, k)",
    "batched_gemm": "batched_gemm_flops(batch, m, n, k)",
    "prefill_attention": """attention_flops(heads, head_dim,
        batch * visible_pairs(new_tokens, 0, coalesce("window", 0)))""",
    "encoder_attention": "attention_flops(heads, head_dim, batch * new_tokens * new_tokens)",
    "decode_attention": """attention_flops(heads, head_dim, batch * keys_seen(context, coalesce("window", 0)))""",
    "mla_prefill": "mla_prefill_flops(heads, head_dim, v_head_dim, batch * visible_pairs(new_tokens, 0, 0))",
    "mla_decode": "latent_flops(batch * (context + 1), heads, kv_lora_rank, rope_dim)",
}
BYTES: dict[str, pl.Expr] = {
    "gemm": _bytes_of("format") * N * K + 2 * M * N + M * K,
    "batched_gemm": BATCH * (_bytes_of("format") * (N * K + M * K) + 2 * M * N),
    "prefill_attention": BATCH * NEW * HEAD_DIM * (3 * HEADS + 2 * KV_HEADS),
    "encoder_attention": 4 * BATCH * NEW * HEADS * HEAD_DIM * 2,
    "decode_attention": 2 * BATCH * KEYS * KV_HEADS * HEAD_DIM * _bytes_of("format"),
    "mla_prefill": BATCH * NEW * HEADS * (HEAD_DIM + V_HEAD_DIM) * 2,
    "mla_decode": BATCH * (CONTEXT + 1) * (_column("kv_lora_rank") + _column("rope_dim")) * _bytes_of("format"),
    # the convolution reads and writes its channels; the recurrence queries, keys and values, and writes outputs
    "linear_attention": pl.when(pl.col("width").is_not_null())
    .then(4 * ROWS * COLUMNS)
    .otherwise(4 * ROWS * (KV_HEADS * HEAD_DIM + HEADS * V_HEAD_DIM)),
    # finding the largest value (compute_scale) reads the whole input once more
    "quantize": pl.when(pl.col("implementation").str.contains("_quant_")).then(3).otherwise(2) * ROWS * COLUMNS,
    "moe": FEWEST_EXPERTS * EXPERT * _bytes_of("format") + pl.when(EP == 1).then(3 * TOKENS * HIDDEN).otherwise(0.0),
}
SENT_BYTES: dict[str, pl.Expr] = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), EXCHANGED)


def peak_flops_per_us(gpu: dict[str, float | None]) -> pl.Expr:
    """Return the fastest dense rate, in FLOP/us, that a row's labels allow on a GPU (a row of ``gpus``)."""
    sixteen_bit = max(gpu["bf16_flops_per_s"] or 0.0, gpu["fp16_flops_per_s"] or 0.0)
    rates = {math: gpu[f"{math}_flops_per_s"] or sixteen_bit for math in ("bf16", "fp16", "fp8", "fp4", "int8")}
    eight_bit_kv = pl.col("format").is_in(["fp8", "int8"]).fill_null(False)
    labelled = pl.col("math").replace_strict(rates, default=max(rates.values()))
    return (
        pl.when(eight_bit_kv).then(pl.max_horizontal(labelled, rates["fp8"])).otherwise(labelled)
        / MICROSECONDS_PER_SECOND
    )


def least_flops(family: str, rows: pl.DataFrame) -> pl.Expr | None:
    """Return the least FLOP of each row's kernel; None where a family has no lower bound."""
    if family == "moe":
        return 2 * TOKENS * TOP_K * SHARE * EXPERT
    if family not in FLOPS:
        return None
    # 64-bit integers would overflow
    sizes = rows.select(pl.selectors.integer().cast(pl.Float64))
    return pl.lit(pl.from_arrow(evaluated(FLOPS[family], sizes.to_arrow())))


def impossible(family: str, rows: pl.DataFrame, gpu: dict[str, float | None]) -> list[tuple[str, pl.Expr]]:
    """Return the checks of a family's rows on a GPU as (reason, true if too fast); empty if the family has no bound."""
    latency, checks = pl.col("latency_us"), []
    flops = least_flops(family, rows)
    if flops is not None:
        checks.append(("faster_than_peak", latency < TOLERANCE * flops / peak_flops_per_us(gpu)))
    if family in BYTES:
        from_memory = BYTES[family] - gpu["l2_bytes"]
        rate = gpu["memory_bandwidth_bytes_per_s"] / MICROSECONDS_PER_SECOND
        checks.append(("faster_than_memory", latency < TOLERANCE * from_memory / rate))
    if family in SENT_BYTES:
        rate = gpu["link_bytes_per_s"] / MICROSECONDS_PER_SECOND
        checks.append(("faster_than_link", latency < TOLERANCE * SENT_BYTES[family] / rate))
    return checks
