"""Which kernels each engine launches, and the shape that each family's row carries."""

from __future__ import annotations

import pytest

STEP = {"decodes": 8, "context": 700, "prompts": 2, "new": 160, "cached": 48}
TOKENS = 8 + 2 * 160
ELEMENT_WISE = ("norm", "activation", "rope", "kv_write", "quantize", "embedding", "sampling")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
SHAPES = {
    "gemm": {"m", "n", "k"},
    "batched_gemm": {"batch", "m", "n", "k"},
    "prefill_attention": {"batch", "new_tokens", "cached_tokens", "heads", "kv_heads", "head_dim", "window"},
    "decode_attention": {"batch", "context", "heads", "kv_heads", "head_dim", "window"},
    "mla_prefill": {"batch", "new_tokens", "cached_tokens", "heads", "head_dim", "v_head_dim"},
    "mla_decode": {"batch", "context", "heads", "kv_lora_rank", "rope_dim"},
    "sparse_attention": {"queries", "pairs", "heads", "width"},
    "linear_attention": {"rows", "columns", "sequences"},
    "moe": {"tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep"},
    **{name: {"rows", "columns"} for name in ELEMENT_WISE},
    **{name: {"bytes", "gpus"} for name in COLLECTIVES},
}


ENGINES = ("vllm", "sglang", "trtllm")
STATED = [
    {"model": "qwen3-32b", "tp": 8},
    {"model": "deepseek-v3", "tp": 8},
    *({"model": "qwen3-32b", "engine": engine} for engine in ENGINES),
    *({"model": model} for model in ("gemma-2-9b", "minimax-m2", "qwen3-next-80b-a3b")),
    *({"model": model, "tp": 4} for model in ("minimax-m2", "qwen3-32b")),
]


@pytest.fixture(scope="module")
def calls_of(ask_all):
    """Kernel calls of each of STATED."""
    return ask_all("kernel_calls", STATED, **STEP)


def launched(calls, families):
    """Names of the calls of some families."""
    return {call["name"] for call in calls if call["family"] in families}


def test_each_family_states_its_sizes(ask):
    stated = [
        {"model": "deepseek-v3", "tp": 2, "dp": 2, "ep": 4},
        {"model": "qwen3-next-80b-a3b", "tp": 2, "pp": 2},
        {"deployment_id": "sent", "model": "qwen3-235b-a22b", "dp": 16, "ep": 16, "engine": "trtllm"},
        {"model": "gpt-oss-120b"},
        {"model": "glm-5"},
    ]
    calls = ask("kernel_calls", *stated, **STEP)
    found = {}
    for call in calls:
        sizes = {name for name, size in call["shape"].items() if size is not None}
        found.setdefault(call["family"], []).append(sizes)
        assert all(size >= 0 for size in call["shape"].values() if size is not None)
        assert call["count"] > 0 and call["bytes"] > 0
    assert found.keys() == SHAPES.keys()
    for family, sizes in found.items():
        assert all(each == SHAPES[family] for each in sizes), family


def test_shapes_after_tensor_parallelism(calls_of):
    calls = {call["call"]: call["shape"] for call in calls_of("qwen3-32b", tp=8)}
    assert [calls["full_dense.qkv_proj"][size] for size in "mnk"] == [TOKENS, (8 + 2) * 128, 5120]
    assert [calls["full_dense.o_proj"][size] for size in "mnk"] == [TOKENS, 5120, 8 * 128]
    assert [calls["full_dense.gate_up_proj"][size] for size in "mnk"] == [TOKENS, 2 * 3200, 5120]
    assert [calls["full_dense.down_proj"][size] for size in "mnk"] == [TOKENS, 5120, 3200]
    assert [calls["model.lm_head"][size] for size in "mnk"] == [10, 18992, 5120]
    decode, prefill = calls["full_dense.decode_attention"], calls["full_dense.prefill_attention"]
    assert (decode["batch"], decode["context"], decode["heads"], decode["kv_heads"], decode["head_dim"]) == (
        8,
        700,
        8,
        1,
        128,
    )
    assert (prefill["batch"], prefill["new_tokens"], prefill["cached_tokens"], prefill["heads"]) == (2, 160, 48, 8)


def test_mla_projections(calls_of):
    calls = {call["call"]: call for call in calls_of("deepseek-v3", tp=8)}
    sizes = {
        name: [calls[f"mla_moe.{name}"]["shape"][size] for size in "mnk"]
        for name in (
            "qkv_a_proj",
            "q_b_proj",
            "kv_b_proj",
            "kv_b_proj_context",
            "o_proj",
            "shared_gate_up_proj",
            "router",
        )
    }
    assert sizes == {
        "qkv_a_proj": [TOKENS, 1536 + 512 + 64, 7168],
        "q_b_proj": [TOKENS, 16 * 192, 1536],
        # prompts expand what they cached too, in a product of its own; decodes stay in the latent space
        "kv_b_proj": [2 * 160, 16 * (128 + 128), 512],
        "kv_b_proj_context": [2 * 48, 16 * (128 + 128), 512],
        "o_proj": [TOKENS, 7168, 16 * 128],
        "shared_gate_up_proj": [TOKENS, 2 * 256, 7168],
        "router": [TOKENS, 256, 7168],
    }
    absorb = {name: [calls[f"mla_moe.{name}.decode"]["shape"][size] for size in ("batch", "m", "n", "k")]
              for name in ("q_absorb", "v_absorb")}  # fmt: skip
    assert absorb == {"q_absorb": [16, 8, 512, 128], "v_absorb": [16, 8, 128, 512]}
    assert "mla_moe.q_absorb.prefill" not in calls


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("vllm", {"qk_norm", "rope", "kv_write"}),
        ("sglang", {"qk_norm", "rope", "kv_write"}),
        ("trtllm", {"rope"}),
    ],
)
def test_element_wise_kernels_before_attention(calls_of, engine, names):
    calls = calls_of("qwen3-32b", engine=engine)
    assert launched(calls, {"rope", "kv_write"}) | (launched(calls, {"norm"}) & {"qk_norm"}) == names
    [rope] = [call for call in calls if call["family"] == "rope"]
    turned = TOKENS * (64 + 8) * 128 * (2 + 2)
    written = TOKENS * 2 * 8 * 128 * (2 + 2)
    assert rope["bytes"] == (turned + written if engine == "trtllm" else turned)


QUANTIZED = [
    ("vllm", "fp8", {"quantize_hidden", "quantize_attention", "quantize_activation"}),
    ("sglang", "fp8", {"quantize_hidden", "quantize_attention", "quantize_activation"}),
    ("trtllm", "fp8", {"quantize_hidden", "quantize_attention", "quantize_activation"}),
    ("vllm", "fp8_static", {"quantize_attention"}),
    ("sglang", "fp8_static", {"quantize_hidden", "quantize_attention", "quantize_activation"}),
    ("trtllm", "fp8_static", {"quantize_hidden"}),
    ("vllm", "int4_wo", set()),
    ("vllm", "none", set()),
]


@pytest.fixture(scope="module")
def quantize_calls(ask_all):
    stated = [{"model": "qwen3-32b", "engine": engine, "quantization": name} for engine, name, _ in QUANTIZED]
    return ask_all("quantize_calls", stated, **STEP)


@pytest.mark.parametrize(("engine", "quantization", "names"), QUANTIZED)
def test_kernels_that_quantise_activations(quantize_calls, engine, quantization, names):
    calls = quantize_calls("qwen3-32b", engine=engine, quantization=quantization)
    assert {call["name"] for call in calls} == names
    # both projections that read the hidden state, one launch each
    hidden = [(call["rows"], call["columns"]) for call in calls if call["name"] == "quantize_hidden"]
    assert hidden == [(TOKENS, 5120)] * len(hidden)
    assert len(hidden) == (2 if "quantize_hidden" in names else 0)


DECODES = [256, 257, 8]
SHARED = [{"model": "deepseek-v3", "engine": engine, "tp": 8} for engine in ENGINES]


@pytest.fixture(scope="module")
def shared_experts(ask_all):
    """Latencies of each engine at DECODES, and its assumptions."""
    steps = [{"decodes": tokens, "context": 700} for tokens in DECODES]
    return [ask_all(table, SHARED, steps=steps) for table in ("kernel_latencies", "assumptions")]


@pytest.mark.parametrize(
    ("engine", "tokens", "beside"),
    [("vllm", 256, True), ("vllm", 257, False), ("sglang", 257, True), ("trtllm", 8, False)],
)
def test_shared_experts_beside_routed_ones_cost_their_memory_time(shared_experts, engine, tokens, beside):
    stated = {"model": "deepseek-v3", "engine": engine, "tp": 8}
    latencies, assumptions = (of(**stated) for of in shared_experts)
    found = {row["name"]: row for row in latencies if row["step_shape_id"] == DECODES.index(tokens)}
    for name in ("shared_gate_up_proj", "shared_activation", "shared_down_proj"):
        assert (found[name]["latency_us"] == found[name]["roofline_us"]) == beside
        assert found[name]["latency_us"] < found["experts"]["latency_us"]
    assert found["router"]["latency_us"] > found["router"]["roofline_us"]
    said = [row["sentence"] for row in assumptions]
    assert any(sentence.startswith("shared experts run beside") for sentence in said) == (engine != "trtllm")


def test_norms_and_gates(calls_of):
    models = ("gemma-2-9b", "minimax-m2", "qwen3-next-80b-a3b")
    calls = {(call["deployment_id"], call["call"]): call for model in models for call in calls_of(model)}
    assert calls["gemma-2-9b", "full_dense.residual_norm"]["count"] == 4 * 21
    assert calls["minimax-m2", "full_moe.residual_norm"]["count"] == 2 * 62
    assert calls["minimax-m2", "full_moe.qk_norm"]["shape"]["columns"] == (48 + 8) * 128
    assert calls["minimax-m2", "full_moe.qk_norm"]["count"] == 62
    assert calls["qwen3-next-80b-a3b", "full_moe.qk_norm"]["shape"]["rows"] == TOKENS * (16 + 2)
    assert calls["qwen3-next-80b-a3b", "full_moe.qkv_proj"]["shape"]["n"] == 256 * (16 + 16 + 2 + 2)
    assert calls["qwen3-next-80b-a3b", "full_moe.attention_gate"]["shape"]["columns"] == 16 * 256
    assert calls["qwen3-next-80b-a3b", "linear_moe.linear_gate"]["shape"]["columns"] == 32 * 128
    assert calls["qwen3-next-80b-a3b", "full_moe.rope"]["shape"]["columns"] == (16 + 2) * 64
    assert ("qwen3-next-80b-a3b", "linear_moe.rope") not in calls


def test_nothing_is_sampled_in_the_middle_of_a_prompt(ask):
    calls = ask("kernel_calls", "llama-3.1-8b", prompts=1, new=32)
    assert {call["shape"]["rows"] for call in calls if call["family"] == "sampling"} == {1}
    assert {call["shape"]["m"] for call in calls if call["name"] == "lm_head"} == {1}


@pytest.mark.parametrize(("model", "shared"), [("minimax-m2", True), ("qwen3-32b", False)])
def test_a_norm_over_the_heads_of_several_ranks_needs_their_sum(calls_of, model, shared):
    calls = {call["name"]: call for call in calls_of(model, tp=4)}
    layers = calls["attention_all_reduce"]["count"]
    assert calls["qk_norm"]["count"] == layers * (2 if shared else 1)
    assert ("qk_norm_all_reduce" in calls) == shared
    if shared:
        sums = calls["qk_norm_all_reduce"]
        assert (sums["count"], sums["bytes"]) == (layers, TOKENS * 2 * 4)
