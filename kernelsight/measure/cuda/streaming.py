"""Prepares memory-bound kernels, compiled from streaming.cu: one builder per family."""

from __future__ import annotations

from collections.abc import Callable

from kernelsight.measure.cuda.buffers import Memory, Prepared, function, launcher
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import NO_MEMORY, CannotMeasure
from kernelsight.measure.suite import Point
from kernelsight.version import VERSION

OWN = ("kernelsight", VERSION)
# rows of the embedding table, and of the table of rotary angles
VOCABULARY, POSITIONS = 131072, 8192
TOP_K, TOP_P = 50, 0.9
BLOCK_TOKENS = 16
# columns per scale of block-wise quantisation
SCALE_COLUMNS = 128
FLUSH_BLOCKS, FLUSH_THREADS = 2048, 256
Launch = Callable[[], None]


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Prepare the kernel of a point of norm, activation, rope, kv_write, quantize, embedding, softmax or sampling."""
    rows, columns = point.sizes["rows"], point.sizes["columns"]
    _check_columns(point, columns)
    memory = Memory(gpu)
    build, moved = _BUILD[point.family](gpu, memory, point, rows, columns)
    copies = gpu.copies_of(moved, point.cache)
    return Prepared(point.implementation, OWN, moved, [build() for _ in range(copies)], memory)


def flush_of(gpu: Gpu, size: int) -> Launch:
    """Return a launch that reads ``size`` bytes, after which L2 holds only clean lines of them."""
    memory = Memory(gpu)
    data, sink = memory.filled("fp32", size // 4), memory.empty(4)
    gpu.flush_memory = memory
    numpy = gpu.cupy
    arguments = (numpy.uint64(data), numpy.uint64(size // 16), numpy.uint64(sink))
    kernel = function(gpu, "read_all")
    return lambda: kernel((FLUSH_BLOCKS,), (FLUSH_THREADS,), arguments)


def empty(gpu: Gpu, point: Point) -> Prepared:
    """Prepare an empty kernel, whose time is the cost of a launch."""
    return Prepared(point.implementation, OWN, 1, [launcher(gpu, "empty_kernel", 1, 32, ())])


def _check_columns(point: Point, columns: int) -> None:
    """Raise CannotMeasure where the kernel's vector width does not divide the columns."""
    unit = {"kv_write": 16, "rope": point.sizes.get("head_dim", 2), "sampling": 1, "softmax": 4}.get(point.family, 8)
    if point.implementation == "quantize_per_block":
        unit = SCALE_COLUMNS
    if columns % unit or point.sizes.get("head_dim", 2) % 2:
        raise CannotMeasure(f"its columns are not a multiple of {unit}")


def _threads(columns: int, elements: int = 8) -> int:
    """Return the threads per row: one per ``elements`` columns, whole warps, at most 1,024."""
    return min(1024, max(32, -(-columns // elements // 32) * 32))


def _norm(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    weight, count = memory.filled("bf16", columns), rows * columns
    fused = point.implementation == "fused_add_rms_norm"

    def build() -> Launch:
        residual = memory.filled("bf16", count) if fused else memory.empty(2 * count)
        hidden = memory.filled("bf16", count)
        return launcher(gpu, point.implementation, rows, _threads(columns), (residual, hidden, weight), columns)

    return build, count * (8 if fused else 4) + 2 * columns


def _activation(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    gelu, count = int(point.implementation == "gelu_and_mul"), rows * columns

    def build() -> Launch:
        output, gate_and_up = memory.empty(2 * count), memory.filled("bf16", 2 * count)
        return launcher(gpu, "gated_activation", rows, _threads(columns), (output, gate_and_up), columns, gelu)

    return build, 6 * count


def _rope(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    width = point.sizes["head_dim"]
    angles, positions = memory.filled("fp32", POSITIONS * width), memory.below(rows, POSITIONS)

    def build() -> Launch:
        heads = memory.filled("bf16", rows * columns)
        addresses = (heads, angles, positions)
        return launcher(gpu, "rope_neox", rows, _threads(columns, 2), addresses, columns, width)

    return build, 4 * rows * columns


def _kv_write(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    half, blocks = columns // 2, 2 * -(-rows // BLOCK_TOKENS)
    width = 1 if point.dtype == "fp8" else 2
    slots = memory.slots(rows, blocks)

    def build() -> Launch:
        new = [memory.filled("bf16", rows * half, seed) for seed in (1, 2)]
        caches = [memory.empty(blocks * BLOCK_TOKENS * half * width) for _ in new]
        addresses = (*new, *caches, slots)
        return launcher(gpu, "paged_kv_write", rows, _threads(half), addresses, half, int(width == 1), 1.0)

    return build, rows * columns * (2 + width)


def _quantize(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    scales = memory.filled("fp32", max(rows * -(-columns // SCALE_COLUMNS), 1))

    def build() -> Launch:
        output, values = memory.empty(rows * columns), memory.filled("bf16", rows * columns)
        return launcher(gpu, point.implementation, rows, _threads(columns), (output, values, scales), columns)

    return build, 3 * rows * columns


def _embedding(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    free, _ = gpu.runtime.memGetInfo()
    tokens = min(VOCABULARY, free // 4 // (2 * columns))
    if tokens < 1:
        raise CannotMeasure(NO_MEMORY)
    table, seeds = memory.filled("bf16", tokens * columns), iter(range(1, 1 << 20))

    def build() -> Launch:
        ids = memory.below(rows, tokens, next(seeds))
        addresses = (memory.empty(2 * rows * columns), table, ids)
        return launcher(gpu, "embedding_gather", rows, _threads(columns), addresses, columns)

    return build, 4 * rows * columns


def _softmax(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    def build() -> Launch:
        addresses = (memory.empty(4 * rows * columns), memory.filled("fp32", rows * columns))
        return launcher(gpu, "softmax", rows, _threads(columns, 4), addresses, columns)

    return build, 8 * rows * columns


def _sampling(gpu: Gpu, memory: Memory, point: Point, rows: int, columns: int) -> tuple[Callable[[], Launch], int]:
    def build() -> Launch:
        addresses = (memory.empty(8 * rows), memory.filled("fp32", rows * columns))
        if point.implementation == "argmax":
            return launcher(gpu, "argmax", rows, 1024, addresses, columns)
        return launcher(gpu, "top_k_top_p", rows, 1024, addresses, columns, TOP_K, TOP_P, 1)

    return build, 4 * rows * columns


_BUILD = {
    "norm": _norm,
    "activation": _activation,
    "rope": _rope,
    "kv_write": _kv_write,
    "quantize": _quantize,
    "embedding": _embedding,
    "softmax": _softmax,
    "sampling": _sampling,
}
