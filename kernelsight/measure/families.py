"""Measurable kernels by family: the sizes of a shape, implementations, number formats, and cache states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Family(NamedTuple):
    """One family; the first implementation and number format are the defaults of a suite.

    ``sizes``: required fields of ``sweep_points.shape``; ``defaults``: optional ones.
    """

    sizes: tuple[str, ...]
    implementations: tuple[str, ...]
    dtypes: tuple[str, ...] = ("bf16",)
    caches: tuple[str, ...] = ("cold", "warm")
    defaults: Mapping[str, int] = {}


_ROWS = ("rows", "columns")
_PREFILL = ("batch", "new_tokens", "heads", "kv_heads", "head_dim")
_DECODE = ("batch", "context", "heads", "kv_heads", "head_dim")
_ATTENTION = ("torch_sdpa", "flashinfer", "cudnn_frontend", "flash_attention_vllm")
_BYTES = ("bytes",)
_CACHES = ("bf16/bf16", "bf16/fp8")
# kernels that read an 8-bit cache with 8-bit queries: their arithmetic is 8-bit too
EIGHT_BIT_QUERIES = frozenset({"flash_attention_3", "flash_attention_4"})
_COPIES = ("memcpy_device", "memcpy_h2d_pinned", "memcpy_d2h_pinned", "memcpy_h2d_pageable", "memcpy_d2h_pageable")
FAMILIES: dict[str, Family] = {
    "gemm": Family(("m", "n", "k"), ("cublas",), ("bf16", "fp16", "fp8", "int8")),
    "batched_gemm": Family(("batch", "m", "n", "k"), ("cublas",), ("bf16", "fp16")),
    "norm": Family(_ROWS, ("rms_norm", "fused_add_rms_norm")),
    "activation": Family(_ROWS, ("silu_and_mul", "gelu_and_mul")),
    "rope": Family((*_ROWS, "head_dim"), ("rope_neox",)),
    "kv_write": Family((*_ROWS, "head_dim"), ("paged_kv_write",), ("bf16", "fp8")),
    "quantize": Family(_ROWS, ("quantize_per_tensor", "quantize_per_token", "quantize_per_block"), ("fp8",)),
    "embedding": Family(_ROWS, ("embedding_gather",), caches=("cold",)),
    "softmax": Family(_ROWS, ("softmax",), ("fp32",)),
    "sampling": Family(_ROWS, ("top_k_top_p", "argmax"), ("fp32",)),
    "copy": Family(_BYTES, _COPIES, ("bytes",), caches=("cold",)),
    "launch": Family((), ("graph_launch", "eager_launch", "empty_graph"), ("none",), caches=("warm",)),
    "prefill_attention": Family(
        _PREFILL, _ATTENTION, _CACHES, caches=("warm",), defaults={"cached_tokens": 0, "window": 0}
    ),
    "decode_attention": Family(_DECODE, _ATTENTION, _CACHES, caches=("cold",), defaults={"window": 0}),
    "p2p": Family(("bytes", "gpus"), ("memcpy_peer",), ("bf16",), caches=("warm",)),
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter"), Family(("bytes", "gpus"), ("nccl",), caches=("warm",))
    ),
}


def number_formats(family: str, dtype: str, implementation: str = "") -> tuple[str | None, str | None]:
    """Return (format, math) of ``sweep_points``: the format of weight or cache, and the arithmetic.

    >>> number_formats("decode_attention", "bf16/fp8"), number_formats("gemm", "fp8"), number_formats("copy", "bytes")
    (('fp8', 'bf16'), ('fp8', 'fp8'), (None, None))
    >>> number_formats("decode_attention", "bf16/fp8", "flash_attention_3")
    ('fp8', 'fp8')
    """
    if "/" in dtype:
        math, _, stored = dtype.partition("/")
        if implementation in EIGHT_BIT_QUERIES:
            return stored, stored
        return stored, math
    if family in ("gemm", "batched_gemm"):
        return dtype, dtype
    return (dtype, None) if dtype in ("bf16", "fp16", "fp32", "fp8", "int8") else (None, None)
