"""Builds launches of routed experts, every expert with the same number of tokens, by installed libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelsight.measure.cuda.libraries import Bench, imported
from kernelsight.measure.device import CannotMeasure

# rows and columns that one scale of block-quantised weights covers
BLOCK = 128


def fused(bench: Bench) -> Callable[[], Any]:
    """vLLM's fused Triton kernel: the two products of a layer's experts and the activation between them."""
    sizes, eight_bit, torch = bench.sizes, bench.eight_bit[1], bench.torch
    tokens, hidden, experts, top_k = (sizes[name] for name in ("tokens", "hidden", "experts", "top_k"))
    inner = sizes["intermediate"]  # this GPU's share
    if sizes["moe_ep"] > 1 or sizes["expert_matrices"] != 3:
        raise CannotMeasure("only experts with a gate, and of this GPU alone, can be measured")
    if top_k > experts:
        raise CannotMeasure(f"a token reaches {top_k} experts, and there are {experts}")
    bench.implementation = "fused_moe_triton"
    bench.moved = min(experts, tokens * top_k) * 3 * hidden * inner * (1 if eight_bit else 2) + 4 * tokens * hidden
    up = bench.tensor(experts, 2 * inner, hidden, eight_bit=eight_bit)
    down = bench.tensor(experts, hidden, inner, eight_bit=eight_bit)
    options = {}
    if eight_bit:
        scales = [
            bench.full(1.0, "float32", experts, -(-matrix.shape[1] // BLOCK), -(-matrix.shape[2] // BLOCK))
            for matrix in (up, down)
        ]
        config = imported(bench.kernel.module.rpartition(".")[0] + ".config", "vllm")
        options["quant_config"] = config.fp8_w8a8_moe_quant_config(*scales, block_shape=[BLOCK, BLOCK])
    chosen = torch.arange(0, tokens * top_k, 1, dtype=torch.int32, device=bench.place) % experts
    shares = bench.full(1.0 / top_k, "float32", tokens, top_k)
    rows = bench.tensor(tokens, hidden)
    return lambda: bench.library.fused_experts(rows, up, down, shares, chosen.view(tokens, top_k), **options)
