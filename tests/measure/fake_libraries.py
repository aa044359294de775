"""PyTorch, FlashInfer, vLLM's FlashAttention, cuDNN's frontend and NCCL as far as measuring uses them, without a GPU.

Each function has the words of the library's own (torch 2.15, flashinfer-python 0.7.2, vllm_flash_attn of vLLM 0.33,
nvidia-cudnn-frontend 1.32, nccl of cupy 14.2) and holds shapes, types and sizes to what its documentation asks for.
``calls`` tells what each attention saw: (queries, keys of a sequence, window or 0, bytes of a number of the cache).
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import math
import sys
import types
from typing import Any

import numpy as np

from tests.measure.fake_cupy import State

PAGE = 16
BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8, "float32": 4}


class Tensor:
    """A shape, a type, and values where they are small whole numbers."""

    def __init__(self, shape: tuple[int, ...], dtype: str, values: np.ndarray | None = None) -> None:
        self.shape, self.dtype, self.values = tuple(shape), dtype, values

    def view(self, *what: Any) -> Tensor:
        if isinstance(what[0], str):
            assert BYTES[what[0]] == BYTES[self.dtype]
            return Tensor(self.shape, what[0], self.values)
        assert math.prod(what) == math.prod(self.shape)
        return Tensor(what, self.dtype, None if self.values is None else self.values.reshape(what))

    def __mod__(self, divisor: int) -> Tensor:
        return Tensor(self.shape, self.dtype, self.values % divisor)

    def to(self, dtype: str) -> Tensor:
        return Tensor(self.shape, dtype, self.values)

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[at + 1 :]) for at in range(len(self.shape)))


def install(monkeypatch: Any, state: State) -> list[tuple[int, int, int, int]]:
    """Put all of them in the place of what is installed, and return the list that their calls are noted in."""
    calls: list[tuple[int, int, int, int]] = []

    def ran(queries: int, keys: int, window: int, width: int) -> None:
        calls.append((queries, keys, window, width))
        state.count()

    modules = {**_torch(ran), "flashinfer": _flashinfer(ran), "cudnn": _cudnn(ran)}
    modules |= {"vllm": types.ModuleType("vllm"), "vllm.vllm_flash_attn": _vllm(ran), **_experts(ran)}
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    return calls


def _torch(ran: Any) -> dict[str, Any]:
    torch, functional = types.ModuleType("torch"), types.ModuleType("torch.nn.functional")
    bias = types.ModuleType("torch.nn.attention.bias")
    for name in BYTES:
        setattr(torch, name, name)
    torch.from_dlpack = lambda array: Tensor(array.shape, array.dtype.name)
    torch.empty = torch.zeros = lambda size, dtype, device: Tensor(size if isinstance(size, tuple) else (size,), dtype)
    torch.full = lambda shape, value, dtype, device: Tensor(shape, dtype, np.full(shape, value))
    torch.randperm = lambda count, device: Tensor((count,), "int64", np.random.default_rng(0).permutation(count))

    def arange(start: int, end: int, step: int, dtype: str, device: str) -> Tensor:
        values = np.arange(start, end, step)
        return Tensor(values.shape, dtype, values)

    torch.arange = arange
    torch.emptied, torch.streams = [], []
    emptied, streams = torch.emptied, torch.streams
    torch.inference_mode = contextlib.nullcontext
    torch.cuda = types.SimpleNamespace(
        ExternalStream=lambda stream_ptr, device=None: streams.append((stream_ptr, device)) or stream_ptr,
        device=contextlib.nullcontext,
        stream=contextlib.nullcontext,
        empty_cache=lambda: emptied.append(True),
    )

    def attend(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: Any = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        batch, heads, new, width = q.shape
        keys = k.shape[2]
        assert k.shape == v.shape == (batch, k.shape[1], keys, width) and heads % k.shape[1] == 0 and enable_gqa
        assert {q.dtype, k.dtype, v.dtype} == {"bfloat16"} and not (is_causal and attn_mask)
        # its mask begins with the first key, a decoded token sees all
        assert is_causal == (new == keys > 1) and attn_mask == ((new, keys) if 1 < new < keys else None)
        ran(new, keys, 0, 2)

    functional.scaled_dot_product_attention = attend
    bias.causal_lower_right = lambda new, keys: (new, keys)
    torch.nn = types.SimpleNamespace(functional=functional)
    names = ("torch.nn", "torch.nn.attention")
    return {"torch": torch, **{name: types.ModuleType(name) for name in names}, "torch.nn.attention.bias": bias}


def _heads(q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, width: int) -> None:
    assert q.shape[1:] == (heads, width) and k.shape == v.shape and k.shape[-2:] == (kv_heads, width)


def _flashinfer(ran: Any) -> Any:
    library = types.ModuleType("flashinfer")

    class Wrapper:
        def __init__(self, workspace: Tensor, layout: str = "NHD", use_tensor_cores: bool = False) -> None:
            assert workspace.shape == (128 * 2**20,) and workspace.dtype == "uint8" and layout == "NHD"

    class Ragged(Wrapper):
        def plan(
            self, qo_indptr: Tensor, kv_indptr: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
            head_dim_vo: Any = None, *, causal: bool = False, window_left: int = -1, q_data_type: str = "float16",
            kv_data_type: Any = None,
        ) -> None:  # fmt: skip
            assert causal and {qo_indptr.dtype, kv_indptr.dtype} == {"int32"} and q_data_type == kv_data_type
            self.starts, self.window, self.type = qo_indptr.values, window_left + 1, q_data_type
            self.heads = num_qo_heads, num_kv_heads, head_dim_qk

        def run(self, q: Tensor, k: Tensor, v: Tensor, *, out: Tensor) -> None:
            _heads(q, k, v, *self.heads)
            assert q.shape[0] == k.shape[0] == self.starts[-1] and out.shape == q.shape
            assert {one.dtype for one in (q, k, v)} == {self.type}
            ran(self.starts[1], self.starts[1], self.window, 2)

    class Paged(Wrapper):
        def _plan(self, starts: Tensor, blocks: Tensor, last: Tensor, page: int, window: int, kind: str) -> None:
            assert {one.dtype for one in (starts, blocks, last)} == {"int32"} and page == PAGE
            assert sorted(blocks.values) == list(range(starts.values[-1])) and len(last.values) + 1 == len(
                starts.values
            )
            assert ((last.values >= 1) & (last.values <= PAGE)).all()
            self.pages, self.type, self.window = starts.values[-1], kind, window + 1
            self.keys = int((starts.values[1] - 1) * PAGE + last.values[0])

        def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> None:
            keys, values = paged_kv_cache
            _heads(q, keys, values, *self.heads)
            assert keys.shape[:2] == (self.pages, PAGE) and {keys.dtype, values.dtype} == {self.type}
            assert q.dtype == "bfloat16" and q.shape[0] == self.queries and out.shape == q.shape
            ran(self.new, self.keys, self.window, BYTES[self.type])

    class Prefill(Paged):
        def plan(
            self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
            num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: Any = None, *,
            causal: bool = False, window_left: int = -1, q_data_type: str = "float16", kv_data_type: Any = None,
        ) -> None:  # fmt: skip
            last, page = paged_kv_last_page_len, page_size
            self._plan(paged_kv_indptr, paged_kv_indices, last, page, window_left, kv_data_type)
            assert causal and qo_indptr.dtype == "int32" and q_data_type == "bfloat16"
            self.queries, self.new = qo_indptr.values[-1], qo_indptr.values[1]
            self.heads = num_qo_heads, num_kv_heads, head_dim_qk

    class Decode(Paged):
        def plan(
            self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
            head_dim: int, page_size: int, *, window_left: int = -1, q_data_type: str = "float16",
            kv_data_type: Any = None,
        ) -> None:  # fmt: skip
            self._plan(indptr, indices, last_page_len, page_size, window_left, kv_data_type)
            self.queries, self.new, self.heads = len(indptr.values) - 1, 1, (num_qo_heads, num_kv_heads, head_dim)
            assert q_data_type == "bfloat16"

    library.BatchPrefillWithRaggedKVCacheWrapper = Ragged
    library.BatchPrefillWithPagedKVCacheWrapper = Prefill
    library.BatchDecodeWithPagedKVCacheWrapper = Decode
    return library


def _vllm(ran: Any) -> Any:
    library = types.ModuleType("vllm.vllm_flash_attn")

    def is_fa_version_supported(fa_version: int) -> bool:
        if fa_version not in (2, 3, 4):
            raise ValueError(f"Unsupported FA version: {fa_version}")
        return True

    def get_scheduler_metadata(
        batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int, headdim: int,
        cache_seqlens: Tensor, qkv_dtype: str = "bfloat16", cu_seqlens_q: Any = None, page_size: Any = None,
        causal: bool = False, window_size: tuple[int, int] = (-1, -1), num_splits: int = 0,
    ) -> tuple:  # fmt: skip
        assert (cache_seqlens.values == max_seqlen_k).all() and cu_seqlens_q.values[1] == max_seqlen_q
        assert causal and page_size == PAGE and num_splits == 0
        return batch_size, (num_heads_q, num_heads_kv, headdim), qkv_dtype, tuple(window_size)

    def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, max_seqlen_q: int, cu_seqlens_q: Tensor, max_seqlen_k: int,
        cu_seqlens_k: Any = None, seqused_k: Any = None, *, causal: bool = False, window_size: Any = None,
        block_table: Any = None, out: Any = None, scheduler_metadata: Any = None, q_descale: Any = None,
        k_descale: Any = None, v_descale: Any = None, fa_version: int = 2,
    ) -> None:  # fmt: skip
        assert cu_seqlens_k is None and out.shape == q.shape and out.dtype == "bfloat16"
        _heads(q, k, v, q.shape[1], k.shape[-2], q.shape[2])
        batch = len(cu_seqlens_q.values) - 1
        assert causal and cu_seqlens_q.dtype == "int32" and q.shape[0] == cu_seqlens_q.values[-1]
        assert max_seqlen_q == cu_seqlens_q.values[1] and q.dtype == k.dtype == v.dtype
        assert block_table.dtype == seqused_k.dtype == "int32" and seqused_k.shape == (batch,)
        assert block_table.shape[0] == batch and k.shape[:2] == (math.prod(block_table.shape), PAGE)
        assert 0 <= block_table.shape[1] * PAGE - max_seqlen_k < PAGE and (seqused_k.values == max_seqlen_k).all()
        if k.dtype != "bfloat16":
            scales = (q_descale, k_descale, v_descale)
            assert fa_version in (3, 4) and all(one.shape == (batch, k.shape[-2]) for one in scales)
            assert all(one.dtype == "float32" for one in scales)
        assert window_size is None or (len(window_size) == 2 and window_size[1] == 0)
        heads, window = (q.shape[1], k.shape[2], q.shape[2]), tuple(window_size or (-1, -1))
        assert scheduler_metadata == ((batch, heads, q.dtype, window) if fa_version == 3 else None)
        versions.append(fa_version)
        ran(max_seqlen_q, max_seqlen_k, window[0] + 1, BYTES[k.dtype])

    library.versions = versions = []
    library.is_fa_version_supported = is_fa_version_supported
    library.get_scheduler_metadata = get_scheduler_metadata
    library.flash_attn_varlen_func = flash_attn_varlen_func
    return library


def _experts(ran: Any) -> dict[str, Any]:
    """Return the modules of vLLM's fused experts, which note (tokens, experts, top k, bytes of a weight)."""
    root = "vllm.model_executor.layers.fused_moe"
    library, config = types.ModuleType(f"{root}.fused_moe"), types.ModuleType(f"{root}.config")
    config.fp8_w8a8_moe_quant_config = lambda w1_scale, w2_scale, block_shape: (w1_scale, w2_scale, block_shape)

    def fused_experts(
        hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weights: Tensor, topk_ids: Tensor, quant_config: Any = None
    ) -> None:
        (tokens, hidden), (experts, twice, of_up), (also, of_down, inner) = hidden_states.shape, w1.shape, w2.shape
        assert experts == also and of_up == of_down == hidden and twice == 2 * inner and w1.dtype == w2.dtype
        assert topk_ids.dtype == "int32" and topk_weights.dtype == "float32" and topk_ids.shape == topk_weights.shape
        assert topk_ids.shape[0] == tokens and topk_ids.values.max() < experts
        assert all(len(set(row)) == len(row) for row in topk_ids.values.tolist())
        assert (quant_config is None) == (w1.dtype == "bfloat16")
        if quant_config:
            *scales, block = quant_config
            assert [one.shape for one in scales] == [
                (experts, -(-rows // block[0]), -(-columns // block[1])) for _, rows, columns in (w1.shape, w2.shape)
            ]
        ran(tokens, experts, topk_ids.shape[1], BYTES[w1.dtype])

    library.fused_experts = fused_experts
    return {library.__name__: library, config.__name__: config}


def _cudnn(ran: Any) -> Any:
    library = types.ModuleType("cudnn")
    library.data_type = types.SimpleNamespace(FLOAT="float", BFLOAT16="bfloat16")
    library.heur_mode = types.SimpleNamespace(A="A")
    library.handles = handles = []
    library.create_handle = lambda: handles.append(object()) or handles[-1]
    library.set_stream = lambda handle, stream: None

    class Result:
        def set_output(self, kept: bool) -> Result:
            return self

        def set_dim(self, sizes: list[int]) -> Result:
            self.sizes = sizes
            return self

        def set_stride(self, steps: list[int]) -> Result:
            assert len(steps) == len(self.sizes) == 4 and steps[-1] == 1
            return self

    class Graph:
        def __init__(self, io_data_type: str, intermediate_data_type: str, compute_data_type: str, handle: Any) -> None:
            assert (io_data_type, intermediate_data_type, compute_data_type) == ("bfloat16", "float", "float")

        def tensor(self, *, dim: list[int], stride: list[int], data_type: str) -> Any:
            assert data_type == "bfloat16" and stride[-1] == 1 and len(stride) == len(dim) == 4
            return _Described(Tensor(tuple(dim), data_type))

        def sdpa(
            self, *, name: str, q: Any, k: Any, v: Any, attn_scale: float, is_inference: bool,
            use_causal_mask: bool = False, use_causal_mask_bottom_right: bool = False,
            sliding_window_length: Any = None,
        ) -> tuple[Any, None]:  # fmt: skip
            (batch, heads, new, width), keys = q.one.shape, k.one.shape[2]
            assert k.one.shape == v.one.shape == (batch, k.one.shape[1], keys, width) and heads % k.one.shape[1] == 0
            assert use_causal_mask == (new == keys) != use_causal_mask_bottom_right and is_inference
            assert attn_scale == width**-0.5
            self.saw = (new, keys, sliding_window_length or 0, 2)
            return Result(), None

        def build(self, heuristics: list[str]) -> None: ...

        def get_workspace_size(self) -> int:
            return 0

        def execute(self, filled: dict[Any, Tensor], workspace: Tensor, handle: Any) -> None:
            assert len(filled) == 4 and workspace.shape == (1,)
            ran(*self.saw)

    library.pygraph = Graph
    return library


class _Described:
    """A tensor of cuDNN's graph."""

    def __init__(self, one: Tensor) -> None:
        self.one = one


class Nccl(types.ModuleType):
    """CuPy's binding of NCCL: communicators of one process, whose calls have to lie in one group."""

    NCCL_FLOAT16, NCCL_BFLOAT16, NCCL_SUM, available = 6, 9, 0, True

    def __init__(self, state: State) -> None:
        super().__init__("cupy.cuda.nccl")
        self.state, self.open, self.made = state, False, 0
        self.calls: list[tuple[str, int, int]] = []  # name, numbers, stream
        self.sent: list[tuple[int, int, int]] = []  # stream, peer, address
        self.received: list[tuple[int, int, int]] = []
        self.NcclCommunicator = types.SimpleNamespace(initAll=self._made)

    def get_version(self) -> int:
        return 23007

    def groupStart(self) -> None:
        self.open = True

    def groupEnd(self) -> None:
        self.open = False
        self.state.count()

    def _made(self, devices: list[int]) -> list[Any]:
        assert isinstance(devices, list) and len(set(devices)) == len(devices)
        self.made += 1
        return [_Communicator(self) for _ in devices]


class _Communicator:
    def __init__(self, of: Nccl) -> None:
        self.of = of

    def _noted(self, name: str, given: int, got: int, count: int, kind: int, stream: int) -> None:
        assert self.of.open and given != got and count > 0 and kind == Nccl.NCCL_BFLOAT16
        self.of.calls.append((name, count, stream))

    def allReduce(self, given: int, got: int, count: int, kind: int, add: int, stream: int) -> None:
        self._noted("all_reduce", given, got, count, kind, stream)

    def allGather(self, given: int, got: int, count: int, kind: int, stream: int) -> None:
        self._noted("all_gather", given, got, count, kind, stream)

    def send(self, given: int, count: int, kind: int, peer: int, stream: int) -> None:
        self.of.sent.append((stream, peer, given))
        self._noted("all_to_all", given, -1, count, kind, stream)

    def recv(self, got: int, count: int, kind: int, peer: int, stream: int) -> None:
        assert self.of.open and count > 0 and kind == Nccl.NCCL_BFLOAT16
        self.of.received.append((stream, peer, got))

    def reduceScatter(self, given: int, got: int, count: int, kind: int, add: int, stream: int) -> None:
        self._noted("reduce_scatter", given, got, count, kind, stream)
