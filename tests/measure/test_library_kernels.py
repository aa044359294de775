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
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from kernelsight.fitting.training import call_rows
from kernelsight.measure.cuda.device import open_gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.library_kernels import LIBRARY_KERNELS
from kernelsight.measure.rows import sweep_schema
from kernelsight.measure.suite import FAMILIES, Point, number_formats
from tests.measure import on_host

FLASH = "q k v max_seqlen_q cu_seqlens_q max_seqlen_k cu_seqlens_k q_v dropout_p softmax_scale causal window_size "
FLASH += "softcap alibi_slopes deterministic return_attn_probs block_table seqused_k return_softmax_lse out "
FLASH += "scheduler_metadata q_descale k_descale v_descale num_splits fa_version s_aux"
SCHEDULE = "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens qkv_dtype headdim_v "
SCHEDULE += "cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new causal window_size has_softcap "
SCHEDULE += "num_splits pack_gqa sm_margin"
MLA = "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits softmax_scale causal"
# functions of libraries that are not installed here: their words in the source that library_kernels.csv states
WORDS = {
    "vllm.vllm_flash_attn": {
        "flash_attn_varlen_func": FLASH, "get_scheduler_metadata": SCHEDULE, "is_fa_version_supported": "fa_version",
    },
    "vllm.v1.attention.ops.flashmla": {
        "get_mla_metadata": "cache_seqlens heads heads_k", "flash_mla_with_kvcache": f"{MLA} is_fp8_kvcache indices",
        "get_mla_metadata_dense_fp8": "cache_seqlens num_q_tokens_per_head_k num_heads_k",
        "flash_mla_with_kvcache_fp8": f"{MLA} descale_q descale_k",
    },
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "is_fa_version_supported": True, "get_scheduler_metadata": "schedule", "get_mla_metadata": ("schedule", None),
    "get_mla_metadata_dense_fp8": ("schedule", "splits"),
}  # fmt: skip


class Case(NamedTuple):
    """A kernel, its format and sizes, the function that it calls, and what some of its words are given.

    A text is the type and shape of a tensor, ``bf16 2x3``.
    """

    family: str
    implementation: str
    dtype: str
    sizes: dict[str, int]
    function: str
    given: dict[str, Any]
    capability: float = 9.0


PROMPT = {"batch": 2, "new_tokens": 32, "cached_tokens": 96, "heads": 4, "head_dim": 192, "v_head_dim": 128}
TOKENS = {"batch": 3, "context": 199, "heads": 16, "kv_lora_rank": 512, "rope_dim": 64}
WRAPPER = "flashinfer.mla.BatchMLAPagedAttentionWrapper"
TRTLLM = "flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla"
CASES = [
    Case("mla_prefill", "flashinfer", "bf16/bf16", PROMPT, "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.plan",
         {"qo_indptr": [0, 32, 64], "kv_indptr": [0, 128, 256], "head_dim_qk": 192, "head_dim_vo": 128}),
    Case("mla_prefill", "flashinfer", "bf16/bf16", PROMPT, "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.run",
         {"q": "bf16 64x4x192", "k": "bf16 256x4x192", "v": "bf16 256x4x128", "out": "bf16 64x4x128"}),
    Case("mla_prefill", "flash_attention_vllm", "bf16/bf16", PROMPT, "vllm.vllm_flash_attn.flash_attn_varlen_func",
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
    Case("mla_decode", "flash_attention_vllm", "bf16/bf16", TOKENS, "vllm.vllm_flash_attn.flash_attn_varlen_func",
         {"q": "bf16 3x16x64", "q_v": "bf16 3x16x512", "k": "bf16 12x64x1x64", "v": "bf16 12x64x1x512",
          "block_table": "i32 3x4", "seqused_k": [200] * 3, "scheduler_metadata": "schedule", "fa_version": 3}),
]  # fmt: skip
SHORT = {"bfloat16": "bf16", "float8_e4m3fn": "fp8", "int32": "i32", "uint8": "u8", "float32": "f32"}


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
                call = recorder(words(each, listed)) if wanted else lambda *_, answer=answer, **__: answer
                setattr(module, each, call)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
        return calls
    if importlib.util.find_spec(root) is None:
        pytest.skip(f"{root} is not installed")
    owner: Any = importlib.import_module(root)
    *path, last = function.split(".")[1:]
    for part in path:
        owner = getattr(owner, part, None) or importlib.import_module(f"{owner.__name__}.{part}")
    if inspect.isclass(owner):
        for name in {"plan", "run"} - {last}:
            monkeypatch.setattr(owner, name, lambda *_, **__: None)
        monkeypatch.setattr(owner, "__init__", lambda self, workspace, *_: None)
    monkeypatch.setattr(owner, last, recorder(inspect.signature(getattr(owner, last))))
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
        got = found[name].tolist() if isinstance(wanted, list) else shown(found[name])
        assert got == wanted, name
    number_format, math = number_formats(case.family, case.dtype, kernel.implementation)
    row = {"gpu": "h200_sxm", "family": case.family, "implementation": kernel.implementation, "latency_us": 9.0}
    row |= {"engine": kernel.engine, "shape": point.sizes, "dtype": case.dtype, "format": number_format, "math": math}
    table = call_rows(pa.Table.from_pylist([row], sweep_schema()), case.family)
    assert kernel.bytes == pytest.approx(table["bytes"][0].as_py(), rel=0.05)
    kernel.close()


def test_every_kernel_beside_attention_has_a_case() -> None:
    tested = {(case.family, case.implementation, case.dtype) for case in CASES}
    beside = {name for name in LIBRARY_KERNELS if name[0] not in ("prefill_attention", "decode_attention", "moe")}
    assert tested == {(*name, dtype) for name in beside for dtype in LIBRARY_KERNELS[name].formats}


def test_a_kernel_of_another_gpu_or_format_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    on_host.install(monkeypatch)
    case = next(case for case in CASES if case.implementation == "trtllm_gen_mla")
    with pytest.raises(CannotMeasure, match=r"trtllm_gen_mla runs on compute capabilities 10\.0 to 10\.3, not 9\.0"):
        open_gpu(0, None).prepare(point_of(case))
    with pytest.raises(CannotMeasure, match="flashmla does not take bf16/fp8, but bf16/bf16 and fp8/fp8"):
        open_gpu(0, None).prepare(point_of(case)._replace(implementation="flashmla", dtype="bf16/fp8"))
