"""The functions that prepare a point's kernel on a GPU, by kernel family."""

from __future__ import annotations

from collections.abc import Callable

from kernelsight.measure.cuda import attention, collectives, copies, gemm, streaming
from kernelsight.measure.cuda.buffers import Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.suite import Point

_STREAMING = ("norm", "activation", "rope", "kv_write", "quantize", "embedding", "softmax", "sampling")
PREPARE: dict[str, Callable[[Gpu, Point], Prepared]] = {
    "gemm": gemm.product,
    "batched_gemm": gemm.product,
    **dict.fromkeys(_STREAMING, streaming.prepare),
    "launch": streaming.empty,
    "copy": copies.copy,
    "p2p": copies.peer,
    "prefill_attention": attention.prepare,
    "decode_attention": attention.prepare,
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), collectives.prepare),
}
