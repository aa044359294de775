"""Builds launches of softmax attention over prompts and single tokens, by installed libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kernelsight.measure.cuda.libraries import Bench
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

# tokens per block of the paged cache
PAGE = 16
# FlashAttention version preferred by vLLM per major compute capability, else 2; largest head size of version 4
FLASH_VERSIONS, FLASH_4_HEAD_DIM = {9: 3, 10: 4}, 128


class Shape(NamedTuple):
    """Sizes of one attention call: ``new`` queries per sequence attend to ``keys``, which include the queries' own.

    ``window``: largest number of keys per query, 0 for all; ``cache_bytes``: bytes per element of the cache.
    """

    batch: int
    new: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    cache_bytes: int

    @property
    def pages(self) -> int:
        """Blocks of one sequence in a paged cache."""
        return -(-self.keys // PAGE)

    @property
    def moved(self) -> int:
        """Bytes that a launch must move: queries, results, new keys and values, and the cache that it reads."""
        cached = self.keys - self.new
        read = min(cached, self.window - 1) if self.window else cached
        width, new_tensors = self.kv_heads * self.head_dim, 2
        if self.new == 1:
            # the key and value of a decoded token are already in the cache
            read, new_tensors = read + 1, 0
        rows = 4 * self.new * self.heads * self.head_dim + 2 * new_tensors * self.new * width
        return self.batch * (rows + 2 * read * width * self.cache_bytes)


def shape_of(point: Point) -> Shape:
    """Return the sizes of a point of either family."""
    sizes, decode = point.sizes, point.family == "decode_attention"
    new = 1 if decode else sizes["new_tokens"]
    keys = sizes["context"] + 1 if decode else sizes["cached_tokens"] + new
    heads = (sizes["heads"], sizes["kv_heads"], sizes["head_dim"])
    window = sizes["window"] if sizes["window"] < keys else 0
    return Shape(sizes["batch"], new, keys, *heads, window, 1 if point.dtype.endswith("/fp8") else 2)


def sized(bench: Bench) -> Shape:
    """Return the sizes of a point, and state the bytes of a launch; CannotMeasure if the library lacks support."""
    shape = shape_of(bench.point)
    if shape.heads % shape.kv_heads:
        raise CannotMeasure("the number of query heads is not a multiple of the key-value heads")
    if shape.window and not bench.kernel.windows:
        raise CannotMeasure(f"{bench.implementation} has no sliding window")
    bench.moved = shape.moved
    return shape


def flash_version(bench: Bench, head_dim: int) -> int:
    """Return the FlashAttention version that the installed vLLM runs on this GPU, which names the kernel in a row."""
    preferred = FLASH_VERSIONS.get(int(bench.gpu.properties["major"]), 2)
    if preferred == 4 and head_dim > FLASH_4_HEAD_DIM:
        preferred = 2
    try:
        version = preferred if bench.library.is_fa_version_supported(preferred) else 2
    except (AssertionError, ValueError):  # the version is unknown to this vLLM
        version = 2
    bench.implementation = f"flash_attention_{version}"
    return version


def _queries(bench: Bench, shape: Shape, eight_bit: bool = False) -> tuple[Any, Any]:
    """Return queries of (all new tokens, heads, head_dim), and the tensor of their results."""
    sizes = (shape.batch * shape.new, shape.heads, shape.head_dim)
    return bench.tensor(*sizes, eight_bit=eight_bit), bench.empty(*sizes)


def _cache(bench: Bench, shape: Shape) -> tuple[Any, Any]:
    """Return key and value caches of (blocks, PAGE, kv_heads, head_dim)."""
    sizes = (shape.batch * shape.pages, PAGE, shape.kv_heads, shape.head_dim)
    eight_bit = shape.cache_bytes == 1
    return bench.tensor(*sizes, eight_bit=eight_bit), bench.tensor(*sizes, eight_bit=eight_bit)


def torch(bench: Bench) -> Callable[[], Any]:
    """PyTorch's scaled dot-product attention of contiguous keys and values."""
    shape, torch = sized(bench), bench.torch
    q = bench.tensor(shape.batch, shape.heads, shape.new, shape.head_dim)
    k, v = (bench.tensor(shape.batch, shape.kv_heads, shape.keys, shape.head_dim) for _ in range(2))
    options: dict[str, Any] = {"is_causal": shape.new > 1 and shape.new == shape.keys}
    if 1 < shape.new < shape.keys:
        # is_causal would align the mask with the first key
        from torch.nn.attention.bias import causal_lower_right

        options = {"attn_mask": causal_lower_right(shape.new, shape.keys)}
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, enable_gqa=True, **options)


def flashinfer_prefill(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's prefill: keys and values are contiguous, or with a prefix or in 8 bits read from the paged cache."""
    shape, flashinfer, bf16 = sized(bench), bench.library, bench.torch.bfloat16
    options = {"causal": True, "window_left": _keys_before(shape), "q_data_type": bf16, "kv_data_type": bf16}
    (q, output), heads = _queries(bench, shape), (shape.heads, shape.kv_heads, shape.head_dim)
    starts = bench.starts(shape.batch, shape.new)
    if shape.new == shape.keys and shape.cache_bytes == 2:
        ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(bench.workspace, "NHD")
        ragged.plan(starts, starts, *heads, **options)
        k, v = (bench.tensor(shape.batch * shape.new, shape.kv_heads, shape.head_dim) for _ in range(2))
        return lambda: ragged.run(q, k, v, out=output)
    cache, blocks = _cache(bench, shape), bench.scattered(shape.batch * shape.pages)
    options["kv_data_type"] = cache[0].dtype
    paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(bench.workspace, "NHD")
    pages = bench.starts(shape.batch, shape.pages)
    paged.plan(starts, pages, blocks, _last_page(bench, shape), *heads, PAGE, **options)
    return lambda: paged.run(q, cache, out=output)


def flashinfer_decode(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's decode attention over a paged cache."""
    shape = sized(bench)
    cache, (q, output) = _cache(bench, shape), _queries(bench, shape)
    wrapper = bench.library.BatchDecodeWithPagedKVCacheWrapper(bench.workspace, "NHD", use_tensor_cores=True)
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    types = {"q_data_type": bench.torch.bfloat16, "kv_data_type": cache[0].dtype}
    starts, last_page = bench.starts(shape.batch, shape.pages), _last_page(bench, shape)
    blocks = bench.scattered(shape.batch * shape.pages)
    wrapper.plan(starts, blocks, last_page, *heads, PAGE, window_left=_keys_before(shape), **types)
    return lambda: wrapper.run(q, cache, out=output)


def _last_page(bench: Bench, shape: Shape) -> Any:
    return bench.full((shape.keys - 1) % PAGE + 1, "int32", shape.batch)


def _keys_before(shape: Shape) -> int:
    """Return the keys before a query's own within the window, which includes it; -1 for all."""
    return shape.window - 1 if shape.window else -1


def vllm(bench: Bench) -> Callable[[], Any]:
    """FlashAttention as called by vLLM: all keys and values, including the prompt's own, are in the paged cache."""
    shape, flash = sized(bench), bench.library
    eight_bit, version = shape.cache_bytes == 1, flash_version(bench, shape.head_dim)
    if eight_bit and version == 2:
        raise CannotMeasure("FlashAttention 2, which vLLM uses on this GPU, does not support an 8-bit cache")
    # its 8-bit kernels take 8-bit queries, and a scale per sequence and head
    (k, v), (q, output), starts = (
        _cache(bench, shape),
        _queries(bench, shape, eight_bit),
        bench.starts(shape.batch, shape.new),
    )
    lengths, window = bench.full(shape.keys, "int32", shape.batch), [_keys_before(shape), 0] if shape.window else None
    options = {
        "cu_seqlens_q": starts, "max_seqlen_q": shape.new, "seqused_k": lengths, "max_seqlen_k": shape.keys,
        "block_table": bench.scattered(shape.batch * shape.pages).view(shape.batch, shape.pages), "causal": True,
        "window_size": window, "fa_version": version, "out": output,
    }  # fmt: skip
    if eight_bit:
        scales = bench.full(1.0, "float32", shape.batch, shape.kv_heads)
        options |= {"q_descale": scales, "k_descale": scales, "v_descale": scales}
    if version == 3:
        # computed once per step, and used by all layers
        options["scheduler_metadata"] = flash.get_scheduler_metadata(
            batch_size=shape.batch, max_seqlen_q=shape.new, max_seqlen_k=shape.keys, num_heads_q=shape.heads,
            num_heads_kv=shape.kv_heads, headdim=shape.head_dim, cache_seqlens=lengths, qkv_dtype=q.dtype,
            cu_seqlens_q=starts, page_size=PAGE, causal=True, window_size=tuple(window or (-1, -1)), num_splits=0,
        )  # fmt: skip
    return lambda: flash.flash_attn_varlen_func(q, k, v, **options)


def cudnn(bench: Bench) -> Callable[[], Any]:
    """A graph of cuDNN's frontend: attention of contiguous keys and values."""
    shape, cudnn = sized(bench), bench.library
    q = bench.tensor(shape.batch, shape.heads, shape.new, shape.head_dim)
    k, v = (bench.tensor(shape.batch, shape.kv_heads, shape.keys, shape.head_dim) for _ in range(2))
    handle = bench.gpu.cudnn_handle
    if handle is None:
        # one handle for all points: each handle allocates memory
        handle = bench.gpu.cudnn_handle = cudnn.create_handle()
        cudnn.set_stream(handle=handle, stream=bench.gpu.stream.ptr)
    floats = {"intermediate_data_type": cudnn.data_type.FLOAT, "compute_data_type": cudnn.data_type.FLOAT}
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, handle=handle, **floats)
    layouts = [{"dim": list(tensor.shape), "stride": list(tensor.stride())} for tensor in (q, k, v)]
    inputs = [graph.tensor(**layout, data_type=cudnn.data_type.BFLOAT16) for layout in layouts]
    mask = "use_causal_mask" if shape.new == shape.keys else "use_causal_mask_bottom_right"
    options = {"attn_scale": shape.head_dim**-0.5, mask: True, "is_inference": True}
    if shape.window:
        options["sliding_window_length"] = shape.window
    result, _ = graph.sdpa(name="attention", q=inputs[0], k=inputs[1], v=inputs[2], **options)
    output = bench.empty(*q.shape)
    result.set_output(True).set_dim(list(output.shape)).set_stride(list(output.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace = bench.torch.empty(max(graph.get_workspace_size(), 1), dtype=bench.torch.uint8, device=bench.place)
    tensors = {**dict(zip(inputs, (q, k, v), strict=True)), result: output}
    return lambda: graph.execute(tensors, workspace, handle=handle)
