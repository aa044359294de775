"""Builds launches of products with quantised operands, by installed libraries.

As in published sweeps, a launch quantises the activation before it multiplies; weights are quantised already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelsight.measure.cuda.libraries import Bench, imported
from kernelsight.measure.device import CannotMeasure

# elements of a scale: of FP8 in blocks, and of NVFP4; rows and columns to which the scales of NVFP4 are padded
BLOCK, GROUP, SCALE_ROWS, SCALE_COLUMNS = 128, 16, 128, 4
FP8_UTILS = "vllm.model_executor.layers.quantization.utils.fp8_utils"


def _operands(bench: Bench, packed: int = 1) -> tuple[Any, Any, Any]:
    """Return rows (m, k), a weight of 8 bits (n, k / packed), and the tensor of their product (m, n)."""
    m, n, k = (bench.sizes[name] for name in "mnk")
    if n % BLOCK or k % BLOCK:
        raise CannotMeasure(f"products of blocks need n and k in multiples of {BLOCK}")
    return bench.tensor(m, k), bench.tensor(n, k // packed, eight_bit=True), bench.empty(m, n)


def _block_scales(bench: Bench) -> Any:
    return bench.full(1.0, "float32", bench.sizes["n"] // BLOCK, bench.sizes["k"] // BLOCK)


def deepgemm(bench: Bench) -> Callable[[], Any]:
    """DeepGEMM as vLLM calls it: scales are powers of two on Blackwell."""
    utils, library = imported(FP8_UTILS, "vllm"), bench.library
    rows, weight, product = _operands(bench)
    power_of_two = library.is_deep_gemm_e8m0_used()
    scaled = utils.deepgemm_post_process_fp8_weight_block(weight, _block_scales(bench), (BLOCK, BLOCK), power_of_two)

    def multiply() -> None:
        if power_of_two:
            given = utils.per_token_group_quant_fp8_packed_for_deepgemm(rows, BLOCK, use_ue8m0=True)
        else:
            given = utils.per_token_group_quant_fp8(rows, BLOCK, column_major_scales=True, use_ue8m0=False)
        library.fp8_gemm_nt(given, scaled, product)

    return multiply


def triton_block_fp8(bench: Bench) -> Callable[[], Any]:
    """vLLM's Triton kernel, which runs where DeepGEMM does not."""
    (rows, weight, product), scales, utils = _operands(bench), _block_scales(bench), bench.library

    def multiply() -> Any:
        given, given_scales = utils.per_token_group_quant_fp8(rows, BLOCK, column_major_scales=False, use_ue8m0=False)
        block = [BLOCK, BLOCK]
        return utils.w8a8_triton_block_scaled_mm(given, weight, given_scales, scales, block, output_dtype=product.dtype)

    return multiply


def flashinfer_block_fp8(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's DeepGEMM of Hopper, which quantises the activation itself; vLLM takes it for few rows."""
    (rows, weight, product), scales = _operands(bench), _block_scales(bench)
    multiply = bench.library.fp8_blockscale_gemm_sm90
    return lambda: multiply(rows, weight, weight_scale=scales, out=product)


def nvfp4(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's products of NVFP4, by the backend that names the kernel."""
    library, backend = bench.library, {"cutlass_nvfp4": "cutlass", "cutedsl_nvfp4": "cute-dsl"}[bench.implementation]
    rows, weight, product = _operands(bench, packed=2)
    m, n, k = (bench.sizes[name] for name in "mnk")
    bench.moved = (m + n) * k // 2 + (m + n) * k // GROUP + 2 * m * n
    padded = [-(-n // SCALE_ROWS) * SCALE_ROWS, -(-k // GROUP // SCALE_COLUMNS) * SCALE_COLUMNS]
    uint8, one = bench.torch.uint8, bench.full(1.0, "float32", 1)
    scales = bench.full(1.0, "float8_e4m3fn", *padded).view(uint8)
    layout = library.SfLayout.layout_128x4

    def multiply() -> Any:
        given, given_scales = library.nvfp4_quantize(rows, one, sfLayout=layout, do_shuffle=False)
        operands = (given, weight.view(uint8).T, given_scales, scales.T, one)
        return library.mm_fp4(*operands, out=product, out_dtype=product.dtype, backend=backend)

    return multiply


def cutlass_fp8(bench: Bench) -> Callable[[], Any]:
    """vLLM's CUTLASS product of FP8 with one scale a tensor."""
    (rows, weight, product), scale, library = _operands(bench), bench.full(1.0, "float32", 1), bench.library

    def multiply() -> Any:
        given, given_scale = library.scaled_fp8_quant(rows, scale)
        return library.cutlass_scaled_mm(given, weight.T, given_scale, scale, out_dtype=product.dtype)

    return multiply
