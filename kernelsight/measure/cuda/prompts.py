"""Builds launches of attention over contiguous keys and values: of MLA over prompts (causal), and of encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kernelsight.measure.cuda.attention import flash_version
from kernelsight.measure.cuda.libraries import Bench


class Prompt(NamedTuple):
    """Queries (new tokens, heads, width), keys, values and results, and where the sequences of both start."""

    query: Any
    key: Any
    value: Any
    output: Any
    starts: Any
    key_starts: Any
    new: int
    keys: int
    causal: bool


def _prompt(bench: Bench) -> Prompt:
    sizes = bench.sizes
    batch, new, heads, width = sizes["batch"], sizes["new_tokens"], sizes["heads"], sizes["head_dim"]
    value_width, keys = sizes.get("v_head_dim", width), new + sizes["cached_tokens"]
    query, key = (bench.tensor(batch * tokens, heads, width) for tokens in (new, keys))
    value, output = bench.tensor(batch * keys, heads, value_width), bench.empty(batch * new, heads, value_width)
    starts, causal = (bench.starts(batch, new), bench.starts(batch, keys)), bench.point.family == "mla_prefill"
    return Prompt(query, key, value, output, *starts, new, keys, causal)


def torch(bench: Bench) -> Callable[[], Any]:
    """PyTorch's scaled dot-product attention, every query over every key."""
    prompt, batch, attend = _prompt(bench), bench.sizes["batch"], bench.torch.nn.functional.scaled_dot_product_attention
    tensors = (prompt.query, prompt.key, prompt.value)
    q, k, v = (one.view(batch, -1, *one.shape[1:]).transpose(1, 2) for one in tensors)
    return lambda: attend(q, k, v)


def flashinfer(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's attention of contiguous keys and values, which may be narrower than the keys."""
    prompt, sizes, bf16 = _prompt(bench), bench.sizes, bench.torch.bfloat16
    wrapper = bench.library.BatchPrefillWithRaggedKVCacheWrapper(bench.workspace, "NHD")
    widths = {"head_dim_qk": sizes["head_dim"], "head_dim_vo": prompt.value.shape[-1]}
    heads = {"num_qo_heads": sizes["heads"], "num_kv_heads": sizes["heads"]}
    types = {"q_data_type": bf16, "kv_data_type": bf16}
    wrapper.plan(prompt.starts, prompt.key_starts, **heads, **widths, causal=prompt.causal, **types)
    return lambda: wrapper.run(prompt.query, prompt.key, prompt.value, out=prompt.output)


def vllm(bench: Bench) -> Callable[[], Any]:
    """FlashAttention as vLLM calls it for encoders, and for prompts of MLA with keys of 192 and values of 128."""
    prompt, width = _prompt(bench), bench.sizes["head_dim"]
    options = {
        "cu_seqlens_q": prompt.starts, "max_seqlen_q": prompt.new, "cu_seqlens_k": prompt.key_starts,
        "max_seqlen_k": prompt.keys, "causal": prompt.causal, "out": prompt.output, "softmax_scale": width**-0.5,
        "fa_version": flash_version(bench, width),
    }  # fmt: skip
    return lambda: bench.library.flash_attn_varlen_func(prompt.query, prompt.key, prompt.value, **options)
