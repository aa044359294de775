"""Builds launches of MLA (multi-head latent attention) of single tokens, after absorption, by installed libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kernelsight.measure.cuda.attention import flash_version
from kernelsight.measure.cuda.libraries import Bench

# tokens of a page of latents: FlashMLA takes no other number
PAGE = 64
# width of a query before absorption, without its rotated part (DeepSeek-V3)
NOPE_WIDTH = 128


class Latent(NamedTuple):
    """Absorbed queries (batch, heads, rank + rope), latents (pages, PAGE, rank + rope), pages of sequences, lengths."""

    query: Any
    cache: Any
    pages: Any
    lengths: Any
    keys: int
    scale: float


def _latent(bench: Bench) -> Latent:
    sizes, (eight_bit_query, eight_bit_cache) = bench.sizes, bench.eight_bit
    batch, keys, rank = sizes["batch"], sizes["context"] + 1, sizes["kv_lora_rank"]
    width, pages = rank + sizes["rope_dim"], -(-keys // PAGE)
    query = bench.tensor(batch, sizes["heads"], width, eight_bit=eight_bit_query)
    cache = bench.tensor(batch * pages, PAGE, width, eight_bit=eight_bit_cache)
    bench.moved = batch * (keys * width * (1 if eight_bit_cache else 2) + 2 * sizes["heads"] * (width + rank))
    table = bench.scattered(batch * pages).view(batch, pages)
    scale = (NOPE_WIDTH + sizes["rope_dim"]) ** -0.5
    return Latent(query, cache, table, bench.full(keys, "int32", batch), keys, scale)


def flashinfer_decode(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's wrapper of absorbed MLA, with the backend that it chooses for this GPU."""
    latent, sizes = _latent(bench), bench.sizes
    batch, rank, bf16 = sizes["batch"], sizes["kv_lora_rank"], bench.torch.bfloat16
    query, cache = [(one[..., :rank], one[..., rank:]) for one in (latent.query, latent.cache)]
    output = bench.empty(batch, sizes["heads"], rank)
    wrapper = bench.library.mla.BatchMLAPagedAttentionWrapper(bench.workspace)
    wrapper.plan(
        qo_indptr=bench.starts(batch, 1), kv_indptr=bench.starts(batch, latent.pages.shape[1]),
        kv_indices=latent.pages.view(-1), kv_len_arr=latent.lengths, num_heads=sizes["heads"], head_dim_ckv=rank,
        head_dim_kpe=sizes["rope_dim"], page_size=PAGE, causal=False, sm_scale=latent.scale, q_data_type=bf16,
        kv_data_type=bf16,
    )  # fmt: skip
    given = {"q_nope": query[0], "q_pe": query[1], "ckv_cache": cache[0], "kpe_cache": cache[1], "out": output}
    return lambda: wrapper.run(**given)


def trtllm_gen(bench: Bench) -> Callable[[], Any]:
    """TensorRT-LLM's kernel in FlashInfer, as vLLM calls it on Blackwell."""
    latent, sizes = _latent(bench), bench.sizes
    options = {
        "workspace_buffer": bench.workspace, "qk_nope_head_dim": NOPE_WIDTH, "kv_lora_rank": sizes["kv_lora_rank"],
        "qk_rope_head_dim": sizes["rope_dim"], "block_tables": latent.pages, "seq_lens": latent.lengths,
        "max_seq_len": latent.keys, "bmm1_scale": latent.scale, "bmm2_scale": 1.0,
        "out": bench.empty(sizes["batch"], 1, sizes["heads"], sizes["kv_lora_rank"]),
    }  # fmt: skip
    attend, count = bench.library.mla.trtllm_batch_decode_with_kv_cache_mla, bench.gpu.properties["multiProcessorCount"]
    if counters := getattr(bench.library.utils, "get_trtllm_gen_multi_ctas_kv_counter_bytes", None):
        # without these, every call fills some with zeros
        size = counters(sizes["batch"], sizes["heads"], int(count))
        options["multi_ctas_kv_counter_buffer"] = bench.once("counters", lambda: bench.full(0, "uint8", size))
    query, cache = latent.query.unsqueeze(1), latent.cache.unsqueeze(1)
    return lambda: attend(query=query, kv_cache=cache, **options)


def flashmla(bench: Bench) -> Callable[[], Any]:
    """FlashMLA as vLLM calls it on Hopper; the schedule is made once for a step, and used by all layers."""
    latent, library, heads = _latent(bench), bench.library, bench.sizes["heads"]
    options = {
        "block_table": latent.pages, "cache_seqlens": latent.lengths, "head_dim_v": bench.sizes["kv_lora_rank"],
        "softmax_scale": latent.scale, "causal": True,
    }  # fmt: skip
    query, cache = latent.query.unsqueeze(1), latent.cache.unsqueeze(2)
    if bench.eight_bit[1]:
        make = lambda: library.get_mla_metadata_dense_fp8(latent.lengths, heads, 1)  # noqa: E731 - made once
        options["tile_scheduler_metadata"], options["num_splits"] = bench.once("schedule", make)
        scale = bench.full(1.0, "float32", 1)
        return lambda: library.flash_mla_with_kvcache_fp8(query, cache, descale_q=scale, descale_k=scale, **options)
    schedule, _ = bench.once("schedule", lambda: library.get_mla_metadata(latent.lengths, heads, 1))
    return lambda: library.flash_mla_with_kvcache(query, cache, tile_scheduler_metadata=schedule, **options)


def vllm_decode(bench: Bench) -> Callable[[], Any]:
    """FlashAttention 3 as vLLM calls it for absorbed MLA: the rotated part is the key, the latent the value."""
    latent, sizes, flash = _latent(bench), bench.sizes, bench.library
    batch, rank, starts = sizes["batch"], sizes["kv_lora_rank"], bench.starts(sizes["batch"], 1)
    version = flash_version(bench, sizes["rope_dim"])
    key, value = latent.cache[..., rank:].unsqueeze(-2), latent.cache[..., :rank].unsqueeze(-2)
    schedule = flash.get_scheduler_metadata(
        batch_size=batch, max_seqlen_q=1, max_seqlen_k=latent.keys, num_heads_q=sizes["heads"], num_heads_kv=1,
        headdim=sizes["rope_dim"], headdim_v=rank, cache_seqlens=latent.lengths, qkv_dtype=latent.query.dtype,
        cu_seqlens_q=starts, page_size=PAGE, causal=True, num_splits=0,
    )  # fmt: skip
    options = {
        "cu_seqlens_q": starts, "max_seqlen_q": 1, "seqused_k": latent.lengths, "max_seqlen_k": latent.keys,
        "block_table": latent.pages, "softmax_scale": latent.scale, "causal": True, "fa_version": version,
        "q_v": latent.query[..., :rank], "scheduler_metadata": schedule,
    }  # fmt: skip
    return lambda: flash.flash_attn_varlen_func(latent.query[..., rank:], key, value, **options)
