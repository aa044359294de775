"""Every kernel family's latency model: expression, the columns it reads, its coefficients."""

from __future__ import annotations

from kernelsight.kernels import collectives, decode, gemm, linear, moe, prefill, sparse, streaming
from kernelsight.kernels.forms import Form, same

PREFILL_READS = ("batch", "new_tokens", "cached_tokens", "heads", "visible_pairs")
ROWS = ("rows", "columns")

FORMS: dict[str, Form] = {
    "gemm": Form(gemm.gemm, ("m", "n", "k"), same, gemm.COEFFICIENTS, 1.4),
    "batched_gemm": Form(gemm.batched_gemm, ("batch", "m", "n", "k"), same, gemm.BATCHED_COEFFICIENTS, 1.6),
    "prefill_attention": Form(
        prefill.attention, (*PREFILL_READS, "kv_heads", "head_dim", "window"), same, prefill.COEFFICIENTS, 1.6
    ),
    "encoder_attention": Form(prefill.attention, PREFILL_READS, same, prefill.COEFFICIENTS, 1.6),
    "mla_prefill": Form(prefill.attention, PREFILL_READS, same, prefill.COEFFICIENTS, 1.8),
    "decode_attention": Form(
        decode.decode_attention,
        ("batch", "context", "heads", "kv_heads", "head_dim", "window"),
        same,
        decode.COEFFICIENTS,
        1.8,
    ),
    "mla_decode": Form(
        decode.mla_decode, ("batch", "context", "heads", "kv_lora_rank", "rope_dim"), same, decode.COEFFICIENTS, 1.8
    ),
    **sparse.FORMS,
    **linear.FORMS,
    "moe": Form(
        moe.moe,
        ("tokens", "hidden", "intermediate", "local_experts", "top_k", "moe_ep", "active_experts"),
        moe.view,
        moe.COEFFICIENTS,
        2.0,
    ),
    **dict.fromkeys(
        ("norm", "activation", "rope", "kv_write", "embedding"),
        Form(streaming.streaming, ROWS, same, streaming.COEFFICIENTS, 1.6),
    ),
    "quantize": Form(streaming.quantize, ROWS, same, streaming.QUANTIZE_COEFFICIENTS, 1.6),
    "sampling": Form(streaming.streaming, ROWS, same, streaming.SAMPLING_COEFFICIENTS, 2.5),
    **collectives.FORMS,
}
