"""Schemas of the tables of ``aiconfigurator-core``: the kernel family of each, and its fields as expressions.

Units and meanings were derived from the files of version 0.12.0: latencies in ms except in the all-to-all tables (us);
``step`` is the number of cached tokens before the call; ``message_size`` counts elements; ``num_heads`` of MLA is per
GPU, whatever ``tp_size`` says; experts and their width are converted to those of one GPU.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import polars as pl
from polars import col

FORMATS = {  # label of a table -> (dtype of the cell, number format of the weight, arithmetic)
    "bfloat16": ("bf16", "bf16", "bf16"),
    "float16": ("fp16", "fp16", "fp16"),
    "fp8": ("fp8", "fp8", "fp8"),
    "fp8_block": ("fp8_block", "fp8_block", "fp8"),
    "nvfp4": ("nvfp4", "nvfp4", "fp4"),
    "int8_wo": ("int8_wo", "int8_wo", "bf16"),
    "int4_wo": ("int4_wo", "int4_wo", "bf16"),
    "sq": ("int8", "int8", "int8"),
    "w4afp8": ("w4afp8", "int4_wo", "fp8"),
    "w4a16_mxfp4": ("w4a16_mxfp4", "mxfp4", "bf16"),
    "w4a8_mxfp4_mxfp8": ("w4a8_mxfp4_mxfp8", "mxfp4", "fp8"),
}
SHORT = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "fp8_e4m3": "fp8"}
ELEMENT_BYTES = {"bf16": 2.0, "fp16": 2.0, "int8": 1.0, "fp8": 1.0, "nvfp4": 0.5625}
# Experts without a gate have two matrices (squared ReLU). Only TensorRT-LLM's kernel name says so; the shapes are those
# of NVIDIA Nemotron 3 (top-k 22 of 512; 2688 x 1856), and the versions those whose weight-bound rows on Hopper and L40S
# take 1.1 to 1.3 times the DRAM time of two matrices (earlier versions 1.7 times: they ran three), and newer ones.
NEVER_GATED = "nongated"
TWO_MATRIX_VERSIONS = ("0.5.14", "0.5.17", "0.5.20", "0.24.0", "0.25.0", "0.27.1", "0.31.0")
NEMOTRON = (col("topk") == 22) | ((col("hidden_size") == 2688) & (col("inter_size") == 1856))
GATED_AFTER_ALL = (col("inter_size") == 2688) & col("kernel_source").str.contains("fused_moe_triton")
TWO_MATRICES = col("kernel_source").str.contains(NEVER_GATED) | (
    NEMOTRON & col("version").is_in(TWO_MATRIX_VERSIONS).fill_null(False) & ~GATED_AFTER_ALL
)


class Table(NamedTuple):
    """Schema of one table: its family, and expressions for the shape, the labels, the latency in us, and bad rows."""

    family: str
    shape: dict[str, pl.Expr]
    labels: dict[str, pl.Expr]
    latency_us: pl.Expr = col("latency") * 1e3
    kernel_source: pl.Expr = col("kernel_source")
    faults: tuple[tuple[str, pl.Expr], ...] = ()


def _weights(name: str) -> dict[str, pl.Expr]:
    label = col(name)
    meanings = {
        to: {spelling: row[at] for spelling, row in FORMATS.items()}
        for at, to in enumerate(("dtype", "format", "math"))
    }
    return {to: label.replace_strict(meaning, default=label) for to, meaning in meanings.items()}


def _short(name: str) -> pl.Expr:
    return col(name).replace(SHORT)


def _attention(math: str, cache: str) -> dict[str, pl.Expr]:
    return {"dtype": _short(math) + "/" + _short(cache), "format": _short(cache), "math": _short(math)}


def _elements(name: str) -> dict[str, pl.Expr]:
    return {"dtype": _short(name), "format": _short(name), "math": pl.lit(None, pl.String)}


def _collective(family: str, dtype: str) -> Table:
    size = _short(dtype).replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Float64)
    shape = {"bytes": (col("message_size") * size).cast(pl.Int64), "gpus": col("num_gpus")}
    return Table(family, shape, _elements(dtype))


HEADS = {"heads": col("num_heads"), "kv_heads": col("num_key_value_heads"), "head_dim": col("head_dim")}
WINDOW = {"window": col("window_size").fill_null(0)}
CHUNK = {"batch": col("batch_size"), "new_tokens": col("isl"), "cached_tokens": col("step")}
# a decode has one new token in addition to the cached ones
PAST = {"batch": col("batch_size"), "context": col("step") + col("isl") - 1}
EXPERTS = {
    "tokens": col("num_tokens"),
    "hidden": col("hidden_size"),
    "intermediate": col("inter_size") // col("moe_tp_size"),
    "experts": col("num_experts") // col("moe_ep_size"),
    "top_k": col("topk"),
    "moe_tp": col("moe_tp_size"),
    "moe_ep": col("moe_ep_size"),
    "expert_matrices": pl.when(TWO_MATRICES).then(2).otherwise(3).cast(pl.Int64),
}
MOE = _weights("moe_dtype") | {"distribution": col("distribution")}
LATENT = {"kv_lora_rank": pl.lit(512, pl.Int64), "rope_dim": pl.lit(64, pl.Int64)}  # DeepSeek-V3
BF16 = {"dtype": pl.lit("bf16"), "format": pl.lit("bf16"), "math": pl.lit("bf16")}
IS_CONVOLUTION = col("kernel_source").str.contains("conv1d")
FOR_PROMPTS = col("kernel_source").str.contains("conv1d_fn|chunk|flashkda_fwd")
# prefill kernels were also measured with one token per sequence, where engines run the decode kernel
SINGLE = ":single_tokens"
VERIFY = ":verify"  # several tokens of speculative decoding at once
# TensorRT-LLM's and SGLang 0.5.10's convolutions of gated delta nets take the time of only the key channels (from 0.8
# to 16 TB/s on H100 if all channels are counted), whatever the number of value heads.
KEYS_ONLY = (col("op_name") == "gdn") & ((col("framework") == "TRTLLM") | (col("version") == "0.5.10"))


def _linear(kernel: pl.Expr, key_width: pl.Expr, key_heads: pl.Expr, heads: pl.Expr, value_width: pl.Expr) -> Table:
    """Schema of linear attention: a short convolution over ``columns`` channels, or the recurrence over the values."""
    keys, values = key_heads * key_width, heads * value_width
    channels = pl.when(KEYS_ONLY).then(keys).otherwise(2 * keys + values)
    shape = {
        "rows": col("num_tokens"),
        "sequences": col("batch_size"),
        "columns": pl.when(IS_CONVOLUTION).then(channels).otherwise(values),
        "heads": heads,
        "kv_heads": key_heads,
        "head_dim": key_width,
        "v_head_dim": value_width,
        "width": pl.when(IS_CONVOLUTION).then(col("d_conv")).otherwise(None),
    }
    is_single = FOR_PROMPTS & (col("num_tokens") <= col("batch_size"))
    is_verify = col("phase") == "verify"
    use = pl.when(is_single).then(pl.lit(SINGLE)).when(is_verify).then(pl.lit(VERIFY)).otherwise(pl.lit(""))
    return Table("linear_attention", shape, BF16, kernel_source=kernel + use)


def _absorbed(operation: str) -> Table:
    """Schema of the two per-head products of absorbed MLA: 128 -> 512 before decode attention, 512 -> 128 after it."""
    n, k = (512, 128) if operation == "mla_gen_pre" else (128, 512)
    shape = {"batch": col("num_heads"), "m": col("num_tokens"), "n": pl.lit(n, pl.Int64), "k": pl.lit(k, pl.Int64)}
    return Table("batched_gemm", shape, _weights("bmm_dtype"))


def _exchange(tokens: str, top_k: str, group: pl.Expr, dtype: pl.Expr, kernel: pl.Expr, latency_us: pl.Expr) -> Table:
    """Schema of an all-to-all of tokens to their experts' ranks, or back; ``bytes``: sent by a GPU, a copy per rank."""
    size = dtype.replace_strict(ELEMENT_BYTES, default=2.0, return_dtype=pl.Float64)
    ranks = group * (1 - (1 - 1 / group) ** col(top_k))  # under uniform routing
    shape = {
        "bytes": (col(tokens) * col("hidden_size") * size * ranks).round().cast(pl.Int64),
        "gpus": group.cast(pl.Int64),
        "tokens": col(tokens),
        "hidden": col("hidden_size"),
        "experts": col("num_experts") // group,
        "top_k": col(top_k),
    }
    labels = {"dtype": dtype, "format": dtype, "math": pl.lit(None, pl.String)}
    return Table("all_to_all", shape, labels, latency_us, kernel)


def _deepep(mode: str, part: str, latency_us: pl.Expr) -> Table:
    # low-latency dispatch sends FP8, everything else BF16 (DeepEP README)
    dtype = pl.lit("fp8" if (mode, part) == ("low_latency", "dispatch") else "bf16")
    # the caller chooses the multiprocessors of a normal-mode kernel
    kernel = pl.lit(f"deepep_{mode}_{part}")
    if mode == "normal":
        kernel = pl.format(f"deepep_{mode}_{part}_{{}}sm", col(f"{part}_sms"))
    return _exchange("num_token", "num_topk", col("node_num") * col("node_gpus"), dtype, kernel, latency_us)


def _indexed(
    keys_per_query: pl.Expr, width: int, labels: dict[str, pl.Expr], faults: tuple[tuple[str, pl.Expr], ...] = ()
) -> Table:
    """Schema of a kernel of sparse attention: batch x isl queries after ``step`` cached tokens."""
    queries = col("batch_size") * col("isl")
    shape = {"queries": queries, "pairs": (queries * keys_per_query).cast(pl.Int64)}
    fields = {"heads": col("num_heads"), "width": pl.lit(width, pl.Int64)}
    return Table("sparse_attention", CHUNK | shape | fields, labels, faults=faults)


SCORED = pl.max_horizontal((col("step") + (col("isl") + 1) / 2) / col("compress_ratio"), 1.0)  # keys of a mean query
INDEX_WIDTH = 128  # of an indexer head (DeepSeek-V3.2); top-k only moves scores
LATENT_WIDTH = 1088  # 576 for the scores, 512 for the values
INDEX_TOP_K = 2048
EIGHT_BIT = {"dtype": pl.lit("fp8/fp8"), "format": pl.lit("fp8"), "math": pl.lit("fp8")}
SCORES = EIGHT_BIT | {"distribution": col("score_mode")}
CLIPPED = (("clipped_difference", col("latency") <= 0),)
NOTHING_SELECTED = (("nothing_to_select", col("latency") <= 0),)  # fewer keys than top-k: no kernel runs
COMPUTE_SCALE = Table(
    "quantize",
    {"rows": col("m"), "columns": col("k")},
    _weights("quant_dtype"),
    faults=CLIPPED,
    kernel_source=col("kernel_source") + ":compute_scale",
)
# two sites a layer; the library, of the names of its kernels
STREAMS = {"rows": col("num_tokens"), "columns": col("hidden_size"), "width": col("hc_mult")}
MIXING = Table(
    "hyper_connection", STREAMS, BF16, col("latency") * 1e3 / col("num_sites"),
    pl.format("{}:{}", col("kernel_source").str.extract("(tilelang|torch|trtllm)"), col("op_name")),
)  # fmt: skip
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}

DELTA = (col("head_k_dim"), col("num_k_heads"), col("num_v_heads"), col("head_v_dim"))

# file stem -> its tables by op_name; "" takes every row
TABLES: dict[str, dict[str, Table]] = {
    "gemm_perf": {"": Table("gemm", {name: col(name) for name in "mnk"}, _weights("gemm_dtype"))},
    "context_attention_perf": {
        "": Table("prefill_attention", CHUNK | HEADS | WINDOW, _attention("attn_dtype", "kv_cache_dtype"))
    },
    "generation_attention_perf": {
        "": Table("decode_attention", PAST | HEADS | WINDOW, _attention("attn_dtype", "kv_cache_dtype"))
    },
    "encoder_attention_perf": {
        "": Table("encoder_attention", {"batch": col("batch_size"), "new_tokens": col("isl"), "heads": col("num_heads"),
                  "kv_heads": col("num_heads"), "head_dim": col("head_dim")}, _attention("attn_dtype", "attn_dtype"))
    },
    "context_mla_perf": {
        "": Table("mla_prefill", CHUNK | {"heads": col("num_heads"), "head_dim": pl.lit(192, pl.Int64),
                  "v_head_dim": pl.lit(128, pl.Int64)}, _attention("mla_dtype", "kv_cache_dtype"))
    },
    "generation_mla_perf": {
        "": Table("mla_decode", PAST | {"heads": col("num_heads")} | LATENT, _attention("mla_dtype", "kv_cache_dtype"))
    },
    "mla_bmm_perf": {operation: _absorbed(operation) for operation in ("mla_gen_pre", "mla_gen_post")},
    "moe_perf": {"": Table("moe", EXPERTS, MOE)},
    "wideep_context_moe_perf": {"": Table("moe", EXPERTS, MOE, kernel_source=col("kernel_source") + "_context")},
    "wideep_generation_moe_perf": {"": Table("moe", EXPERTS, MOE, kernel_source=col("kernel_source") + "_generation")},
    "wideep_moe_perf": {"": Table("moe", EXPERTS | {"experts": col("num_slots") // col("moe_ep_size")}, MOE)},
    "computescale_perf": {"": COMPUTE_SCALE},
    "scale_matrix_perf": {"": COMPUTE_SCALE._replace(faults=(), kernel_source=col("kernel_source") + ":scale_matrix")},
    "gdn_perf": {"": _linear(col("kernel_source"), *DELTA)},
    "kda_perf": {"": _linear("kda:" + col("kernel_source"), *DELTA)},
    # Mamba-2 has a state width instead of a key width, shared by groups of heads
    "mamba2_perf": {
        "": _linear("mamba2:" + col("kernel_source"), col("d_state"), col("n_groups"), col("nheads"), col("head_dim"))
    },
    "mhc_module_perf": {"pre": MIXING, "post": MIXING},
    "nccl_perf": {operation: _collective(family, "nccl_dtype") for operation, family in COLLECTIVES.items()},
    "oneccl_perf": {operation: _collective(family, "nccl_dtype") for operation, family in COLLECTIVES.items()},
    "custom_allreduce_perf": {"": _collective("all_reduce", "allreduce_dtype")},
    "wideep_deepep_ll_perf": {
        "dispatch": _deepep("low_latency", "dispatch", col("dispatch_avg_t_us")),
        "combine": _deepep("low_latency", "combine", col("combine_avg_t_us")),
    },
    "wideep_deepep_normal_perf": {
        "dispatch": _deepep("normal", "dispatch", col("dispatch_transmit_us") + col("dispatch_notify_us")),
        "combine": _deepep("normal", "combine", col("combine_transmit_us") + col("combine_notify_us")),
    },
    "moe_a2a_perf": {
        "": _exchange("num_tokens", "topk", col("ep_size"), _short("comm_dtype").replace("default", "bf16"),
                      col("comm_backend") + "_" + col("phase"), col("latency"))
    },
    "trtllm_alltoall_perf": {
        "": _exchange("num_tokens", "topk", col("moe_ep_size"), _short("moe_dtype"),
                      col("kernel_source") + "_" + col("op_name"), col("latency") * 1e3)
    },
    "glm5_mqa_logits_module_perf": {"": _indexed(SCORED, INDEX_WIDTH, EIGHT_BIT)},
    "glm5_topk_module_perf": {"": _indexed(SCORED, 0, SCORES, NOTHING_SELECTED)},
    "glm5_dsa_attn_module_perf": {
        "": _indexed(pl.min_horizontal(SCORED, INDEX_TOP_K), LATENT_WIDTH, _attention("mla_dtype", "kv_cache_dtype"))
    },
    "dsv4_paged_mqa_logits_module_perf": {"": _indexed(SCORED, INDEX_WIDTH, EIGHT_BIT)},
    "dsv4_hca_attn_module_perf": {"": _indexed(SCORED, LATENT_WIDTH, _attention("mla_dtype", "kv_cache_dtype"))},
    "dsv4_csa_topk_calib_perf": {"": _indexed(SCORED, 0, SCORES, NOTHING_SELECTED)},
}  # fmt: skip
# files of which one row has a measurement of each of its tables
SPLIT = ("wideep_deepep_ll_perf", "wideep_deepep_normal_perf")
OPTIONAL = {"window_size": pl.Int64, "default_eligible": pl.Boolean} | dict.fromkeys(
    ("score_mode", "framework", "version", "device"), pl.String
)
# columns that are known and not read
LEFT_OUT = {
    *("op_name", "framework", "version", "device", "tp_size", "gemm_type", "architecture", "model", "model_name"),
    *("power", "power_limit", "seq_len", "d_model", "beam_width", "local_num_heads", "moe_kernel", "dp_num_tokens"),
    *("simulation_mode", "rank0_num_tokens", "chunk_size", "backend", "implementation", "dispatch_bandwidth_gbps"),
    *(
        "combine_bandwidth_gbps",
        "notify_us",
        "sms",
        "transmit_us",
        "wire_dtype",
        "sample_count",
        "node_gpus",
        "default_eligible",
        "sinkhorn_iters",
    ),
}
# tables of whole layers or several kernels, including projections, which belong to no kernel family
MODULES = {
    "mla_context_module_perf": "MLA layer with its projections",
    "mla_generation_module_perf": "MLA layer with its projections",
    "wideep_context_mla_perf": "MLA layer with its projections",
    "wideep_generation_mla_perf": "MLA layer with its projections",
    "dsa_context_module_perf": "DeepSeek sparse attention layer with its projections",
    "dsa_generation_module_perf": "DeepSeek sparse attention layer with its projections",
    "dsv4_csa_context_module_perf": "compressed sparse attention layer",
    "dsv4_csa_generation_module_perf": "compressed sparse attention layer",
    "dsv4_hca_context_module_perf": "heavily compressed attention layer",
    "dsv4_hca_generation_module_perf": "heavily compressed attention layer",
    "msa_context_module_perf": "MiniMax sparse attention layer with its projections",
    "msa_generation_module_perf": "MiniMax sparse attention layer with its projections",
    "dsv41_module_perf": "DeepSeek-V4.1 launched without graphs: times of the host",
    "glm53_attention_module_perf": "attention layer of GLM-5.3 with its projections",
    "wideep_context_mlp_perf": "shared expert: two products and an activation",
    "wideep_generation_mlp_perf": "shared expert: two products and an activation",
    "dsv4_megamoe_module_perf": "dispatch, experts and combine over several GPUs in one",
}


@cache
def known_columns() -> frozenset[str]:
    """Return every column that a table's fields are read from, or that is known and not read."""
    fields = [
        field
        for tables in TABLES.values()
        for table in tables.values()
        for field in (
            *table.shape.values(),
            *table.labels.values(),
            table.latency_us,
            table.kernel_source,
            *(bad for _, bad in table.faults),
        )
    ]
    return frozenset(name for field in fields for name in field.meta.root_names()) | LEFT_OUT | OPTIONAL.keys()
