"""Whole models against closed forms: cache bytes, FLOP and bytes of a decode step and of a prefill."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelsight.kernels.moe import POPULARITY_VARIANCE
from tests.lowering.by_hand import decode_flops, parameters, prefill_flops

# Cache of one token in 16 bit over all layers, by hand: layers x 2 x KV heads x head width x 2 bytes, MLA 576 x 2 a
# layer; GLM-5's indexer adds 128 FP8 values and a 4-byte scale.
CACHE_BYTES = {
    "llama-3.1-8b": (131_072, 0),
    "llama-3.1-70b": (327_680, 0),
    "llama-3.1-405b": (516_096, 0),
    "qwen2.5-7b": (57_344, 0),
    "qwen3-32b": (262_144, 0),
    "gemma-2-9b": (172_032, 172_032),
    "phi-4": (204_800, 0),
    "mistral-7b-v0.3": (131_072, 0),
    "mixtral-8x7b-v0.1": (131_072, 0),
    "qwen3-235b-a22b": (192_512, 0),
    "gpt-oss-120b": (36_864, 36_864),
    "deepseek-v3": (70_272, 0),
    "kimi-k2": (70_272, 0),
    "minimax-m2": (253_952, 0),
    "glm-4.5": (376_832, 0),
    "glm-5": (100_152, 0),
    "qwen3-next-80b-a3b": (24_576, 0),
    "qwen3.5-397b-a17b": (30_720, 0),
    "qwen3.8-2.4t-a95b": (23 * 4 * 256 * 4, 0),
    # keys of 192 and values of 128: 4 heads without a window, 8 within
    "mimo-v2-flash": (9 * 4 * 320 * 2, 39 * 8 * 320 * 2),
    "gemma-4-26b-a4b": (5 * 2 * 512 * 4, 25 * 8 * 256 * 4),
    "llama-3_3-nemotron-super-49b-v1": (49 * 8 * 128 * 4, 0),
    "nvidia-nemotron-3-super-120b-a12b-fp8": (8 * 2 * 128 * 4, 0),
    "nvidia-nemotron-3-ultra-550b-a55b-bf16": (12 * 2 * 128 * 4, 0),
    "step-3.7-flash": (12 * 8 * 128 * 4, 33 * 8 * 128 * 4),
    # 21 of 78 layers have an indexer
    "glm-5.2": (78 * 1152 + 21 * 132, 0),
    # no RoPE: the latent vector alone
    "glm-5.3-flash": (11 * (1024 + 132), 0),
    "kimi-k3": (24 * 1152, 0),
    "sarvam-105b": (32 * 1152, 0),
    "minimax-m3": (60 * 4 * 128 * 4 + 57 * 132, 0),
    # entries of 4 tokens with a key of the indexer, and of 128: 512 values each
    "deepseek-v4-pro": (30 * (1024 + 132) / 4 + 31 * 1024 / 128, 0),
    "deepseek-v4-flash": (21 * (1024 + 132) / 4 + 20 * 1024 / 128, 0),
    # three layers own entries of 2 tokens, one those of each
    "deepseek-v4.1-flash": ((3 / 2 + 1) * (1024 + 132), 0),
}
MODELS = [*CACHE_BYTES]
CALCULATING = ("gemm", "batched_gemm", "moe", "prefill_attention", "decode_attention", "mla_prefill", "mla_decode",
               "sparse_attention", "linear_attention")  # fmt: skip


def total(calls, column, families=CALCULATING):
    """Sum of a column over all launches, by deployment."""
    sums = {}
    for call in calls:
        if call["family"] in families or (families is CALCULATING and call["name"] == "stream_read"):
            sums[call["deployment_id"]] = sums.get(call["deployment_id"], 0) + call["count"] * call[column]
    return sums


def test_cache_bytes_per_token(ask):
    rows = ask("kv_layout", *({"model": model, "kv_cache_dtype": "bf16"} for model in CACHE_BYTES))
    assert {row["deployment_id"]: (row["full_token_bytes"], row["window_token_bytes"]) for row in rows} == CACHE_BYTES
    windows = {row["deployment_id"]: row["window_tokens"] for row in rows}
    # DeepSeek-V4-Pro at a million tokens: 9.62 GiB published with keys of the indexer in 16 bit, here FP8 with a scale
    published = CACHE_BYTES["deepseek-v4-pro"][0] + 30 * (256 - 132) / 4
    assert published * 2**20 / 2**30 == pytest.approx(9.62, abs=0.005)
    assert windows["gemma-2-9b"] == 4096
    assert windows["gpt-oss-120b"] == 128
    assert windows["llama-3.1-8b"] == 0


def test_state_bytes_of_delta_net_layers(ask):
    rows = ask("kv_layout", "qwen3-next-80b-a3b", "qwen3.5-397b-a17b", "llama-3.1-8b")
    # per layer: value heads x 128 x 128 in FP32, and 3 past inputs of each convolution channel in 16 bit
    assert {row["deployment_id"]: row["sequence_bytes"] for row in rows} == {
        "qwen3-next-80b-a3b": 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2),
        "qwen3.5-397b-a17b": 45 * (64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2),
        "llama-3.1-8b": 0,
    }


DECODES = [(1, 0), (3, 100), (64, 5000)]
PREFILLS = [(1, 1, 0), (2, 7, 0), (3, 200, 50), (1, 100, 128), (1, 129, 127), (2, 5000, 100)]
DECODE, PREFILL = {"decodes": 5, "context": 300}, {"prompts": 1, "new": 64, "cached": 32}
STEPS = [
    *({"decodes": batch, "context": context} for batch, context in DECODES),
    *({"prompts": batch, "new": new, "cached": cached} for batch, new, cached in PREFILLS),
    *(DECODE, PREFILL, DECODE | PREFILL),
]


@pytest.fixture(scope="module")
def flops(ask):
    """FLOP of each model, of each of STEPS."""
    calls = ask("kernel_calls", *MODELS, steps=STEPS)
    return [total([call for call in calls if call["step_shape_id"] == step], "flops") for step in range(len(STEPS))]


@pytest.mark.parametrize(("batch", "context"), DECODES)
def test_flops_of_a_decode_step(flops, catalogue, batch, context):
    found = flops[STEPS.index({"decodes": batch, "context": context})]
    assert found == {name: pytest.approx(decode_flops(catalogue[name], batch, context), rel=1e-12) for name in MODELS}


@pytest.mark.parametrize(("batch", "new", "cached"), PREFILLS)
def test_flops_of_a_prefill(flops, catalogue, batch, new, cached):
    found = flops[STEPS.index({"prompts": batch, "new": new, "cached": cached})]
    expected = {name: pytest.approx(prefill_flops(catalogue[name], batch, new, cached), rel=1e-12) for name in MODELS}
    assert found == expected


def test_a_mixed_step_is_its_prefill_and_its_decodes(flops):
    decode, prefill, mixed = flops[-3:]
    assert mixed == {name: pytest.approx(decode[name] + prefill[name], rel=1e-12) for name in MODELS}


def test_a_small_decode_reads_every_dense_weight_once(ask, catalogue):
    names = ["llama-3.1-8b", "qwen2.5-7b", "qwen3-32b", "phi-4", "mistral-7b-v0.3", "gemma-2-9b"]
    found = total(ask("kernel_calls", *names, decodes=1, context=1), "bytes", ("gemm",))
    for name in names:
        model = catalogue[name]
        embedding = 0 if model["tied_embeddings"] else model["vocab"] * model["hidden"]
        read = 2 * (parameters(model) - embedding)
        assert read < found[name] < 1.001 * read


@pytest.fixture(scope="module")
def cached_calls(ask_all):
    models, formats = ("llama-3.1-8b", "gpt-oss-120b"), ("bf16", "fp8")
    stated = [{"model": model, "kv_cache_dtype": format_} for model in models for format_ in formats]
    return ask_all("decode_attention_calls", stated, decodes=6, context=1000)


@pytest.mark.parametrize(("kv_cache_dtype", "width"), [("bf16", 2), ("fp8", 1)])
def test_bytes_of_decode_attention(cached_calls, kv_cache_dtype, width):
    models = ("llama-3.1-8b", "gpt-oss-120b")
    calls = [call for model in models for call in cached_calls(model, kv_cache_dtype=kv_cache_dtype)]
    # query and output in 16 bit, then a key and a value for every token that is seen, the new one with them
    assert {(call["deployment_id"], call["call"]): call["bytes"] for call in calls} == {
        ("llama-3.1-8b", "full_dense.decode_attention"): 6 * (2 * 2 * 32 * 128 + 1001 * 2 * 8 * 128 * width),
        ("gpt-oss-120b", "full_moe.decode_attention"): 6 * (2 * 2 * 64 * 64 + 1001 * 2 * 8 * 64 * width),
        ("gpt-oss-120b", "sliding_moe.decode_attention"): 6 * (2 * 2 * 64 * 64 + 128 * 2 * 8 * 64 * width),
    }


def test_bytes_of_prefill_attention(ask):
    calls = ask("prefill_attention_calls", "llama-3.1-8b", "gpt-oss-120b", prompts=2, new=300, cached=500)
    # queries and outputs, new keys and values, and the cached ones that the first query can see
    assert {(call["deployment_id"], call["call"]): call["bytes"] for call in calls} == {
        ("llama-3.1-8b", "full_dense.prefill_attention"): 2 * 2 * 128 * (2 * 300 * 32 + 2 * 300 * 8 + 2 * 500 * 8),
        ("gpt-oss-120b", "full_moe.prefill_attention"): 2 * 2 * 64 * (2 * 300 * 64 + 2 * 300 * 8 + 2 * 500 * 8),
        ("gpt-oss-120b", "sliding_moe.prefill_attention"): 2 * 2 * 64 * (2 * 300 * 64 + 2 * 300 * 8 + 2 * 127 * 8),
    }


def test_bytes_of_mla(ask):
    decode = ask("mla_decode_calls", "deepseek-v3", decodes=4, context=999)
    assert {call["bytes"] for call in decode} == {4 * (1000 * 576 * 2 + 128 * (576 + 512) * 2)}
    prefill = ask("mla_prefill_calls", "deepseek-v3", prompts=1, new=100, cached=20)
    assert {call["bytes"] for call in prefill} == {2 * 128 * (100 * (192 + 128) + 120 * (192 + 128))}


def test_a_chunk_reads_no_more_latents_than_it_selects(ask):
    calls = ask("sparse_attention_calls", "glm-5", prompts=1, new=1, cached=100_000)
    attention = [call for call in calls if call["name"] == "sparse_mla"]
    assert {call["visible_pairs"] for call in attention} == {2048}
    assert {call["bytes"] for call in attention} == {2048 * 576 * 2 + 64 * (576 + 512) * 2}
    assert {call["visible_pairs"] for call in calls if call["name"] == "indexer"} == {100_001}


def test_active_experts_follow_a_popularity_that_is_spread(ask):
    rows = ask("moe_calls", "mixtral-8x7b-v0.1", decodes=3, context=10)
    # the first token misses an expert with probability 6/8, two more by a popularity of variance 0.3
    active = 8 * (1 - 0.75 * (1 - 0.3 * 2 * math.log(0.75)) ** (-1 / 0.3))
    assert [row["active_experts"] for row in rows] == [pytest.approx(active)]
    one_expert = 3 * 14336 * 4096 * 2
    assert rows[0]["bytes"] == pytest.approx(active * one_expert + 3 * 4096 * 2 * 2)
    assert math.isclose(rows[0]["flops"], 2 * 3 * 2 * 3 * 14336 * 4096)


ROUTED = [1, 16, 256]
RANKS = {"deployment_id": "ranks", "model": "qwen3-235b-a22b-fp8", "tp": 8, "ep": 8}


@pytest.fixture(scope="module")
def routed(ask):
    """Calls of experts, by deployment and number of tokens."""
    steps = [{"decodes": tokens, "context": 10} for tokens in ROUTED]
    found = {}
    for call in ask("moe_calls", "gpt-oss-120b", "deepseek-v3", "qwen3-235b-a22b-fp8", RANKS, steps=steps):
        found.setdefault((call["deployment_id"], ROUTED[call["step_shape_id"]]), []).append(call)
    return found


@pytest.mark.parametrize(("model", "experts", "top_k"), [("gpt-oss-120b", 128, 4), ("deepseek-v3", 256, 8)])
@pytest.mark.parametrize("tokens", ROUTED)
def test_active_experts_are_those_that_drawn_routings_reach(routed, model, experts, top_k, tokens):
    random = np.random.default_rng(experts + tokens)
    reached = []
    for _ in range(40):
        popularity = random.gamma(1.0 / POPULARITY_VARIANCE, POPULARITY_VARIANCE, experts)
        # the top_k largest of log(weight) + Gumbel noise are a draw without replacement
        keys = np.log(popularity) + random.gumbel(size=(tokens, experts))
        reached.append(np.unique(np.argpartition(-keys, top_k - 1, axis=1)[:, :top_k]).size)
    row = routed[model, tokens][0]
    assert row["active_experts"] == pytest.approx(np.mean(reached), rel=0.05)


@pytest.mark.parametrize("tokens", ROUTED)
def test_ranks_together_reach_the_experts_that_one_gpu_reaches(routed, tokens):
    """A call is that of a rank of mean load: the latency alone looks at the busiest, once (``moe.random_load``)."""
    [rank], [whole] = routed["ranks", tokens], routed["qwen3-235b-a22b-fp8", tokens]
    assert 8 * rank["active_experts"] == pytest.approx(whole["active_experts"])
    # of eight experts a token one is on each rank: every token moves once to each
    token_bytes = 4 * tokens * 4096
    assert 8 * (rank["bytes"] - token_bytes) == pytest.approx(whole["bytes"] - token_bytes)


def test_layers_without_positions_rotate_nothing(ask):
    """Llama 4 and Command A: RoPE where a window or chunk is, none where a query sees everything."""
    rows = ask("rope_calls", "llama-4-scout-17b-16e", prompts=1, new=64)
    assert [(row["call"], row["count"]) for row in rows] == [("sliding_moe.rope", 36)]


def test_chunks_are_windows_and_full_layers_see_everything(ask):
    rows = ask("prefill_attention_calls", "llama-4-scout-17b-16e", prompts=1, new=4096, cached=16384)
    assert {row["call"]: (row["window"], row["count"]) for row in rows} == {
        "sliding_moe.prefill_attention": (8192, 36),
        "full_moe.prefill_attention": (0, 12),
    }


def test_blocks_of_nemotron_h_launch_what_they_hold(ask):
    """A layer is one block: no attention in an expert layer, no feed-forward in a Mamba-2 layer, one norm in each."""
    model = "nvidia-nemotron-3-nano-30b-a3b-bf16"
    gemms = {row["call"]: (row["count"], row["n"], row["k"]) for row in ask("gemm_calls", model, prompts=1, new=64)}
    assert gemms["linear_none.in_proj_qkvz"] == (23, 2 * 8 * 128 + 2 * 64 * 64, 2688)
    assert gemms["full_none.qkv_proj"] == (6, (32 + 2 * 2) * 128, 2688)
    assert gemms["none_moe.shared_up_proj"] == (23, 3712, 2688)
    assert not any("down" in call for call in gemms if call.startswith(("linear_none", "full_none")))
    norms = ask("norm_calls", model, prompts=1, new=64)
    assert sum(row["count"] for row in norms if row["name"] == "residual_norm") == 52
    states = {row["name"]: row["columns"] for row in ask("linear_attention_calls", model, decodes=2, context=64)}
    assert states == {"causal_conv": 2 * 8 * 128 + 64 * 64, "delta_rule": 64 * 64}
