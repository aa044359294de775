"""Attention through the libraries themselves, as far as they go without a GPU; skipped where one is not installed.

PyTorch computes on the host. FlashInfer plans and runs up to the compiled kernel, in whose place a reference of ours
reads its words. cuDNN's frontend validates its graph. vLLM's function is held by its signature.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from kernelsight.measure.cuda.attention import PAGE, shape_of
from kernelsight.measure.cuda.collectives import nccl_version
from kernelsight.measure.cuda.device import open_gpu
from kernelsight.measure.cuda.libraries import Bench
from kernelsight.measure.suite import Point
from tests.measure import fake_cupy, fake_libraries, on_host

HEADS = {"heads": 8, "kv_heads": 2, "head_dim": 64}
# new tokens, cached before them, window
PROMPTS = ((64, 0, 0), (32, 64, 0), (1, 63, 0), (50, 37, 0), (40, 37, 24), (64, 0, 16))
# context, window
DECODES = ((63, 0), (40, 0), (50, 16))


def need(name: str, distribution: str) -> Any:
    """Return an installed module, or skip."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{distribution} is not installed: pip install {distribution}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library itself
            return importlib.import_module(name)
    except ImportError as error:  # parts that need the driver's library
        pytest.skip(f"{distribution} cannot be imported here: {error}")


def points(implementation: str, *, dtype: str = "bf16/bf16", windows: bool = True) -> list[Point]:
    """Return prompts and decoded tokens of 1 and 3 sequences."""
    found = []
    for batch in (1, 3):
        for new, cached, window in PROMPTS:
            sizes = {"batch": batch, "new_tokens": new, "cached_tokens": cached, "window": window, **HEADS}
            found.append(Point("prefill_attention", implementation, dtype, "warm", tuple(sorted(sizes.items()))))
        for context, window in DECODES:
            sizes = {"batch": batch, "context": context, "window": window, **HEADS}
            found.append(Point("decode_attention", implementation, dtype, "warm", tuple(sorted(sizes.items()))))
    return [point for point in found if windows or not point.sizes["window"]]


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int) -> np.ndarray:
    """Return causal attention of (new, heads, width) over (keys, kv_heads, width); the last key is the last query's."""
    new, keys, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    k, v = (np.repeat(one, group, axis=1) for one in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
    own, at = np.arange(keys - new, keys)[:, None], np.arange(keys)[None, :]
    seen = (at <= own) & ((at > own - window) if window else True)
    weights = np.exp(np.where(seen, scores, -np.inf))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=2, keepdims=True), v)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Hold a result of bfloat16 to the reference."""
    assert found.shape == wanted.shape and np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max() + 0.01


@pytest.mark.parametrize("point", points("torch_sdpa", windows=False), ids=str)
@pytest.mark.whole
def test_pytorch_computes_the_attention_that_a_point_states(point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    need("torch", "torch")
    on_host.install(monkeypatch)
    tensor, made = Bench.tensor, []
    monkeypatch.setattr(Bench, "tensor", lambda *words, **named: made.append(tensor(*words, **named)) or made[-1])
    kernel, shape = open_gpu(0, None).prepare(point), shape_of(point)
    each = [*made, kernel._launches[0]()]
    q, k, v, out = ([sequence.transpose(0, 1).float().numpy() for sequence in one] for one in each)
    assert len(q) == shape.batch and q[0].shape == (shape.new, shape.heads, shape.head_dim)
    for number in range(shape.batch):
        close(out[number], reference(q[number], k[number], v[number], 0))
    kernel.close()


class Compiled:
    """In the place of a kernel that FlashInfer compiles: attention of the words that it is called with."""

    def __init__(self) -> None:
        self.planned: tuple = ()
        self.ran: list[tuple[Any, ...]] = []

    def plan(self, *words: Any) -> str:
        self.planned = words
        return "planned"

    def paged_run(self, *words: Any) -> None:
        _, _, plan, q, k, v, q_starts, starts, blocks, last, out, _, mask, layout, left, *_ = words
        assert plan == "planned" and layout == 0 and k.shape[1] == PAGE
        for number, place in self._sequences(q_starts):
            own = blocks[starts[number] : starts[number + 1]].long()
            keys = (len(own) - 1) * PAGE + int(last[number])
            flat = [one[own].flatten(0, 1)[:keys].float().numpy() for one in (k, v)]
            self._attend(q, flat, out, place, mask, left)

    def ragged_run(self, *words: Any) -> None:
        _, _, plan, q, k, v, q_starts, starts, out, _, mask, layout, left, *_ = words
        assert plan == "planned" and layout == 0
        for number, place in self._sequences(q_starts):
            part = slice(int(starts[number]), int(starts[number + 1]))
            self._attend(q, [one[part].float().numpy() for one in (k, v)], out, place, mask, left)

    def _sequences(self, starts: Any) -> list[tuple[int, slice]]:
        return [(number, slice(int(starts[number]), int(starts[number + 1]))) for number in range(len(starts) - 1)]

    def _attend(self, q: Any, flat: list[np.ndarray], out: Any, place: slice, mask: int, left: int) -> None:
        import torch

        new = place.stop - place.start
        assert mask == 1 or new == 1  # MaskMode.CAUSAL; one query sees all
        found = reference(q[place].float().numpy(), *flat, left + 1)
        out[place] = torch.from_numpy(found).to(out.dtype)
        self.ran.append((new, flat[0].shape[0], left + 1, found))


@pytest.mark.parametrize("dtype", ["bf16/bf16", "bf16/fp8"])
@pytest.mark.whole
def test_flashinfer_plans_and_runs_every_point(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, flashinfer = need("torch", "torch"), need("flashinfer", "flashinfer-python")
    on_host.install(monkeypatch)
    empty, compiled = torch.empty, Compiled()
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **words: empty(*sizes, **words))
    for module in (flashinfer.prefill, flashinfer.decode, flashinfer.utils):
        monkeypatch.setattr(module, "get_batch_prefill_module", lambda *_: compiled, raising=False)
        monkeypatch.setattr(module, "determine_attention_backend", lambda *_, **__: "fa2", raising=False)
        monkeypatch.setattr(module, "device_support_pdl", lambda *_: False, raising=False)
        monkeypatch.setattr(module, "get_compute_capability", lambda *_: (9, 0), raising=False)
    gpu = open_gpu(0, None)
    for point in points("flashinfer", dtype=dtype):
        compiled.ran.clear()
        kernel, shape = gpu.prepare(point), shape_of(point)
        assert [one[:3] for one in compiled.ran] == shape.batch * [(shape.new, shape.keys, shape.window)]
        wanted = np.concatenate([one[3] for one in compiled.ran])
        close(kernel._launches[0]().float().numpy(), wanted)
        kernel.close()


def test_cudnn_validates_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend reads the shapes and masks; the names of its words are those of the compiled part."""
    need("torch", "torch")
    cudnn = need("cudnn", "nvidia-cudnn-frontend")
    on_host.install(monkeypatch)
    validated: list[dict[str, Any]] = []

    def build(graph: Any, modes: list[Any]) -> None:
        assert modes == [cudnn.heur_mode.A]
        graph.validate()
        validated.append(dict(graph.nodes[0].params))

    monkeypatch.setattr(cudnn, "create_handle", lambda: None)
    monkeypatch.setattr(cudnn, "set_stream", lambda handle, stream: None)
    monkeypatch.setattr(cudnn.pygraph, "build", build)
    monkeypatch.setattr(cudnn.pygraph, "get_workspace_size", lambda graph: 0)
    monkeypatch.setattr(cudnn.pygraph, "execute", lambda graph, filled, workspace, handle: None)
    gpu, tried = open_gpu(0, None), [one for one in points("cudnn_frontend") if one.family == "prefill_attention"]
    for point in tried:
        gpu.prepare(point).close()
    known = cudnn._pybind_module.backend_graph.sdpa.__doc__
    assert len(validated) == len(tried) and all(f"{name}: " in known for one in validated for name in one)


def test_vllm_has_the_words_that_it_is_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that the fake accepts is bound to the signature of the real function too."""
    real = need("vllm.vllm_flash_attn", "vllm")
    state = fake_cupy.install(monkeypatch)
    fake_libraries.install(monkeypatch, state)
    fake = sys.modules["vllm.vllm_flash_attn"]
    for name in ("flash_attn_varlen_func", "get_scheduler_metadata", "is_fa_version_supported"):
        monkeypatch.setattr(fake, name, bound(inspect.signature(getattr(real, name)), getattr(fake, name)))
    gpu = open_gpu(0, None)
    for dtype in ("bf16/bf16", "bf16/fp8"):
        for point in points("flash_attention_vllm", dtype=dtype):
            gpu.prepare(point).close()
    assert set(fake.versions) == {3}


def bound(signature: inspect.Signature, function: Any) -> Any:
    """Call a function with words that another's signature takes."""

    def call(*words: Any, **named: Any) -> Any:
        signature.bind(*words, **named)
        return function(*words, **named)

    return call


def test_cupy_has_the_names_and_words_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fake of CuPy offers, the real one offers too; parameters stand in the first line of its docstrings."""
    cupy = need("cupy", "cupy-cuda13x")
    runtime, cuda = cupy.cuda.runtime, cupy.cuda
    words = {
        runtime.memcpy: "dst, src, size, kind",
        runtime.memcpyAsync: "dst, src, size, kind, stream",
        runtime.memcpyPeerAsync: "dst, dstDevice, src, srcDevice, size, stream",
        runtime.deviceCanAccessPeer: "device, peerDevice",
        runtime.deviceEnablePeerAccess: "peerDevice",
        cuda.UnownedMemory: "ptr, size, owner, device_id",
        cuda.MemoryPointer: "mem, offset",
        cuda.get_elapsed_time: "start_event, end_event",
        cuda.Graph.launch: "self, stream",
        cuda.Graph.upload: "self, stream",
        cuda.Stream.begin_capture: "self, mode",
    }
    for function, wanted in words.items():
        line = function.__doc__.strip().splitlines()[0]
        stated = [one.split("=")[0].split()[-1] for one in line[line.index("(") + 1 : line.rindex(")")].split(",")]
        assert ", ".join(stated) == wanted, line
    # relaxed: libraries may allocate while their launches are captured
    assert "streamCaptureModeRelaxed" in cuda.Stream.begin_capture.__doc__
    for name in ("ClockRate", "MemoryClockRate", "GlobalMemoryBusWidth"):
        assert hasattr(runtime, f"cudaDevAttr{name}")
    fake_cupy.install(monkeypatch)
    fake = sys.modules["cupy"]
    for one, other in ((fake, cupy), (fake.cuda, cuda), (fake.cuda.runtime, runtime)):
        public = {name for name in vars(one) if not name.startswith("_")}
        assert not {name for name in public if not hasattr(other, name)}, type(one)
    assert isinstance(cuda.memory.OutOfMemoryError, type) and isinstance(cuda.compiler.CompileException, type)


def test_nccl_has_the_words_that_it_is_called_with() -> None:
    need("cupy", "cupy-cuda13x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells so where its library is not there
        nccl = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("NCCL is not installed: pip install nvidia-nccl-cu13")
    assert nccl_version(nccl.get_version()).startswith("2.")
    assert nccl.NCCL_BFLOAT16 == fake_libraries.Nccl.NCCL_BFLOAT16 and nccl.NCCL_SUM == fake_libraries.Nccl.NCCL_SUM
    ends = "(self, intptr_t sendbuf, intptr_t recvbuf, size_t"
    for name, words in {
        "initAll": "(devices)",
        "allReduce": f"{ends} count, int datatype, int op, intptr_t stream)",
        "allGather": f"{ends} count, int datatype, intptr_t stream)",
        "reduceScatter": f"{ends} recvcount, int datatype, int op, intptr_t stream)",
        "send": "(self, intptr_t sendbuf, size_t count, int datatype, int peer, intptr_t stream)",
        "recv": "(self, intptr_t recvbuf, size_t count, int datatype, int peer, intptr_t stream)",
    }.items():
        assert getattr(nccl.NcclCommunicator, name).__doc__.splitlines()[0].endswith(words)
    assert callable(nccl.groupStart) and callable(nccl.groupEnd)
