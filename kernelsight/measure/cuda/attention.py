"""Prepares attention kernels of installed serving libraries; tensors are passed by DLPack.

CuPy has no bfloat16 and no 8-bit floats: integer arrays are passed, and viewed as these types by PyTorch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from kernelsight.measure.cuda.buffers import Memory, Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

# tokens per block of the paged cache
PAGE = 16
WORKSPACE_BYTES = 128 * 2**20
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

    @property
    def held(self) -> int:
        """Bytes of one set of buffers, including the part of the cache outside the window."""
        cache = 2 * self.pages * PAGE * self.kv_heads * self.head_dim * self.cache_bytes
        return self.batch * (4 * self.new * self.heads * self.head_dim + cache)


class Bench:
    """What the builders of a point share: the device, memory, modules, the shape, and one workspace for all copies.

    ``place``: PyTorch's name of the tensors' device; ``shape``: of attention.
    """

    place = "cuda"

    def __init__(self, gpu: Gpu, torch: Any, library: Any, shape: Any = None) -> None:
        self.gpu, self.torch, self.library, self.shape, self.memory = gpu, torch, library, shape, Memory(gpu)

    @cached_property
    def workspace(self) -> Any:
        """One scratch buffer for all launches, which run in order on one stream."""
        return self.torch.zeros(WORKSPACE_BYTES, dtype=self.torch.uint8, device=self.place)

    def tensor(self, *shape: int, eight_bit: bool = False) -> Any:
        """Return a tensor of bfloat16 or E4M3 in CuPy's memory."""
        cupy, torch, count = self.gpu.cupy, self.torch, math.prod(shape)
        number_format, width, cupy_type, torch_type = ("fp8", 1, cupy.uint8, "float8_e4m3fn")
        if not eight_bit:
            number_format, width, cupy_type, torch_type = ("bf16", 2, cupy.int16, "bfloat16")
        address = self.memory.filled(number_format, count)
        block = cupy.cuda.UnownedMemory(address, width * count, self.memory, self.gpu.ordinal)
        array = cupy.ndarray(shape, cupy_type, cupy.cuda.MemoryPointer(block, 0))
        return torch.from_dlpack(array).view(getattr(torch, torch_type))

    @cached_property
    def flash_version(self) -> int:
        """The FlashAttention version that the installed vLLM runs on this GPU."""
        preferred = FLASH_VERSIONS.get(int(self.gpu.properties["major"]), 2)
        if preferred == 4 and self.shape.head_dim > FLASH_4_HEAD_DIM:
            return 2
        try:
            return preferred if self.library.is_fa_version_supported(preferred) else 2
        except (AssertionError, ValueError):  # the version is unknown to this vLLM
            return 2

    def queries(self, eight_bit: bool = False) -> Any:
        """Return queries of (all new tokens, heads, head_dim)."""
        sizes = (self.shape.batch * self.shape.new, self.shape.heads, self.shape.head_dim)
        return self.tensor(*sizes, eight_bit=eight_bit)

    def like(self, queries: Any) -> Any:
        """Return the output tensor for queries: bfloat16."""
        return self.torch.empty(tuple(queries.shape), dtype=self.torch.bfloat16, device=self.place)

    def cache(self) -> tuple[Any, Any]:
        """Return key and value caches of (blocks, PAGE, kv_heads, head_dim)."""
        sizes = (self.shape.batch * self.shape.pages, PAGE, self.shape.kv_heads, self.shape.head_dim)
        eight_bit = self.shape.cache_bytes == 1
        return self.tensor(*sizes, eight_bit=eight_bit), self.tensor(*sizes, eight_bit=eight_bit)

    def blocks(self) -> Any:
        """Return the block numbers of all sequences in random order, as in a server: int32."""
        count = self.shape.batch * self.shape.pages
        return self.torch.randperm(count, device=self.place).to(self.torch.int32)

    def starts(self, length: int) -> Any:
        """Return the start of each sequence, and the end: (batch + 1,) int32."""
        return self.torch.arange(0, (self.shape.batch + 1) * length, length, dtype=self.torch.int32, device=self.place)

    def full(self, value: float, dtype: str, *shape: int) -> Any:
        """Return a tensor of one value."""
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype), device=self.place)


Build = Callable[[Bench], Callable[[], Any]]
Launches = list[Callable[[], Any]]


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Prepare attention by the point's library; CannotMeasure if it is not installed or does not support the point.

    RuntimeError: any other error of the library, with its name.
    """
    shape = shape_of(point)
    library = _LIBRARIES[point.implementation]
    decode = point.family == "decode_attention"
    if decode not in library.builds:
        raise CannotMeasure(f"{point.implementation} is not used for {point.family}")
    if shape.heads % shape.kv_heads:
        raise CannotMeasure("the number of query heads is not a multiple of the key-value heads")
    _check_support(point.implementation, library, shape)
    torch, module = imported("torch", "torch"), imported(library.module, library.distribution)
    bench = Bench(gpu, torch, module, shape)
    name = point.implementation
    if name == "flash_attention_vllm":
        # the name in published sweeps
        name = f"flash_attention_{bench.flash_version}"
        if shape.cache_bytes == 1 and bench.flash_version == 2:
            raise CannotMeasure("FlashAttention 2, which vLLM uses on this GPU, does not support an 8-bit cache")
    copies = gpu.copies_of(shape.held, point.cache)
    build = library.builds[decode]
    launches = called(
        bench, library.distribution, lambda stream: [on_stream(torch, stream, build(bench)) for _ in range(copies)]
    )
    engine = (library.distribution.replace("-", "_"), importlib.metadata.version(library.distribution))
    return Prepared(name, engine, shape.moved, launches, bench)


def called(bench: Bench, distribution: str, build: Callable[[Any], Launches]) -> Launches:
    """Return what ``build`` makes of a library's calls on CuPy's stream; RuntimeError: an error of the library."""
    gpu, torch = bench.gpu, bench.torch
    # PyTorch may load its own CUDA runtime, which does not see the device set in CuPy's
    stream = torch.cuda.ExternalStream(gpu.stream.ptr, device=gpu.ordinal)
    try:
        with torch.cuda.device(gpu.ordinal), torch.cuda.stream(stream), torch.inference_mode():
            return build(stream)
    except (CannotMeasure, MemoryError, gpu.runtime.CUDARuntimeError):
        raise
    except Exception as error:  # errors for unsupported shapes differ between versions of a library
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RuntimeError(f"{distribution} rejects it: {reason}") from error


def shape_of(point: Point) -> Shape:
    """Return the sizes of a point of either family."""
    sizes, decode = point.sizes, point.family == "decode_attention"
    new = 1 if decode else sizes["new_tokens"]
    keys = sizes["context"] + 1 if decode else sizes["cached_tokens"] + new
    heads = (sizes["heads"], sizes["kv_heads"], sizes["head_dim"])
    window = sizes["window"] if sizes["window"] < keys else 0
    return Shape(sizes["batch"], new, keys, *heads, window, 1 if point.dtype.endswith("/fp8") else 2)


def _check_support(name: str, library: Library, shape: Shape) -> None:
    if shape.window and "window" not in library.can:
        raise CannotMeasure(f"{name} has no sliding window")
    if shape.cache_bytes == 1 and "fp8" not in library.can:
        raise CannotMeasure(f"{name} does not support an 8-bit cache")


def on_stream(torch: Any, stream: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a launch on CuPy's stream, which a graph captures."""

    def launch() -> Any:
        with torch.cuda.stream(stream), torch.inference_mode():
            return run()

    return launch


def _torch(bench: Bench) -> Callable[[], Any]:
    shape, torch = bench.shape, bench.torch
    q = bench.tensor(shape.batch, shape.heads, shape.new, shape.head_dim)
    k, v = (bench.tensor(shape.batch, shape.kv_heads, shape.keys, shape.head_dim) for _ in range(2))
    options: dict[str, Any] = {"is_causal": shape.new > 1 and shape.new == shape.keys}
    if 1 < shape.new < shape.keys:
        # is_causal would align the mask with the first key
        from torch.nn.attention.bias import causal_lower_right

        options = {"attn_mask": causal_lower_right(shape.new, shape.keys)}
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, enable_gqa=True, **options)


def _flashinfer_prefill(bench: Bench) -> Callable[[], Any]:
    """FlashInfer's prefill: keys and values are contiguous, or with a prefix or in 8 bits read from the paged cache."""
    shape, flashinfer, bf16 = bench.shape, bench.library, bench.torch.bfloat16
    options = {"causal": True, "window_left": _keys_before(shape), "q_data_type": bf16, "kv_data_type": bf16}
    q, heads = bench.queries(), (shape.heads, shape.kv_heads, shape.head_dim)
    output, starts = bench.like(q), bench.starts(shape.new)
    if shape.new == shape.keys and shape.cache_bytes == 2:
        ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(bench.workspace, "NHD")
        ragged.plan(starts, starts, *heads, **options)
        k, v = (bench.tensor(shape.batch * shape.new, shape.kv_heads, shape.head_dim) for _ in range(2))
        return lambda: ragged.run(q, k, v, out=output)
    cache = bench.cache()
    options["kv_data_type"] = cache[0].dtype
    paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(bench.workspace, "NHD")
    paged.plan(starts, bench.starts(shape.pages), bench.blocks(), _last_page(bench), *heads, PAGE, **options)
    return lambda: paged.run(q, cache, out=output)


def _flashinfer_decode(bench: Bench) -> Callable[[], Any]:
    shape, cache, q = bench.shape, bench.cache(), bench.queries()
    wrapper = bench.library.BatchDecodeWithPagedKVCacheWrapper(bench.workspace, "NHD", use_tensor_cores=True)
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    types = {"q_data_type": bench.torch.bfloat16, "kv_data_type": cache[0].dtype}
    starts, last_page = bench.starts(shape.pages), _last_page(bench)
    wrapper.plan(starts, bench.blocks(), last_page, *heads, PAGE, window_left=_keys_before(shape), **types)
    output = bench.like(q)
    return lambda: wrapper.run(q, cache, out=output)


def _last_page(bench: Bench) -> Any:
    return bench.full((bench.shape.keys - 1) % PAGE + 1, "int32", bench.shape.batch)


def _keys_before(shape: Shape) -> int:
    """Return the keys before a query's own within the window, which includes it; -1 for all."""
    return shape.window - 1 if shape.window else -1


def _vllm(bench: Bench) -> Callable[[], Any]:
    """FlashAttention as called by vLLM: all keys and values, including the prompt's own, are in the paged cache."""
    shape, flash, eight_bit = bench.shape, bench.library, bench.shape.cache_bytes == 1
    # its 8-bit kernels take 8-bit queries, and a scale per sequence and head
    (k, v), q, starts = bench.cache(), bench.queries(eight_bit), bench.starts(shape.new)
    lengths, window = bench.full(shape.keys, "int32", shape.batch), [_keys_before(shape), 0] if shape.window else None
    options = {
        "cu_seqlens_q": starts, "max_seqlen_q": shape.new, "seqused_k": lengths, "max_seqlen_k": shape.keys,
        "block_table": bench.blocks().view(shape.batch, shape.pages), "causal": True, "window_size": window,
        "fa_version": bench.flash_version, "out": bench.like(q),
    }  # fmt: skip
    if eight_bit:
        scales = bench.full(1.0, "float32", shape.batch, shape.kv_heads)
        options |= {"q_descale": scales, "k_descale": scales, "v_descale": scales}
    if bench.flash_version == 3:
        # computed once per step, and used by all layers
        options["scheduler_metadata"] = flash.get_scheduler_metadata(
            batch_size=shape.batch, max_seqlen_q=shape.new, max_seqlen_k=shape.keys, num_heads_q=shape.heads,
            num_heads_kv=shape.kv_heads, headdim=shape.head_dim, cache_seqlens=lengths, qkv_dtype=q.dtype,
            cu_seqlens_q=starts, page_size=PAGE, causal=True, window_size=tuple(window or (-1, -1)), num_splits=0,
        )  # fmt: skip
    return lambda: flash.flash_attn_varlen_func(q, k, v, **options)


def _cudnn(bench: Bench) -> Callable[[], Any]:
    shape, cudnn = bench.shape, bench.library
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
    output = bench.like(q)
    result.set_output(True).set_dim(list(output.shape)).set_stride(list(output.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace = bench.torch.empty(max(graph.get_workspace_size(), 1), dtype=bench.torch.uint8, device=bench.place)
    tensors = {**dict(zip(inputs, (q, k, v), strict=True)), result: output}
    return lambda: graph.execute(tensors, workspace, handle=handle)


def imported(module: str, distribution: str) -> Any:
    """Return a module of a library; CannotMeasure if it is not installed, or cannot be imported."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # an inconsistent installation may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            raise CannotMeasure(f"{distribution} is not installed") from None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CannotMeasure(f"{distribution} is installed, but cannot be imported: {reason}") from error


class Library(NamedTuple):
    """A library: its builders (key: is decode), and its features besides bfloat16 without a window."""

    module: str
    distribution: str
    builds: dict[bool, Build]
    can: frozenset[str] = frozenset()


_LIBRARIES: dict[str, Library] = {
    "torch_sdpa": Library("torch", "torch", {False: _torch, True: _torch}),
    "flashinfer": Library(
        "flashinfer",
        "flashinfer-python",
        {False: _flashinfer_prefill, True: _flashinfer_decode},
        frozenset({"window", "fp8"}),
    ),
    "flash_attention_vllm": Library(
        "vllm.vllm_flash_attn", "vllm", {False: _vllm, True: _vllm}, frozenset({"window", "fp8"})
    ),
    "cudnn_frontend": Library("cudnn", "nvidia-cudnn-frontend", {False: _cudnn}, frozenset({"window"})),
}
