"""Number formats: stored bytes, bytes and arithmetic of the products, and 16 bit where a GPU lacks the rate."""

from __future__ import annotations

import pytest

# Bytes per weight and per activation: the value, and its share of the scales.
STORED = {
    "none": (2, 2, "bf16"),
    "fp8": (1, 1, "fp8"),
    "fp8_block": (1 + 4 / 128**2, 1 + 4 / 128, "fp8"),
    "nvfp4": (0.5 + 1 / 16, 0.5 + 1 / 16, "fp4"),
    "mxfp4": (0.5 + 1 / 32, 1 + 1 / 32, "fp8"),
    "int4_wo": (0.5 + 2 / 128, 2, "bf16"),
    "int8_wo": (1 + 2 / 128, 2, "bf16"),
}
HEADS = {"lm_head", "router"}


def stated(quantizations, gpu, model="llama-3.1-8b", **columns):
    return [
        {"deployment_id": name, "model": model, "gpu": gpu, "quantization": name, **columns} for name in quantizations
    ]


def test_bytes_and_arithmetic_of_products(ask):
    for call in ask("gemm_calls", *stated(STORED, "gb200"), decodes=10, context=5):
        weight, activation, math = STORED["none" if call["name"] in HEADS else call["deployment_id"]]
        m, n, k = call["m"], call["n"], call["k"]
        assert call["bytes"] == pytest.approx(m * k * activation + n * k * weight + m * n * 2, rel=1e-12), call
        assert call["math"] == math
        assert call["flops"] == 2 * m * n * k


def test_weights_shrink_with_the_format(ask):
    matrices = 8_030_261_248 - 65 * 4096 - 2 * 128256 * 4096
    rows = ask("memory_plan", *stated(STORED, "gb200"))
    for row in rows:
        weight, _, _ = STORED[row["deployment_id"]]
        assert row["weights_bytes"] == pytest.approx(matrices * weight + 2 * 2 * 128256 * 4096, abs=1)


@pytest.fixture(scope="module")
def products_on(ask_all):
    """Products of each format on each GPU, in the 16 bits that it has."""
    gpus = ("a100_sxm", "h100_sxm", "gb200", "v100_sxm")
    formats = ("fp8", "fp8_block", "nvfp4", "mxfp4", "int4_wo", "none")
    base = {"model": "llama-3.1-8b"}
    rows = [{**base, "gpu": gpu, "quantization": one, "dtype": half_of(gpu)} for gpu in gpus for one in formats]
    found = ask_all("gemm_calls", rows, decodes=4, context=9)
    return lambda gpu, quantization: found(**base, gpu=gpu, quantization=quantization, dtype=half_of(gpu))


def half_of(gpu):
    return "fp16" if gpu == "v100_sxm" else "bf16"


@pytest.mark.parametrize(
    ("gpu", "fp8", "fp8_block", "nvfp4", "mxfp4"),
    [
        ("a100_sxm", "bf16", "bf16", "bf16", "bf16"),
        ("h100_sxm", "fp8", "fp8", "bf16", "bf16"),
        ("gb200", "fp8", "fp8", "fp4", "fp8"),
        ("v100_sxm", "fp16", "fp16", "fp16", "fp16"),
    ],
)
def test_arithmetic_that_a_gpu_lacks_is_16_bit(products_on, gpu, fp8, fp8_block, nvfp4, mxfp4):
    half = half_of(gpu)
    expected = {"fp8": fp8, "fp8_block": fp8_block, "nvfp4": nvfp4, "mxfp4": mxfp4, "int4_wo": half, "none": half}
    for name, math in expected.items():
        assert {call["math"] for call in products_on(gpu, name) if call["name"] == "qkv_proj"} == {math}, name


def test_expanded_weights_keep_their_bytes_and_take_16_bit_activations(ask, products_on):
    [call] = [call for call in products_on("a100_sxm", "fp8") if call["name"] == "o_proj"]
    assert call["bytes"] == 4 * 4096 * 2 + 4096 * 4096 * 1 + 4 * 4096 * 2
    without = [*stated(["fp8"], "a100_sxm"), *stated(["int4_wo", "none"], "h100_sxm")]
    assert ask("quantize_calls", *without, decodes=4, context=9) == []


def test_experts_alone_are_quantised(ask):
    own = [{"deployment_id": gpu, "model": "gpt-oss-120b", "gpu": gpu} for gpu in ("gb200", "h100_sxm")]
    both = ask("kernel_calls", *own, decodes=1, context=9)
    calls = [call for call in both if call["deployment_id"] == "gb200"]
    formats = {(call["name"], call["format"], call["math"]) for call in calls if call["format"]}
    # that of attention is its cache's
    assert formats == {
        ("decode_attention", "bf16", "bf16"),
        ("experts", "mxfp4", "fp8"), ("qkv_proj", "bf16", "bf16"), ("o_proj", "bf16", "bf16"),
        ("router", "bf16", "bf16"), ("lm_head", "bf16", "bf16"),
    }  # fmt: skip
    # one token reaches 4 experts of three 2880 x 2880 matrices at 4.25 bits, and comes and goes in 16 bit
    experts = [call["bytes"] for call in calls if call["name"] == "experts"]
    assert experts == [pytest.approx(4 * 3 * 2880 * 2880 * 4.25 / 8 + 2 * 2 * 2880)] * 2
    assert {call["math"] for call in both if call["family"] == "moe" and call not in calls} == {"bf16"}


def test_fp8_cache_halves_the_cache(ask):
    rows = ask(
        "kv_layout", {"model": "qwen3-32b", "kv_cache_dtype": "fp8"}, {"model": "deepseek-v3", "kv_cache_dtype": "fp8"}
    )
    assert {row["deployment_id"]: row["full_token_bytes"] for row in rows} == {
        "qwen3-32b": 131_072,
        "deepseek-v3": 35_136,
    }


def test_narrow_delta_net_projection_stays_in_16_bit(ask):
    rows = ask("layer_weights", *stated(["fp8"], "gb200", model="qwen3-next-80b-a3b"))
    found = {row["name"]: (row["n"], row["k"], row["format"]) for row in rows if row["layer_kind"] == "linear_moe"}
    # queries and keys of 16 heads, values and gates of 32 heads, 128 wide each; two numbers for each value head
    assert found["in_proj_qkvz"] == (2 * 16 * 128 + 2 * 32 * 128, 2048, "fp8")
    assert found["in_proj_ba"] == (2 * 32, 2048, "bf16")
    assert found["out_proj"] == (2048, 32 * 128, "fp8")
