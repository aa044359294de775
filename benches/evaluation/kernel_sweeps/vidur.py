"""Reader of Vidur's profiles (Agrawal et al., MLSys 2024; microsoft/vidur): compute/<gpu>/<owner>/<model>/*.csv.

``mlp.csv``: one row per (tokens, tensor-parallel size) with the times of all token-wise operators of a layer, and
``attention.csv``: one row per batch of prefill chunks or decodes. Times are ms, medians of about 20 runs. Each time of
a row counts as one row read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from kernelsight.fitting.kernel_sweeps.devices import NOT_IN_CATALOGUE
from kernelsight.fitting.kernel_sweeps.points import Batch, measured, read_csv, reader, without_family

PUBLISHER = "Vidur"
# GPUs by folder; its documentation names DGX boxes for A100 and H100
GPUS = {"a100": "a100_sxm", "h100": "h100_sxm", "a40": "a40", "v100": "v100_sxm"}
MODEL = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
ATTENTION = ("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size", "prefill_chunk_size")
ATTENTION_TIMES = ("kv_cache_size", "is_prefill", "time_stats.attn_prefill.median", "time_stats.attn_decode.median")
LABELS = {"engine": "sarathi", "engine_version": "unstated", "dtype": "fp16", "format": "fp16", "math": "fp16"}

_TP = pl.col("num_tensor_parallel_workers")
_TOKENS, _HIDDEN = pl.col("num_tokens"), pl.col("n_embd")
_HEAD_DIM = pl.col("n_embd") // pl.col("n_head")
_QUERIES, _KEYS = pl.col("n_head") * _HEAD_DIM // _TP, pl.col("n_kv_head") * _HEAD_DIM // _TP
_INTERMEDIATE = pl.col("n_expanded_embd") // _TP
_UP = _INTERMEDIATE * pl.when(pl.col("use_gated_mlp")).then(2).otherwise(1)


def _product(n: pl.Expr, k: pl.Expr) -> tuple[str, dict[str, pl.Expr]]:
    return "gemm", {"m": _TOKENS, "n": n, "k": k}


def _rows(family: str, columns: pl.Expr) -> tuple[str, dict[str, pl.Expr]]:
    return family, {"rows": _TOKENS, "columns": columns}


# operator of mlp.csv -> family and per-GPU shape; the residual addition is not a kernel in today's engines
OPERATORS = {
    "emb": _rows("embedding", _HIDDEN),
    "input_layernorm": _rows("norm", _HIDDEN),
    "attn_pre_proj": _product(_QUERIES + 2 * _KEYS, _HIDDEN),
    "attn_rope": _rows("rope", _QUERIES + _KEYS),
    "attn_post_proj": _product(_HIDDEN, _QUERIES),
    "post_attention_layernorm": _rows("norm", _HIDDEN),
    "mlp_up_proj": _product(_UP, _HIDDEN),
    "mlp_act": _rows("activation", _INTERMEDIATE),
    "mlp_down_proj": _product(_HIDDEN, _INTERMEDIATE),
}


def _batches(file: Path) -> Iterator[Batch]:
    folders = file.resolve().parts
    gpu_folders = [folder for folder in folders if folder in GPUS]
    if file.name not in ("mlp.csv", "attention.csv") or not gpu_folders:
        height = read_csv(file, (), PUBLISHER).height
        yield without_family(
            gpu_folders[-1] if gpu_folders else file.parent.name,
            "unknown_table" if gpu_folders else NOT_IN_CATALOGUE,
            height,
        )
        return
    gpu = GPUS[gpu_folders[-1]]
    if file.name == "attention.csv":
        rows = read_csv(file, ATTENTION + ATTENTION_TIMES, PUBLISHER)
        for family, points in attention(rows, LABELS | {"dtype": "fp16/fp16"}):
            yield Batch(gpu, family, _sourced(points, file), {})
        return
    rows = read_csv(file, (*MODEL, *(f"time_stats.{name}.median" for name in OPERATORS)), PUBLISHER)
    for name, (family, shape) in OPERATORS.items():
        latency_us = pl.col(f"time_stats.{name}.median") * 1e3
        points = measured(rows, shape, LABELS | {"kernel_source": name}, latency_us)
        yield Batch(gpu, family, _sourced(points, file), {})


def attention(rows: pl.DataFrame, labels: dict[str, str]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield (family, measurements) of an attention profile: chunks after ``kv_cache_size`` tokens, and decodes.

    LLMServingSim's older profiles have the same columns.
    """
    workers, is_prefill = pl.col("num_tensor_parallel_workers"), pl.col("is_prefill")
    heads = {
        "batch": pl.col("batch_size"),
        "heads": pl.col("n_q_head") // workers,
        "kv_heads": pl.col("n_kv_head") // workers,
        "head_dim": pl.col("n_embd") // pl.col("n_q_head"),
        "window": pl.lit(0),
    }
    chunk = {"new_tokens": pl.col("prefill_chunk_size"), "cached_tokens": pl.col("kv_cache_size")}
    backend = pl.col("attention_backend") if "attention_backend" in rows.columns else pl.lit("FLASHINFER")
    for family, is_of_family, extra, time in (
        ("prefill_attention", is_prefill, chunk, "attn_prefill"),
        ("decode_attention", ~is_prefill, {"context": pl.col("kv_cache_size")}, "attn_decode"),
    ):
        latency_us = pl.col(f"time_stats.{time}.median").cast(pl.Float64) * 1e3
        kernel_labels = labels | {"kernel_source": backend}
        yield family, measured(rows.filter(is_of_family), heads | extra, kernel_labels, latency_us)


def _sourced(points: pl.DataFrame, file: Path) -> pl.DataFrame:
    return points.with_columns(pl.lit(f"Vidur/{'/'.join(file.parts[-4:])}").alias("source"))


read = reader(PUBLISHER, "vidur", "its data/profiling/compute folder, or a part of it", _batches)
