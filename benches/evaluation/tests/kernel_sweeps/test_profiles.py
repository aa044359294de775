"""Profiles of Vidur and of LLMServingSim's two layouts, in the columns that their repositories document."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsight.errors import InvalidInput

OPERATORS = "emb input_layernorm attn_pre_proj attn_rope attn_post_proj post_attention_layernorm mlp_up_proj"
OPERATORS += " mlp_act mlp_down_proj add"
STATISTICS = ("min", "max", "mean", "median", "std")
MLP_MODEL = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers"
ATTENTION_MODEL = (
    "n_embd,n_q_head,n_kv_head,num_tensor_parallel_workers,max_model_len,batch_size,prefill_chunk_size,kv_cache_size,"
    "is_prefill,attention_backend"
)


def times(operators: str) -> str:
    return ",".join(f"time_stats.{name}.{statistic}" for name in operators.split() for statistic in STATISTICS)


def mlp(folder: Path, latency_ms: float = 0.05) -> None:
    folder.mkdir(parents=True)
    row = ",".join(["0.04", "0.06", "9", str(latency_ms), "0.001"] * len(OPERATORS.split()))
    (folder / "mlp.csv").write_text(f"{times(OPERATORS)},{MLP_MODEL}\n{row},32,8,4096,14336,128256,True,64,2\n")


def attention(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    prompt = "0.1,0.1,0.1,0.12,0,,,,,,4096,32,8,2,131072,1,512,1024,True,FLASH_ATTENTION"
    decode = ",,,,,0.1,0.1,0.1,0.02,0,4096,32,8,2,131072,8,0,1024,False,FLASH_ATTENTION"
    (folder / "attention.csv").write_text(
        f"{times('attn_prefill attn_decode')},{ATTENTION_MODEL}\n{prompt}\n{decode}\n"
    )


def test_vidur_operators_have_the_shapes_of_one_gpu(tmp_path, import_from) -> None:
    mlp(tmp_path / "compute/a100/meta-llama/Meta-Llama-3-8B")
    found = import_from("vidur", tmp_path)
    products = {tuple(p["shape"].values()): p["implementation"] for p in found.points if p["family"] == "gemm"}
    assert set(products.values()) == {"cublas"}
    assert set(products) == {(64, 3072, 4096), (64, 4096, 2048), (64, 14336, 4096), (64, 4096, 7168)}
    wide = {p["family"]: p["shape"] for p in found.points if p["family"] != "gemm"}
    assert wide == {
        "embedding": {"rows": 64, "columns": 4096},
        "norm": {"rows": 64, "columns": 4096},
        "rope": {"rows": 64, "columns": 2560},
        "activation": {"rows": 64, "columns": 7168},
    }
    assert {p["latency_us"] for p in found.points} == {50.0}
    assert {(p["gpu"], p["engine"], p["dtype"]) for p in found.points} == {("a100_sxm", "sarathi", "fp16")}
    assert [p["samples"] for p in found.points if p["family"] == "norm"] == [2]


def test_vidur_attention(tmp_path, import_from) -> None:
    attention(tmp_path / "compute/h100/meta-llama/Meta-Llama-3-8B")
    decode, prompt = import_from("vidur", tmp_path).points
    heads = {"heads": 16, "kv_heads": 4, "head_dim": 128, "window": 0}
    assert prompt["shape"] == {"batch": 1, "new_tokens": 512, "cached_tokens": 1024} | heads
    assert decode["shape"] == {"batch": 8, "context": 1024} | heads
    assert (prompt["latency_us"], decode["latency_us"], decode["dtype"]) == (120.0, 20.0, "fp16/fp16")


def test_vidur_counts_what_it_cannot_hold(tmp_path, import_from) -> None:
    mlp(tmp_path / "compute/mystery/meta-llama/Meta-Llama-3-8B")
    mlp(tmp_path / "compute/a40/meta-llama/Meta-Llama-3-8B", latency_ms=0.5)
    (tmp_path / "compute/a40/all_reduce.csv").write_text("size,time\n1,2\n3,4\n")
    found = import_from("vidur", tmp_path)
    assert found.reasons == {"gpu_not_in_catalogue": 1, "unknown_table": 2}
    assert {point["gpu"] for point in found.points} == {"a40"}


NEWER = "perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp2"


def test_llmservingsim_layers(tmp_path, import_from) -> None:
    folder = tmp_path / NEWER
    folder.mkdir(parents=True)
    (folder / "dense.csv").write_text("layer,tokens,time_us\ndown_proj,64,144.4\nact_fn,64,3.2\nmystery,64,1.0\n")
    (folder / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,4,1106.9\n")
    found = import_from("llmservingsim", tmp_path)
    shapes = {(p["family"], p["implementation"]): p["shape"] for p in found.points if p["family"] != "gemm"}
    assert shapes == {("activation", "vllm_activation"): {"rows": 64, "columns": 7168}}
    products = {tuple(p["shape"].values()): p["latency_us"] for p in found.points if p["family"] == "gemm"}
    assert products == {(64, 4096, 7168): 144.4, (4, 64128, 4096): 1106.9}
    assert found.reasons == {"layer_without_family": 1}


def test_llmservingsim_attention_of_prompts_or_decodes_alone(tmp_path, import_from) -> None:
    folder = tmp_path / NEWER
    folder.mkdir(parents=True)
    rows = "0,0,2,1024,24.9\n64,128,0,0,13.5\n16,0,1,16,9.7\n"
    (folder / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + rows)
    found = import_from("llmservingsim", tmp_path)
    heads = {"heads": 16, "kv_heads": 4, "head_dim": 128, "window": 0}
    assert {p["family"]: p["shape"] for p in found.points} == {
        "decode_attention": {"batch": 2, "context": 1024} | heads,
        "prefill_attention": {"batch": 1, "new_tokens": 64, "cached_tokens": 128} | heads,
    }
    assert found.reasons == {"prompts_and_decodes_in_one_call": 1}


def test_llmservingsim_experts(tmp_path, import_from) -> None:
    folder = tmp_path / "perf/RTX4090/Qwen/Qwen3-30B-A3B/bf16/tp1"
    folder.mkdir(parents=True)
    (folder / "moe.csv").write_text("ep,tokens,activated_experts,time_us\n4,16,8,47.1\n")
    (point,) = import_from("llmservingsim", tmp_path).points
    assert point["shape"] == {
        "tokens": 16, "hidden": 2048, "intermediate": 768, "experts": 32, "top_k": 8, "moe_tp": 1, "moe_ep": 4,
        "expert_matrices": 3,
    }  # fmt: skip
    assert (point["distribution"], point["implementation"]) == ("activated_8", "fused_moe_triton")


def test_llmservingsim_older_layout_in_nanoseconds(tmp_path, import_from) -> None:
    folder = tmp_path / "perf_models/H100/meta-llama/Llama-3.1-70B/tp4"
    attention(folder)
    rows = "q_proj,8,0,4,16243\nattn,1,0,4,5545\n"
    (folder / "layers.csv").write_text("layer_name,input,kv_cache,tp_size,latency(ns)\n" + rows)
    found = import_from("llmservingsim", tmp_path)
    by_family = {p["family"]: p for p in found.points}
    assert by_family["gemm"]["shape"] == {"m": 8, "n": 2048, "k": 8192}
    assert by_family["gemm"]["latency_us"] == 16.243
    assert by_family["decode_attention"]["implementation"] == "flash_attention_3"
    assert found.reasons == {"layer_without_family": 1}


def test_llmservingsim_counts_unknown_models_and_devices(tmp_path, import_from) -> None:
    for place in ("perf/RTX4090/someone/Unheard-Of/bf16/tp1", "perf/TPU-v6e-1/meta-llama/Llama-3.1-8B/bf16/tp1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "dense.csv").write_text("layer,tokens,time_us\ndown_proj,64,144.4\n")
    found = import_from("llmservingsim", tmp_path)
    assert found.reasons == {"model_not_in_catalogue": 1, "gpu_not_in_catalogue": 1}


@pytest.mark.parametrize(
    ("source", "place", "text", "sentence"),
    [
        (
            "vidur",
            "a100/x/y/mlp.csv",
            "n_head\n1\n",
            r"mlp\.csv is not a sweep of Vidur: missing columns n_kv_head,",
        ),
        ("vidur", "a100/x/y/attention.csv", "n_embd\n1\n", r"attention\.csv is not a sweep of Vidur: missing columns"),
        (
            "llmservingsim",
            f"{NEWER}/dense.csv",
            "layer\nx\n",
            r"dense\.csv is not a sweep of LLMServingSim: missing columns",
        ),
        ("llmservingsim", f"{NEWER}/dense.csv", "", r"dense\.csv cannot be read as CSV"),
    ],
)
def test_a_file_without_its_columns_is_refused(tmp_path, import_from, source, place, text, sentence) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(text)
    with pytest.raises(InvalidInput, match=sentence):
        import_from(source, tmp_path)


@pytest.mark.parametrize("source", ["vidur", "llmservingsim"])
def test_a_path_is_needed(import_from, source) -> None:
    with pytest.raises(InvalidInput, match=f"{source} needs PATH"):
        import_from(source, None)
