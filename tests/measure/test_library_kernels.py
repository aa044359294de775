"""Every kernel of library_kernels.csv beside attention: its call has the library's words, shapes and types.

Of an installed library the signature is its own; of another one the words are those of its source, as the row states.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.fitting.training import call_rows
from kernelsight.measure.cuda.device import open_gpu
from kernelsight.measure.cuda.libraries import Bench
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.library_kernels import LIBRARY_KERNELS
from kernelsight.measure.rows import sweep_schema
from kernelsight.measure.suite import FAMILIES, Point, number_formats
from tests.measure import on_host

# what an installed library warns of where it is imported is its own
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FLASH = "q k v max_seqlen_q cu_seqlens_q max_seqlen_k cu_seqlens_k q_v dropout_p softmax_scale causal window_size "
FLASH += "softcap alibi_slopes deterministic return_attn_probs block_table seqused_k return_softmax_lse out "
FLASH += "scheduler_metadata q_descale k_descale v_descale num_splits fa_version s_aux"
SCHEDULE = "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens qkv_dtype headdim_v "
SCHEDULE += "cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new causal window_size has_softcap "
SCHEDULE += "num_splits pack_gqa sm_margin"
MLA = "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits softmax_scale causal"
QUANTISED = "x group_size eps dtype column_major_scales tma_aligned_scales out_q use_ue8m0"
CONVOLVED = "x weight bias conv_states query_start_loc cache_indices has_initial_state activation pad_slot_id metadata"
# functions of libraries that are not installed here: their words in the source that library_kernels.csv states
WORDS = {
    "vllm.vllm_flash_attn": {
        "flash_attn_varlen_func": FLASH, "get_scheduler_metadata": SCHEDULE, "is_fa_version_supported": "fa_version",
    },
    "vllm.v1.attention.ops.flashmla": {
        "get_mla_metadata": "cache_seqlens heads heads_k", "flash_mla_with_kvcache": f"{MLA} is_fp8_kvcache indices",
        "get_mla_metadata_dense_fp8": "cache_seqlens num_q_tokens_per_head_k num_heads_k",
        "flash_mla_with_kvcache_fp8": f"{MLA} descale_q descale_k",
        "flash_mla_sparse_fwd": "q kv indices sm_scale d_v attn_sink topk_length",
    },
    "vllm.utils.deep_gemm": {
        "fp8_gemm_nt": "a b d c recipe compiled_dims disable_ue8m0_cast", "is_deep_gemm_e8m0_used": "",
    },
    "vllm.model_executor.layers.quantization.utils.fp8_utils": {
        "per_token_group_quant_fp8": QUANTISED, "deepgemm_post_process_fp8_weight_block":
        "wq ws quant_block_shape use_e8m0", "w8a8_triton_block_scaled_mm": "A B As Bs block_size output_dtype",
    },
    "vllm._custom_ops": {
        "scaled_fp8_quant": "input scale num_token_padding scale_ub use_per_token_if_dynamic output",
        "cutlass_scaled_mm": "a b scale_a scale_b out_dtype bias",
    },
    "vllm.model_executor.layers.fla.ops": {
        "chunk_gated_delta_rule": "q k v g beta scale initial_state output_final_state cu_seqlens head_first "
        "use_qk_l2norm_in_kernel", "fused_recurrent_gated_delta_rule": "q k v g beta scale initial_state "
        "inplace_final_state cu_seqlens ssm_state_indices num_accepted_tokens use_qk_l2norm_in_kernel",
    },
    "vllm.model_executor.layers.mamba.ops.causal_conv1d": {
        "causal_conv1d_fn": CONVOLVED, "causal_conv1d_update": "x conv_state weight bias activation conv_state_indices",
    },
    "vllm.v1.attention.backends.utils": {"compute_causal_conv1d_metadata": "query_start_loc_p_cpu device"},
    "vllm.model_executor.layers.fused_moe.fused_moe": {
        "fused_experts": "hidden_states w1 w2 topk_weights topk_ids inplace activation apply_router_weight_on_input "
        "global_num_experts expert_map quant_config",
    },
    "vllm.model_executor.layers.fused_moe.config": {
        "fp8_w8a8_moe_quant_config": "w1_scale w2_scale a1_scale a2_scale per_act_token_quant block_shape",
        "mxfp4_w4a16_moe_quant_config": "w1_scale w2_scale w1_bias w2_bias",
    },
    "vllm.model_executor.layers.quantization.utils.mxfp4_utils": {"_swizzle_mxfp4": "quant_tensor scale num_warps"},
    "triton_kernels.matmul_ogs": {"PrecisionConfig": "weight_scale flex_ctx", "FlexCtx": "rhs_data"},
    "vllm.model_executor.layers.fused_moe.gpt_oss_triton_kernels_moe": {
        "triton_kernel_moe_forward": "hidden_states w1 w2 gating_output topk renormalize activation quant_config",
    },
    "deep_gemm": {
        "fp8_mqa_logits": "q kv weights cu_seq_len_k_start cu_seq_len_k_end clean_logits", "get_num_sms": "",
        "get_paged_mqa_logits_metadata": "context_lens block_kv num_sms", "fp8_paged_mqa_logits":
        "q kv_cache weights context_lens block_table schedule_meta max_context_len clean_logits",
    },
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "is_fa_version_supported": True, "get_scheduler_metadata": "schedule", "get_mla_metadata": ("schedule", None),
    "get_mla_metadata_dense_fp8": ("schedule", "splits"), "get_paged_mqa_logits_metadata": "plan", "get_num_sms": 132,
    "is_deep_gemm_e8m0_used": False, "per_token_group_quant_fp8": ("rows", "scales"), "autotune": nullcontext(),
    "mm_fp4": None,
    "deepgemm_post_process_fp8_weight_block": ("weight", "block scales"), "nvfp4_quantize": ("rows", "scales"),
    "scaled_fp8_quant": ("rows", "scale"), "compute_causal_conv1d_metadata": ("nums", "batch", "offsets"),
    "fp8_w8a8_moe_quant_config": "scaled", "mxfp4_w4a16_moe_quant_config": "scaled",
    "_swizzle_mxfp4": ("weight", "flex", "scale"),
}  # fmt: skip


class Case(NamedTuple):
    """A kernel, its format and sizes, the function that it calls, and what some of its words are given.

    A text is the type and shape of a tensor, ``bf16 2x3``. ``within``: how far its bytes are from those that training
    counts, which takes keys of sparse attention to have 8 bits.
    """

    family: str
    implementation: str
    dtype: str
    sizes: dict[str, int]
    function: str
    given: dict[str, Any]
    capability: float = 9.0
    within: float = 0.05


FLASH_CALL = "vllm.vllm_flash_attn.flash_attn_varlen_func"
PRODUCT = {"m": 16, "n": 1024, "k": 2048}
IMAGES = {"batch": 2, "new_tokens": 32, "heads": 4, "head_dim": 64}
SCORES = {"batch": 1, "new_tokens": 8, "cached_tokens": 120, "queries": 8, "pairs": 996, "heads": 64, "width": 128}
PAGED = {"batch": 3, "new_tokens": 1, "cached_tokens": 199, "queries": 3, "pairs": 600, "heads": 64, "width": 128}
LATENTS = {**SCORES, "new_tokens": 64, "cached_tokens": 4032, "queries": 64, "pairs": 131072, "width": 1088}
DELTA = {"rows": 64, "sequences": 2, "columns": 512, "heads": 4, "kv_heads": 2, "head_dim": 128, "v_head_dim": 128}
TAPS = {**DELTA, "columns": 1024, "width": 4}
EXPERTS = {"tokens": 96, "hidden": 256, "intermediate": 128, "experts": 16, "top_k": 4}
FP8_UTILS, OPS = "vllm.model_executor.layers.quantization.utils.fp8_utils", "vllm.model_executor.layers.fla.ops"
CONV = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
FUSED, MOE = "vllm.model_executor.layers.fused_moe.fused_moe", "flashinfer.fused_moe.cutlass_fused_moe"
PROMPT = {"batch": 2, "new_tokens": 32, "cached_tokens": 96, "heads": 4, "head_dim": 192, "v_head_dim": 128}
TOKENS = {"batch": 3, "context": 199, "heads": 16, "kv_lora_rank": 512, "rope_dim": 64}
WRAPPER = "flashinfer.mla.BatchMLAPagedAttentionWrapper"
TRTLLM = "flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla"
CASES = [
    Case("mla_prefill", "flashinfer", "bf16/bf16", PROMPT, "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.plan",
         {"qo_indptr": [0, 32, 64], "kv_indptr": [0, 128, 256], "head_dim_qk": 192, "head_dim_vo": 128}),
    Case("mla_prefill", "flashinfer", "bf16/bf16", PROMPT, "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.run",
         {"q": "bf16 64x4x192", "k": "bf16 256x4x192", "v": "bf16 256x4x128", "out": "bf16 64x4x128"}),
    Case("mla_prefill", "flash_attention_vllm", "bf16/bf16", PROMPT, FLASH_CALL,
         {"q": "bf16 64x4x192", "v": "bf16 256x4x128", "max_seqlen_q": 32, "max_seqlen_k": 128, "fa_version": 3,
          "cu_seqlens_k": [0, 128, 256], "causal": True, "softmax_scale": 192**-0.5}),
    Case("mla_decode", "flashinfer", "bf16/bf16", TOKENS, f"{WRAPPER}.plan",
         {"qo_indptr": [0, 1, 2, 3], "kv_indptr": [0, 4, 8, 12], "kv_len_arr": [200] * 3, "num_heads": 16,
          "head_dim_ckv": 512, "head_dim_kpe": 64, "page_size": 64, "sm_scale": 192**-0.5}),
    Case("mla_decode", "flashinfer", "bf16/bf16", TOKENS, f"{WRAPPER}.run",
         {"q_nope": "bf16 3x16x512", "q_pe": "bf16 3x16x64", "ckv_cache": "bf16 12x64x512",
          "kpe_cache": "bf16 12x64x64", "out": "bf16 3x16x512"}),
    *(Case("mla_decode", "trtllm_gen_mla", f"{kind}/{kind}", TOKENS, TRTLLM,
           {"query": f"{kind} 3x1x16x576", "kv_cache": f"{kind} 12x1x64x576", "block_tables": "i32 3x4",
            "seq_lens": [200] * 3, "max_seq_len": 200, "qk_nope_head_dim": 128, "bmm1_scale": 192**-0.5,
            "out": "bf16 3x1x16x512", "multi_ctas_kv_counter_buffer": "u8 544"}, 10.0)
      for kind in ("bf16", "fp8")),
    Case("mla_decode", "flashmla", "bf16/bf16", TOKENS, "vllm.v1.attention.ops.flashmla.flash_mla_with_kvcache",
         {"q": "bf16 3x1x16x576", "k_cache": "bf16 12x64x1x576", "block_table": "i32 3x4", "cache_seqlens": [200] * 3,
          "head_dim_v": 512, "tile_scheduler_metadata": "schedule", "softmax_scale": 192**-0.5, "causal": True}),
    Case("mla_decode", "flashmla", "fp8/fp8", TOKENS, "vllm.v1.attention.ops.flashmla.flash_mla_with_kvcache_fp8",
         {"q": "fp8 3x1x16x576", "k_cache": "fp8 12x64x1x576", "tile_scheduler_metadata": "schedule",
          "num_splits": "splits", "descale_q": [1.0], "descale_k": [1.0]}),
    Case("mla_decode", "flash_attention_vllm", "bf16/bf16", TOKENS, FLASH_CALL,
         {"q": "bf16 3x16x64", "q_v": "bf16 3x16x512", "k": "bf16 12x64x1x64", "v": "bf16 12x64x1x512",
          "block_table": "i32 3x4", "seqused_k": [200] * 3, "scheduler_metadata": "schedule", "fa_version": 3}),
    Case("encoder_attention", "flash_attention_vllm", "bf16/bf16", IMAGES, FLASH_CALL,
         {"q": "bf16 64x4x64", "v": "bf16 64x4x64", "causal": False, "max_seqlen_k": 32}),
    Case("encoder_attention", "flashinfer", "bf16/bf16", IMAGES, "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.plan",
         {"qo_indptr": [0, 32, 64], "kv_indptr": [0, 32, 64], "head_dim_vo": 64, "causal": False}),
    Case("gemm", "deepgemm", "fp8_block", PRODUCT, "vllm.utils.deep_gemm.fp8_gemm_nt",
         {"a": ("rows", "scales"), "b": ("weight", "block scales"), "d": "bf16 16x1024"}),
    Case("gemm", "deepgemm", "fp8_block", PRODUCT, f"{FP8_UTILS}.deepgemm_post_process_fp8_weight_block",
         {"wq": "fp8 1024x2048", "ws": "f32 8x16", "quant_block_shape": (128, 128), "use_e8m0": False}),
    Case("gemm", "deepgemm", "fp8_block", PRODUCT, f"{FP8_UTILS}.per_token_group_quant_fp8",
         {"x": "bf16 16x2048", "group_size": 128, "column_major_scales": True, "use_ue8m0": False}),
    Case("gemm", "triton_block_fp8", "fp8_block", PRODUCT, f"{FP8_UTILS}.w8a8_triton_block_scaled_mm",
         {"A": "rows", "B": "fp8 1024x2048", "As": "scales", "Bs": "f32 8x16", "block_size": [128, 128]}),
    Case("gemm", "flashinfer_block_fp8", "fp8_block", PRODUCT, "flashinfer.gemm.fp8_blockscale_gemm_sm90",
         {"input": "bf16 16x2048", "weight": "fp8 1024x2048", "weight_scale": "f32 8x16", "out": "bf16 16x1024"}),
    *(Case("gemm", name, "nvfp4", PRODUCT, "flashinfer.mm_fp4",
           {"a": "rows", "b": "u8 1024x1024", "a_descale": "scales", "b_descale": "u8 128x1024", "alpha": [1.0],
            "out": "bf16 16x1024", "backend": backend}, 10.0)
      for name, backend in (("cutlass_nvfp4", "cutlass"), ("cutedsl_nvfp4", "cute-dsl"))),
    Case("gemm", "cutlass_nvfp4", "nvfp4", PRODUCT, "flashinfer.nvfp4_quantize",
         {"a": "bf16 16x2048", "a_global_sf": [1.0], "do_shuffle": False}, 10.0),
    Case("gemm", "cutlass_fp8", "fp8", PRODUCT, "vllm._custom_ops.cutlass_scaled_mm",
         {"a": "rows", "b": "fp8 2048x1024", "scale_a": "scale", "scale_b": [1.0]}),
    Case("sparse_attention", "deepgemm_mqa_logits", "fp8/fp8", SCORES, "deep_gemm.fp8_mqa_logits",
         {"q": "fp8 8x64x128", "weights": "f32 8x64", "cu_seq_len_k_start": [0] * 8,
          "cu_seq_len_k_end": list(range(121, 129)), "clean_logits": False}),
    Case("sparse_attention", "deepgemm_paged_mqa_logits", "fp8/fp8", PAGED, "deep_gemm.fp8_paged_mqa_logits",
         {"q": "fp8 3x1x64x128", "kv_cache": "u8 12x64x1x132", "weights": "f32 3x64", "context_lens": [200] * 3,
          "block_table": "i32 3x4", "schedule_meta": "plan", "max_context_len": 200}),
    Case("sparse_attention", "flashmla_sparse", "bf16/bf16", LATENTS,
         "vllm.v1.attention.ops.flashmla.flash_mla_sparse_fwd",
         {"q": "bf16 64x64x576", "kv": "bf16 4096x1x576", "indices": "i32 64x1x2048", "d_v": 512},
         within=0.25),
    Case("linear_attention", "gated_delta_net_vllm", "bf16", DELTA, f"{OPS}.chunk_gated_delta_rule",
         {"q": "bf16 1x64x2x128", "v": "bf16 1x64x4x128", "g": "f32 1x64x4", "beta": "bf16 1x64x4",
          "initial_state": "f32 2x4x128x128", "cu_seqlens": [0, 32, 64], "output_final_state": True}),
    Case("linear_attention", "gated_delta_net_vllm", "bf16", {**DELTA, "rows": 2},
         f"{OPS}.fused_recurrent_gated_delta_rule", {"q": "bf16 1x2x2x128", "cu_seqlens": [0, 1, 2],
          "initial_state": "f32 2x4x128x128", "ssm_state_indices": "i32 2", "inplace_final_state": True}),
    Case("linear_attention", "gated_delta_net_vllm", "bf16", TAPS, f"{CONV}.causal_conv1d_fn",
         {"x": "bf16 1024x64", "weight": "bf16 1024x4", "conv_states": "bf16 2x1024x3", "has_initial_state": [True] * 2,
          "query_start_loc": [0, 32, 64],
          "metadata": types.SimpleNamespace(nums_dict="nums", batch_ptr="batch", token_chunk_offset_ptr="offsets")}),
    Case("linear_attention", "gated_delta_net_vllm", "bf16", {**TAPS, "rows": 2}, f"{CONV}.causal_conv1d_update",
         {"x": "bf16 2x1024", "conv_state": "bf16 2x1024x3", "weight": "bf16 1024x4", "activation": "silu"}),
    *(Case("moe", "fused_moe_vllm", kind, EXPERTS, f"{FUSED}.fused_experts",
           {"w1": f"{stored} 16x256x256", "w2": f"{stored} 16x256x128", "topk_ids": "i32 96x4", **scaled})
      for kind, stored, scaled in (("bf16", "bf16", {}), ("fp8", "fp8", {"quant_config": "scaled"}),
                                   ("fp8_block", "fp8", {"quant_config": "scaled"}))),
    Case("moe", "fused_moe_vllm", "bf16", {**EXPERTS, "moe_ep": 2}, f"{FUSED}.fused_experts",
         {"global_num_experts": 32, "expert_map": [*range(16), *[-1] * 16], "w1": "bf16 16x256x256"}),
    Case("moe", "triton_kernels_moe", "w4a16_mxfp4", EXPERTS,
         "vllm.model_executor.layers.fused_moe.gpt_oss_triton_kernels_moe.triton_kernel_moe_forward",
         {"hidden_states": "bf16 96x256", "w1": "weight", "gating_output": "bf16 96x16", "topk": 4, "renormalize": True,
          "quant_config": "scaled"}),
    Case("moe", "triton_kernels_moe", "w4a16_mxfp4", EXPERTS, f"{FP8_UTILS[:-9]}mxfp4_utils._swizzle_mxfp4",
         {"quant_tensor": "u8 16x256x64", "scale": "u8 16x256x4", "num_warps": 8}),
    *(Case("moe", "flashinfer_cutlass_moe", kind, {**EXPERTS, "moe_ep": 2}, MOE,
           {"input": f"{kind} 96x256", "fc1_expert_weights": f"{kind} 16x256x256", "ep_size": 2,
            "output": "bf16 96x256"})
      for kind in ("bf16", "fp8")),
    Case("moe", "flashinfer_cutlass_moe_nvfp4", "nvfp4", EXPERTS, MOE,
         {"input": "bf16 96x256", "fc1_expert_weights": "i64 16x256x16", "fc2_expert_weights": "i64 16x256x8"}, 10.0),
]  # fmt: skip
SHORT = {"int64": "i64", "bfloat16": "bf16", "float8_e4m3fn": "fp8", "int32": "i32", "uint8": "u8", "float32": "f32"}


def words(name: str, listed: str) -> inspect.Signature:
    """Return a signature of words without defaults, all of which may be left out."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(word, kind, default=None) for word in listed.split()])


def replaced(function: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a record of its calls in the place of a function, or of the methods plan and run of a class."""
    calls: list[dict[str, Any]] = []

    def recorder(signature: inspect.Signature, answer: Any = None) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(signature.bind(*given, **named).arguments)
            return answer

        return call

    root = function.partition(".")[0]
    if root in {module.partition(".")[0] for module in WORDS}:
        for name, functions in WORDS.items():
            module = types.ModuleType(name)
            for each, listed in functions.items():
                wanted = f"{name}.{each}" == function
                answer = ANSWERS.get(each)
                call = recorder(words(each, listed), answer) if wanted else lambda *_, answer=answer, **__: answer
                setattr(module, each, call)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
        return calls
    if importlib.util.find_spec(root) is None:
        pytest.skip(f"{root} is not installed")
    owner: Any = importlib.import_module(root)
    *path, last = function.split(".")[1:]
    for name in {"nvfp4_quantize", "autotune", "mm_fp4"} - {last}:
        monkeypatch.setattr(owner, name, lambda *_, answer=ANSWERS[name], **__: answer)
    for part in path:
        owner = getattr(owner, part, None) or importlib.import_module(f"{owner.__name__}.{part}")
    if inspect.isclass(owner):
        for name in {"plan", "run"} - {last}:
            monkeypatch.setattr(owner, name, lambda *_, **__: None)
        monkeypatch.setattr(owner, "__init__", lambda self, workspace, *_: None)
    monkeypatch.setattr(owner, last, recorder(inspect.signature(getattr(owner, last)), ANSWERS.get(last)))
    return calls


def shown(value: Any) -> Any:
    """Return a tensor as its type and shape, or as its values where it is short and stated so."""
    return value if not hasattr(value, "dtype") else f"{SHORT[str(value.dtype).rpartition('.')[2]]} " + "x".join(
        str(size) for size in value.shape
    )  # fmt: skip


def point_of(case: Case) -> Point:
    family = FAMILIES[case.family]
    sizes = tuple(sorted((dict(family.defaults) | case.sizes).items()))
    return Point(case.family, case.implementation, case.dtype, family.caches[0], sizes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.implementation}-{case.dtype}-{case.function}")
def test_a_library_is_called_with_its_own_words(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    on_host.install(monkeypatch)
    calls, gpu, point = replaced(case.function, monkeypatch), open_gpu(0, None), point_of(case)
    gpu.properties["major"], gpu.properties["minor"] = int(case.capability), round(case.capability % 1 * 10)
    kernel = gpu.prepare(point)
    found = calls[-1]
    for name, wanted in case.given.items():
        by_value = isinstance(wanted, list) and hasattr(found[name], "tolist")
        got = found[name].tolist() if by_value else shown(found[name])
        assert got == wanted, name
    number_format, math = number_formats(case.family, case.dtype, kernel.implementation)
    row = {"gpu": "h200_sxm", "family": case.family, "implementation": kernel.implementation, "latency_us": 9.0}
    row |= {"engine": kernel.engine, "shape": point.sizes, "dtype": case.dtype, "format": number_format, "math": math}
    table = call_rows(pa.Table.from_pylist([row], sweep_schema()), case.family)
    assert kernel.bytes == pytest.approx(table["bytes"][0].as_py(), rel=case.within)
    kernel.close()


def test_every_kernel_beside_attention_has_a_case() -> None:
    tested = {(case.family, case.implementation, case.dtype) for case in CASES}
    beside = {name for name in LIBRARY_KERNELS if name[0] not in ("prefill_attention", "decode_attention")}
    beside -= {("encoder_attention", "torch_sdpa")}  # computed below
    assert tested == {(*name, dtype) for name in beside for dtype in LIBRARY_KERNELS[name].formats}


def test_a_kernel_of_another_gpu_or_format_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    on_host.install(monkeypatch)
    case = next(case for case in CASES if case.implementation == "trtllm_gen_mla")
    with pytest.raises(CannotMeasure, match=r"trtllm_gen_mla runs on compute capabilities 10\.0 to 10\.3, not 9\.0"):
        open_gpu(0, None).prepare(point_of(case))
    with pytest.raises(CannotMeasure, match="flashmla does not take bf16/fp8, but bf16/bf16 and fp8/fp8"):
        open_gpu(0, None).prepare(point_of(case)._replace(implementation="flashmla", dtype="bf16/fp8"))


def test_pytorch_computes_the_attention_of_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    on_host.install(monkeypatch)
    tensor, made = Bench.tensor, []
    monkeypatch.setattr(Bench, "tensor", lambda *words, **named: made.append(tensor(*words, **named)) or made[-1])
    kernel = open_gpu(0, None).prepare(point_of(Case("encoder_attention", "torch_sdpa", "bf16/bf16", IMAGES, "", {})))
    q, k, v = (one.view(2, 32, 4, 64).float().numpy() for one in made)
    weights = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) / 8.0)
    wanted = np.einsum("bhqk,bkhd->bhqd", weights / weights.sum(axis=3, keepdims=True), v)
    found = kernel._launches[0]().float().numpy()
    assert found.shape == wanted.shape and np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max() + 0.01
