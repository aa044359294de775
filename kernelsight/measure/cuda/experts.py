"""Builds launches of routed experts, every expert with the same number of tokens, by installed libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kernelsight.measure.cuda.libraries import Bench, imported
from kernelsight.measure.device import CannotMeasure

# rows and columns that one scale of FP8 in blocks covers; elements of one of NVFP4, and of MXFP4
BLOCK, GROUP, MX_GROUP = 128, 16, 32
BYTES = {"bf16": 2.0, "nvfp4": 4.5 / 8, "w4a16_mxfp4": 4.25 / 8}
LAYERS = "vllm.model_executor.layers"


class Routed(NamedTuple):
    """Rows (tokens, hidden), the experts of each (tokens, top k) and their shares, and sizes of this GPU's experts."""

    rows: Any
    chosen: Any
    shares: Any
    experts: int
    hidden: int
    inner: int


def _routed(bench: Bench, eight_bit_rows: bool = False) -> Routed:
    sizes, torch = bench.sizes, bench.torch
    tokens, hidden, experts, top_k = (sizes[name] for name in ("tokens", "hidden", "experts", "top_k"))
    inner, ranks = sizes["intermediate"], sizes["moe_ep"]  # this GPU's share
    if sizes["expert_matrices"] != 3:
        raise CannotMeasure("only experts with a gate can be measured")
    if top_k > experts * ranks:
        raise CannotMeasure(f"a token reaches {top_k} experts, and there are {experts * ranks}")
    reached, width = min(experts, -(-tokens * top_k // ranks)), BYTES.get(bench.point.dtype, 1.0)
    bench.moved = round(reached * 3 * hidden * inner * width + 4 * tokens * hidden * min(1.0, top_k / ranks))
    chosen = torch.arange(0, tokens * top_k, 1, dtype=torch.int32, device=bench.place) % (experts * ranks)
    shares = bench.full(1.0 / top_k, "float32", tokens, top_k)
    rows = bench.tensor(tokens, hidden, eight_bit=eight_bit_rows)
    return Routed(rows, chosen.view(tokens, top_k), shares, experts, hidden, inner)


def fused(bench: Bench) -> Callable[[], Any]:
    """vLLM's fused Triton kernel: the two products of a layer's experts and the activation between them."""
    routed, eight_bit, torch = _routed(bench), bench.eight_bit[1], bench.torch
    bench.implementation = "fused_moe_triton"
    up = bench.tensor(routed.experts, 2 * routed.inner, routed.hidden, eight_bit=eight_bit)
    down = bench.tensor(routed.experts, routed.hidden, routed.inner, eight_bit=eight_bit)
    options: dict[str, Any] = {}
    if eight_bit:
        blocks = bench.point.dtype == "fp8_block"
        scales = [
            bench.full(1.0, "float32", routed.experts, *(-(-size // BLOCK) for size in matrix.shape[1:] if blocks))
            for matrix in (up, down)
        ]
        config = imported(f"{LAYERS}.fused_moe.config", "vllm").fp8_w8a8_moe_quant_config
        options["quant_config"] = config(*scales, block_shape=[BLOCK, BLOCK] if blocks else None)
    if (ranks := bench.sizes["moe_ep"]) > 1:
        place = torch.arange(0, routed.experts * ranks, 1, dtype=torch.int32, device=bench.place)
        options["global_num_experts"] = routed.experts * ranks
        options["expert_map"] = place.masked_fill(place >= routed.experts, -1)  # -1: of another GPU
    return lambda: bench.library.fused_experts(routed.rows, up, down, routed.shares, routed.chosen, **options)


def flashinfer(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's CUTLASS experts, tuned once as vLLM does at start; 8-bit rows are quantised before it."""
    routed, torch, kind = _routed(bench, bench.point.dtype == "fp8"), bench.torch, bench.point.dtype
    bench.implementation = "flashinfer_cutlass_moe"
    experts, packed = routed.experts, 2 if kind == "nvfp4" else 1
    shapes = [(2 * routed.inner, routed.hidden), (routed.hidden, routed.inner)]
    up, down = (bench.tensor(experts, rows, columns // packed, eight_bit=kind != "bf16") for rows, columns in shapes)
    one, each, scales = bench.full(1.0, "float32"), bench.full(1.0, "float32", experts), []
    if kind == "fp8":
        scales = [each, one, each, one]
    elif kind == "nvfp4":
        blocks = [bench.full(1.0, "float8_e4m3fn", experts, rows, columns // GROUP) for rows, columns in shapes]
        first, second = (block.view(torch.int32) for block in blocks)
        scales = [one, first, each, one, second, each]
        up, down = up.view(torch.long), down.view(torch.long)
    output, run = bench.empty(*routed.rows.shape), bench.library.fused_moe.cutlass_fused_moe
    given = (routed.rows, routed.chosen, routed.shares, up, down, output.dtype, scales)
    options = {"ep_size": bench.sizes["moe_ep"], "ep_rank": 0, "output": output}

    def tune() -> bool:
        with bench.library.autotune(True):
            run(*given, **options)
        return True

    bench.once("tuned", tune)
    return lambda: run(*given, **options)


def triton_mxfp4(bench: Bench) -> Callable[[], Any]:
    """OpenAI's triton_kernels as vLLM runs experts in MXFP4 on Hopper; it routes by logits, which name the experts."""
    routed, sizes, uint8 = _routed(bench), bench.sizes, bench.torch.uint8
    if sizes["moe_ep"] > 1:
        raise CannotMeasure("it is measured with all experts on one GPU")
    kernels, config = imported("triton_kernels.matmul_ogs", "vllm"), imported(f"{LAYERS}.fused_moe.config", "vllm")
    swizzle = imported(f"{LAYERS}.quantization.utils.mxfp4_utils", "vllm")._swizzle_mxfp4
    weights, scales = [], []
    for rows, columns in ((2 * routed.inner, routed.hidden), (routed.hidden, routed.inner)):
        weight = bench.tensor(routed.experts, rows, columns // 2, eight_bit=True).view(uint8)
        # an exponent of 0
        scale = bench.full(127, "uint8", routed.experts, rows, columns // MX_GROUP)
        weight, flex, scale = swizzle(weight, scale, 8)
        weights.append(weight)
        scales.append(kernels.PrecisionConfig(weight_scale=scale, flex_ctx=kernels.FlexCtx(rhs_data=flex)))
    given = config.mxfp4_w4a16_moe_quant_config(w1_scale=scales[0], w2_scale=scales[1])
    logits = bench.full(0.0, "bfloat16", sizes["tokens"], routed.experts).scatter(1, routed.chosen.long(), 4.0)
    run, top_k = bench.library.triton_kernel_moe_forward, sizes["top_k"]
    return lambda: run(routed.rows, *weights, logits, top_k, True, quant_config=given)
