"""Prepares attention over a paged cache and products of experts, compiled from attention.cu: no library is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelsight.measure.cuda.buffers import Memory, Prepared, launcher
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point
from kernelsight.version import VERSION

OWN = ("kernelsight", VERSION)
# of attention.cu: tokens of a page, threads of a block; heads of a block and widest head of the two kernels
PAGE, THREADS = 16, 128
HEADS, LATENT = (4, 256), (2, 576)
# fewest keys of a part of a sequence, and blocks of a multiprocessor that parts are made for
LEAST_KEYS, BLOCKS_PER_SM = 256, 4
Launch = Callable[[], None]


def attention(gpu: Gpu, point: Point) -> Prepared:
    """Prepare attention of prompts or single tokens, or of latents (MLA after absorption), over a paged cache."""
    sizes, latent = point.sizes, point.family == "mla_decode"
    batch, heads, new = sizes["batch"], sizes["heads"], sizes.get("new_tokens", 1)
    keys, rows = sizes["context"] + 1 if new == 1 and "context" in sizes else sizes["cached_tokens"] + new, batch * new
    heads_of_block, widest = LATENT if latent else HEADS
    kv_heads = 1 if latent else sizes["kv_heads"]
    rope = sizes["rope_dim"] if latent else 0
    values = sizes["kv_lora_rank"] if latent else sizes["head_dim"]
    width, cache_bytes = values + rope, 1 if point.dtype.endswith("fp8") else 2
    if latent and cache_bytes == 1:
        raise CannotMeasure("this kernel reads 16-bit latents")
    if sizes.get("window"):
        raise CannotMeasure("this kernel reads all keys, without a window")
    if heads % kv_heads or width > widest:
        raise CannotMeasure(f"its heads share no keys evenly, or are wider than {widest}")
    blocks = rows * kv_heads * -(-heads // kv_heads // heads_of_block)
    wanted = -(-BLOCKS_PER_SM * int(gpu.properties["multiProcessorCount"]) // blocks)
    splits = max(1, min(wanted, keys // LEAST_KEYS))
    pages = batch * -(-keys // PAGE)
    cached = batch * keys * kv_heads * width * (1 if latent else 2) * cache_bytes
    moved = cached + 2 * rows * heads * (width + values)
    memory = Memory(gpu)
    table, parts = memory.pages(pages), memory.empty(4 * rows * heads * splits * (values + 2))
    stored = "fp8" if cache_bytes == 1 else "bf16"
    scale = float(width) ** -0.5

    def build() -> Launch:
        queries, output = memory.filled("bf16", rows * heads * width), memory.empty(2 * rows * heads * values)
        caches = [memory.filled(stored, pages * PAGE * kv_heads * width) for _ in range(1 if latent else 2)]
        addresses = (parts, queries, *caches, table)
        attend = (
            launcher(
                gpu, "paged_mla_decode", blocks * splits, THREADS, addresses, keys, heads, values, rope, splits, scale
            )
            if latent
            else launcher(
                *(gpu, "paged_attention", blocks * splits, THREADS, addresses),
                *(keys, new, heads, kv_heads, width, int(cache_bytes == 1), splits, scale),
            )
        )
        return in_turn([attend, launcher(gpu, "join_parts", rows * heads, THREADS, (output, parts), splits, values)])

    held = moved + pages * PAGE * kv_heads * width * 2 * cache_bytes - cached
    return Prepared(
        point.implementation, OWN, moved, [build() for _ in range(gpu.copies_of(held, point.cache))], memory
    )


def experts(gpu: Gpu, point: Point) -> Prepared:
    """Prepare the two products of routed experts and the activation between them, of tokens that lie by expert.

    All experts get equally many tokens. Routing, and the sum over a token's experts, are not timed.
    """
    sizes = point.sizes
    tokens, hidden, width = sizes["tokens"], sizes["hidden"], sizes["intermediate"]
    count, top_k = sizes["experts"], sizes["top_k"]
    if (sizes["moe_ep"], sizes["expert_matrices"]) != (1, 3) or top_k > count or point.dtype != "bf16":
        raise CannotMeasure("it runs gated experts of bf16 on one GPU, at most as many a token as there are")
    rows, reached = tokens * top_k, min(count, tokens * top_k)
    weights = 3 * count * hidden * width * 2
    moved = 3 * reached * hidden * width * 2 + 2 * rows * (2 * hidden + 6 * width)
    memory = Memory(gpu)
    starts, warps = memory.starts(count, rows), THREADS // 32

    def product(output: int, given: int, matrix: int, columns: int, depth: int) -> Launch:
        blocks = count * -(-columns // warps)
        return launcher(gpu, "grouped_product", blocks, THREADS, (output, given, matrix, starts), columns, depth)

    def build() -> Launch:
        given, output = memory.filled("bf16", rows * hidden), memory.empty(2 * rows * hidden)
        first, second = (memory.filled("bf16", count * hidden * width * each) for each in (2, 1))
        gate_and_up, activated = memory.empty(4 * rows * width), memory.empty(2 * rows * width)
        threads = min(1024, max(32, -(-width // 8 // 32) * 32))
        return in_turn(
            [
                product(gate_and_up, given, first, 2 * width, hidden),
                launcher(gpu, "gated_activation", rows, threads, (activated, gate_and_up), width, 0),
                product(output, activated, second, hidden, width),
            ]
        )

    copies = gpu.copies_of(weights + 2 * rows * (2 * hidden + 3 * width), point.cache)
    return Prepared(point.implementation, OWN, moved, [build() for _ in range(copies)], memory)


def in_turn(launches: Sequence[Launch]) -> Launch:
    """Return a function that launches some kernels one after another."""

    def launch() -> None:
        for each in launches:
            each()

    return launch
