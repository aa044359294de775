"""A decode step of every new architecture against a count by hand, written out from the numbers of its config."""

from __future__ import annotations

import pytest

# one sequence whose new token sees itself and 8,191 cached ones
SEEN = 8192


def delta_net(heads: int, key_heads: int = 0, state: int = 128 * 128, channels: int = 0) -> int:
    """FLOP of a recurrent layer: read by key, update and read by query each state; four taps of each channel."""
    return 3 * 2 * heads * state + 2 * 4 * (channels or 3 * heads * 128)


# model -> (matrix parameters that a token passes in the layers, FLOP of attention or states, hidden size, vocabulary)
COUNTS = {
    # 12 full and 33 windowed layers (512) of 64 heads on 8; experts 8 and one shared of 1280 after 3 dense layers
    "step-3.7-flash": (
        45 * (4096 * (64 + 2 * 8) * 128 + 64 * 128 * 4096)
        + 3 * 3 * 4096 * 11264 + 42 * (3 * 4096 * 1280 * 9 + 4096 * 288),
        4 * 64 * 128 * (12 * SEEN + 33 * 512), 4096, 128896,
    ),
    # keys of 192, values of 128: 4 KV heads in 9 full layers, 8 in 39 windowed ones (128)
    "mimo-v2-flash": (
        9 * 4096 * (64 * 192 + 4 * 320) + 39 * 4096 * (64 * 192 + 8 * 320) + 48 * 64 * 128 * 4096
        + 3 * 4096 * 16384 + 47 * (3 * 4096 * 2048 * 8 + 4096 * 256),
        2 * 64 * 320 * (9 * SEEN + 39 * 128), 4096, 152576,
    ),
    # 25 windowed layers of width 256, 5 full ones of 512 whose keys are values; a dense feed-forward beside 8 experts
    "gemma-4-26b-a4b": (
        25 * (2816 * (16 + 2 * 8) * 256 + 16 * 256 * 2816) + 5 * (2816 * (16 + 2) * 512 + 16 * 512 * 2816)
        + 30 * (3 * 2816 * 2112 + 3 * 2816 * 704 * 8 + 2816 * 128),
        4 * 16 * (25 * 256 * 1024 + 5 * 512 * SEEN), 2816, 262144,
    ),
    # a gate as wide as the queries
    "muse-glimmer-30b": (
        52 * (6656 * (2 * 32 + 2 * 2) * 128 + 32 * 128 * 6656 + 3 * 6656 * 19968),
        4 * 32 * 128 * (13 * SEEN + 39 * 2048), 6656, 202048,
    ),
    # 57 layers attend to 16 blocks of 128 tokens, which 4 heads of 128 choose
    "minimax-m3": (
        60 * (6144 * (64 + 2 * 4) * 128 + 64 * 128 * 6144) + 57 * (6144 * 4 * 128 + 6144 * (128 + 4))
        + 3 * 3 * 6144 * 12288 + 57 * (3 * 6144 * 3072 * (4 + 1) + 6144 * 128),
        4 * 64 * 128 * (3 * SEEN + 57 * 2048) + 57 * 2 * 4 * 128 * SEEN, 6144, 200064,
    ),
    # of 80 layers 49 attend; widths of the feed-forwards are multiples of 2 / 3 of the hidden size, in steps of 256
    "llama-3_3-nemotron-super-49b-v1": (
        49 * (8192 * (64 + 2 * 8) * 128 + 64 * 128 * 8192)
        + 3 * 8192 * (49 * 28672 + 10 * 7168 + 8 * 5632 + 6 * 2816 + 6 * 14336 + 17920),
        4 * 64 * 128 * 49 * SEEN, 8192, 128256,
    ),
    # 40 Mamba-2 layers, 8 of attention, 40 of experts with two matrices on a projection to 1024
    "nvidia-nemotron-3-super-120b-a12b-fp8": (
        40 * (4096 * (2 * 8 * 128 + 2 * 128 * 64 + 128) + 128 * 64 * 4096)
        + 8 * (4096 * (32 + 2 * 2) * 128 + 32 * 128 * 4096)
        + 40 * (2 * 1024 * 2688 * 22 + 2 * 4096 * 5376 + 2 * 4096 * 1024 + 4096 * 512),
        8 * 4 * 32 * 128 * SEEN + 40 * delta_net(128, state=64 * 128, channels=2 * 8 * 128 + 128 * 64), 4096, 131072,
    ),
    # 30 gated delta nets, 10 layers of attention with a gate
    "qwen3.6-35b-a3b": (
        30 * (2048 * (2 * 16 * 128 + 2 * 32 * 128 + 2 * 32) + 32 * 128 * 2048)
        + 10 * (2048 * (2 * 16 + 2 * 2) * 256 + 16 * 256 * 2048)
        + 40 * (3 * 2048 * 512 * (8 + 1) + 2048 * 256),
        10 * 4 * 16 * 256 * SEEN + 30 * delta_net(32, channels=2 * 16 * 128 + 32 * 128), 2048, 248320,
    ),
    # 69 layers of Kimi delta attention, 24 of MLA with a gate and no RoPE; 16 experts of 3072 on a projection to 3584
    "kimi-k3": (
        69 * (7168 * (4 * 96 * 128 + 2 * 96) + 96 * 128 * 7168 + 7168 * 128 + 128 * 96 * 128)
        + 24 * (7168 * 1536 + 1536 * 96 * (128 + 64) + 7168 * (512 + 64) + 512 * 96 * (128 + 128) + 2 * 96 * 128 * 7168)
        + 3 * 7168 * 33792 + 92 * (3 * 3584 * 3072 * 16 + 3 * 7168 * 3072 * 2 + 2 * 7168 * 3584 + 7168 * 896),
        24 * 2 * 96 * (576 + 512) * SEEN + 69 * delta_net(96), 7168, 163840,
    ),
    # 78 layers over 2,048 selected tokens, selected in 21 of them
    "glm-5.2": (
        78 * (6144 * 2048 + 2048 * 64 * (192 + 64) + 6144 * 576 + 512 * 64 * (192 + 256) + 64 * 256 * 6144)
        + 21 * (2048 * 32 * 128 + 6144 * (128 + 32))
        + 3 * 3 * 6144 * 12288 + 75 * (3 * 6144 * 2048 * (8 + 1) + 6144 * 256),
        78 * 2 * 64 * (576 + 512) * 2048 + 21 * 2 * 32 * 128 * SEEN, 6144, 154880,
    ),
}  # fmt: skip


CALCULATING = ("gemm", "batched_gemm", "moe", "decode_attention", "mla_decode", "sparse_attention", "linear_attention")
SIXTEEN_BIT = ("step-3.7-flash", "gemma-4-26b-a4b", "muse-glimmer-30b", "minimax-m3", "qwen3.6-35b-a3b", "glm-5.2",
               "llama-3_3-nemotron-super-49b-v1")  # fmt: skip


@pytest.fixture(scope="module")
def calls(ask):
    """Calls of one decode of each model, by model."""
    found = {name: [] for name in COUNTS}
    for call in ask("kernel_calls", *COUNTS, decodes=1, context=SEEN - 1):
        found[call["deployment_id"]].append(call)
    return found


@pytest.mark.parametrize("model", COUNTS)
def test_flops_of_a_decode_are_those_of_the_config(calls, model):
    parameters, mixing, hidden, vocab = COUNTS[model]
    found = sum(call["count"] * call["flops"] for call in calls[model] if call["family"] in CALCULATING)
    assert found == pytest.approx(2 * (parameters + vocab * hidden) + mixing, rel=1e-9)


@pytest.mark.parametrize("model", SIXTEEN_BIT)
def test_bytes_of_a_decode_are_the_weights_that_it_passes(calls, model):
    parameters, _, hidden, vocab = COUNTS[model]
    families = ("gemm", "batched_gemm", "moe")
    found = sum(call["count"] * call["bytes"] for call in calls[model] if call["family"] in families)
    weights = 2 * (parameters + vocab * hidden)
    assert weights < found < 1.005 * weights
