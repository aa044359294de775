"""Attention by libraries that a serving user has, where they are installed; tensors reach them by DLPack.

CuPy has no bfloat16: an array of 16-bit words is handed over, and viewed as bfloat16 on the other side.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelsight.measure.cuda.buffers import Memory, Prepared
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

if TYPE_CHECKING:
    from kernelsight.measure.cuda.device import Gpu

# tokens of a block of the paged cache
PAGE = 16
FLASHINFER_WORKSPACE = 128 * 2**20
Build = Callable[["Gpu", Memory, Any, dict[str, int]], Callable[[], Any]]


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Return attention by the library that the point names; CannotMeasure where it is not installed or refuses."""
    sizes, decode = point.sizes, point.family == "decode_attention"
    module, distribution, builds = _LIBRARIES[point.implementation]
    if decode not in builds:
        raise CannotMeasure(f"{point.implementation} is not used for {point.family}")
    if sizes["heads"] % sizes["kv_heads"]:
        raise CannotMeasure("its query heads are no multiple of the key-value heads")
    if sizes["cached_tokens" if not decode else "window"]:
        raise CannotMeasure("cached prefixes and windows are not measured")
    torch = _imported("torch", "torch")
    library = _imported(module, distribution)
    moved, memory = _bytes(sizes, decode), Memory(gpu)
    stream = torch.cuda.ExternalStream(gpu.stream.ptr)
    launches = []
    try:
        with torch.cuda.device(gpu.ordinal), torch.cuda.stream(stream), torch.inference_mode():
            for _ in range(gpu.copies_of(moved, point.cache)):
                launches.append(_on(torch, stream, builds[decode](gpu, memory, (torch, library), sizes)))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise CannotMeasure(f"{distribution} refuses it: {str(error).strip().splitlines()[0]}") from None
    name = _kernel_name(point.implementation, gpu)
    engine = (distribution.replace("-", "_"), importlib.metadata.version(distribution))
    return Prepared(name, engine, moved, launches, memory)


def _on(torch: Any, stream: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    """Run on CuPy's stream, which a graph captures."""

    def launch() -> Any:
        with torch.cuda.stream(stream), torch.inference_mode():
            return run()

    return launch


def _bytes(sizes: dict[str, int], decode: bool) -> int:
    queries = sizes["batch"] * sizes["heads"] * sizes["head_dim"] * (1 if decode else sizes["new_tokens"])
    tokens = sizes["context"] + 1 if decode else sizes["new_tokens"]
    return 4 * queries + 4 * sizes["batch"] * tokens * sizes["kv_heads"] * sizes["head_dim"]


def _tensor(gpu: Gpu, memory: Memory, torch: Any, shape: tuple[int, ...]) -> Any:
    """Return a bfloat16 tensor over memory of CuPy."""
    count = 1
    for size in shape:
        count *= size
    address, cupy = memory.filled("bf16", count), gpu.cupy
    owned = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, 2 * count, memory, gpu.ordinal), 0)
    return torch.from_dlpack(cupy.ndarray(shape, cupy.int16, owned)).view(torch.bfloat16)


def _paged(gpu: Gpu, memory: Memory, torch: Any, sizes: dict[str, int]) -> tuple[Any, Any, int]:
    """Return key and value caches of (blocks, PAGE, kv_heads, head_dim), and the blocks of one sequence."""
    pages = -(-(sizes["context"] + 1) // PAGE)
    shape = (sizes["batch"] * pages, PAGE, sizes["kv_heads"], sizes["head_dim"])
    return _tensor(gpu, memory, torch, shape), _tensor(gpu, memory, torch, shape), pages


def _prompt(gpu: Gpu, memory: Memory, torch: Any, sizes: dict[str, int]) -> tuple[Any, Any, Any]:
    """Return queries, keys and values of (all tokens, heads, head_dim)."""
    tokens = sizes["batch"] * sizes["new_tokens"]
    heads = (sizes["heads"], sizes["kv_heads"], sizes["kv_heads"])
    return tuple(_tensor(gpu, memory, torch, (tokens, each, sizes["head_dim"])) for each in heads)


def _starts(torch: Any, count: int, each: int) -> Any:
    return torch.arange(0, (count + 1) * each, each, dtype=torch.int32, device="cuda")


def _torch(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int], decode: bool) -> Callable[[], Any]:
    torch, _ = libraries
    tokens = 1 if decode else sizes["new_tokens"]
    keys = sizes["context"] + 1 if decode else tokens
    shapes = [(sizes["batch"], sizes["heads"], tokens, sizes["head_dim"])]
    shapes += 2 * [(sizes["batch"], sizes["kv_heads"], keys, sizes["head_dim"])]
    q, k, v = (_tensor(gpu, memory, torch, shape) for shape in shapes)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=not decode, enable_gqa=True)


def _torch_prefill(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int]) -> Callable[[], Any]:
    return _torch(gpu, memory, libraries, sizes, False)


def _torch_decode(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int]) -> Callable[[], Any]:
    return _torch(gpu, memory, libraries, sizes, True)


def _flashinfer_prefill(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int]) -> Callable[[], Any]:
    torch, flashinfer = libraries
    q, k, v = _prompt(gpu, memory, torch, sizes)
    workspace = torch.empty(FLASHINFER_WORKSPACE, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    starts = _starts(torch, sizes["batch"], sizes["new_tokens"])
    heads = (sizes["heads"], sizes["kv_heads"], sizes["head_dim"])
    wrapper.plan(starts, starts, *heads, causal=True, q_data_type=torch.bfloat16)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, k, v, out=out)


def _flashinfer_decode(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int]) -> Callable[[], Any]:
    torch, flashinfer = libraries
    keys, values, pages = _paged(gpu, memory, torch, sizes)
    batch = sizes["batch"]
    q = _tensor(gpu, memory, torch, (batch, sizes["heads"], sizes["head_dim"]))
    workspace = torch.empty(FLASHINFER_WORKSPACE, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    last = torch.full((batch,), sizes["context"] % PAGE + 1, dtype=torch.int32, device="cuda")
    blocks = torch.randperm(batch * pages, device="cuda").to(torch.int32)
    heads = (sizes["heads"], sizes["kv_heads"], sizes["head_dim"])
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    wrapper.plan(_starts(torch, batch, pages), blocks, last, *heads, PAGE, **types)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, (keys, values), out=out)


def _vllm_prefill(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int]) -> Callable[[], Any]:
    torch, flash = libraries
    q, k, v = _prompt(gpu, memory, torch, sizes)
    starts, longest = _starts(torch, sizes["batch"], sizes["new_tokens"]), sizes["new_tokens"]
    words = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": longest, "max_seqlen_k": longest}
    return lambda: flash.flash_attn_varlen_func(q, k, v, causal=True, fa_version=_version(gpu), **words)


def _vllm_decode(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int]) -> Callable[[], Any]:
    torch, flash = libraries
    keys, values, pages = _paged(gpu, memory, torch, sizes)
    batch, longest = sizes["batch"], sizes["context"] + 1
    q = _tensor(gpu, memory, torch, (batch, sizes["heads"], sizes["head_dim"]))
    words = {
        "cu_seqlens_q": _starts(torch, batch, 1),
        "max_seqlen_q": 1,
        "seqused_k": torch.full((batch,), longest, dtype=torch.int32, device="cuda"),
        "max_seqlen_k": longest,
        "block_table": torch.randperm(batch * pages, device="cuda").to(torch.int32).view(batch, pages),
    }
    return lambda: flash.flash_attn_varlen_func(q, keys, values, causal=True, fa_version=_version(gpu), **words)


def _cudnn_prefill(gpu: Gpu, memory: Memory, libraries: Any, sizes: dict[str, int]) -> Callable[[], Any]:
    torch, cudnn = libraries
    batch, tokens, width = sizes["batch"], sizes["new_tokens"], sizes["head_dim"]
    q, k, v = (
        _tensor(gpu, memory, torch, (batch, heads, tokens, width))
        for heads in (sizes["heads"], sizes["kv_heads"], sizes["kv_heads"])
    )
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=gpu.stream.ptr)
    floats = {"intermediate_data_type": cudnn.data_type.FLOAT, "compute_data_type": cudnn.data_type.FLOAT}
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, handle=handle, **floats)
    inputs = [graph.tensor_like(one) for one in (q, k, v)]
    scaled = {"attn_scale": width**-0.5, "use_causal_mask": True, "is_inference": True}
    result, _ = graph.sdpa(name="attention", q=inputs[0], k=inputs[1], v=inputs[2], **scaled)
    out = torch.empty_like(q)
    result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    words = {**dict(zip(inputs, (q, k, v), strict=True)), result: out}
    return lambda: graph.execute(words, workspace, handle=handle)


def _version(gpu: Gpu) -> int:
    """FlashAttention's version that vLLM runs: 3 on Hopper, 2 elsewhere."""
    return 3 if int(gpu.properties["major"]) == 9 else 2


def _kernel_name(implementation: str, gpu: Gpu) -> str:
    """Return the implementation as published sweeps call it."""
    return f"flash_attention_{_version(gpu)}" if implementation == "flash_attention_vllm" else implementation


def _imported(module: str, distribution: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CannotMeasure(f"{distribution} is not installed") from None


# implementation: module, distribution, builders for (prefill, decode) by whether it is decode
_LIBRARIES: dict[str, tuple[str, str, dict[bool, Build]]] = {
    "torch_sdpa": ("torch", "torch", {False: _torch_prefill, True: _torch_decode}),
    "flashinfer": ("flashinfer", "flashinfer-python", {False: _flashinfer_prefill, True: _flashinfer_decode}),
    "flash_attention_vllm": ("vllm.vllm_flash_attn", "vllm", {False: _vllm_prefill, True: _vllm_decode}),
    "cudnn_frontend": ("cudnn", "nvidia-cudnn-frontend", {False: _cudnn_prefill}),
}
