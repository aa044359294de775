"""Prepares matrix products (GEMM) by cuBLASLt, plain and batched, with the first algorithm of its heuristic."""

from __future__ import annotations

import numpy as np

from kernelsight.measure.cuda.buffers import Memory, Prepared
from kernelsight.measure.cuda.cublaslt import FORMATS, WORKSPACE_BYTES, CublasLt, Plan
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

# operands of 8-bit products need rows of multiples of 16 bytes
EIGHT_BIT_UNIT = 16


def product(gpu: Gpu, point: Point) -> Prepared:
    """Prepare batch x (m, k) times (n, k) transposed; bytes of one launch: both operands and the result, once."""
    sizes, form = point.sizes, FORMATS[point.dtype]
    m, n, k, batch = sizes["m"], sizes["n"], sizes["k"], sizes.get("batch", 1)
    if form.operand_bytes == 1 and (k % EIGHT_BIT_UNIT or n % EIGHT_BIT_UNIT):
        raise CannotMeasure(f"8-bit products need n and k in multiples of {EIGHT_BIT_UNIT}")
    library = getattr(gpu, "cublaslt", None)
    if library is None:
        library = gpu.cublaslt = CublasLt()
    memory = Memory(gpu)
    unit_scale, workspace, host_one = memory.empty(4), memory.empty(WORKSPACE_BYTES), np.ones(1, np.float32)
    gpu.runtime.memcpy(unit_scale, host_one.ctypes.data, 4, gpu.runtime.memcpyHostToDevice)
    plan = Plan(library, point.dtype, m, n, k, batch, unit_scale)
    moved = batch * ((m * k + n * k) * form.operand_bytes + m * n * form.result_bytes)
    launches = []
    for copy in range(gpu.copies_of(moved, point.cache)):
        weight = memory.filled(point.dtype, batch * n * k, 2 * copy + 1)
        activation = memory.filled(point.dtype, batch * m * k, 2 * copy + 2)
        result = memory.empty(batch * m * n * form.result_bytes)
        arguments = (weight, activation, result, workspace, gpu.stream.ptr)
        launches.append(lambda arguments=arguments: plan.run(*arguments))
    return Prepared(point.implementation, ("cublaslt", library.version()), moved, launches, (memory, plan))
