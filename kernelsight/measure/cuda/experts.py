"""Prepares routed experts as vLLM runs them: its fused Triton kernel, every expert with the same number of tokens.

Not run on a GPU yet; the words of the library are those of vLLM 0.11 and later.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

from kernelsight.measure.cuda.attention import Bench, called, imported, on_stream
from kernelsight.measure.cuda.buffers import Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

MODULE = "vllm.model_executor.layers.fused_moe"
# rows and columns that one scale of block-quantised weights covers
BLOCK = 128


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Prepare the two products of a layer's experts and the activation between them.

    CannotMeasure: vLLM is not installed, or the sizes are those of no layer. RuntimeError: an error of vLLM.
    """
    sizes, width = point.sizes, 1 if point.dtype == "fp8_block" else 2
    tokens, hidden, experts, top_k = (sizes[name] for name in ("tokens", "hidden", "experts", "top_k"))
    inner = sizes["intermediate"]  # this GPU's share
    if sizes["moe_ep"] > 1 or sizes["expert_matrices"] != 3:
        raise CannotMeasure("only experts with a gate, and of this GPU alone, can be measured")
    if top_k > experts:
        raise CannotMeasure(f"a token reaches {top_k} experts, and there are {experts}")
    torch, library = imported("torch", "torch"), imported(f"{MODULE}.fused_moe", "vllm")
    bench, weights = Bench(gpu, torch, library), 3 * hidden * inner * width
    moved = min(experts, tokens * top_k) * weights + 4 * tokens * hidden

    def build() -> Callable[[], Any]:
        up, down = (bench.tensor(experts, *matrix, eight_bit=width == 1) for matrix in ((2 * inner, hidden),
                    (hidden, inner)))  # fmt: skip
        options = {}
        if width == 1:
            scales = [
                bench.full(1.0, "float32", experts, -(-matrix.shape[1] // BLOCK), -(-matrix.shape[2] // BLOCK))
                for matrix in (up, down)
            ]
            quantised = imported(f"{MODULE}.config", "vllm").fp8_w8a8_moe_quant_config
            options["quant_config"] = quantised(*scales, block_shape=[BLOCK, BLOCK])
        chosen = torch.arange(0, tokens * top_k, 1, dtype=torch.int32, device=bench.place) % experts
        shares = bench.full(1.0 / top_k, "float32", tokens, top_k)
        rows = bench.tensor(tokens, hidden)
        return lambda: library.fused_experts(rows, up, down, shares, chosen.view(tokens, top_k), **options)

    copies = gpu.copies_of(experts * weights, point.cache)
    launches = called(bench, "vllm", lambda stream: [on_stream(torch, stream, build()) for _ in range(copies)])
    return Prepared("fused_moe_triton", ("vllm", importlib.metadata.version("vllm")), moved, launches, bench)
