"""Attention, experts and collectives on fakes that hold to the libraries' words: calls have the shapes they need."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight.fitting.training import call_rows
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.work import work_cursor
from kernelsight.measure.cuda.attention import shape_of
from kernelsight.measure.cuda.device import open_gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.rows import row_of, sweep_schema
from kernelsight.measure.run import time_point
from kernelsight.measure.suite import FAMILIES as FAMILIES_TO_MEASURE
from kernelsight.measure.suite import Point, Rule
from kernelsight.measure.timing import Watch
from tests.measure import fake_cupy, fake_libraries
from tests.measure.fake_cupy import LAUNCH_US, State

SHAPES = ({"heads": 32, "kv_heads": 8, "head_dim": 128}, {"heads": 8, "kv_heads": 1, "head_dim": 64})
# prompts: (new tokens, cached before them, window); decoded tokens: (context, window)
PROMPTS = ((1024, 0, 0), (512, 4096, 0), (512, 4096, 1024), (2048, 0, 128), (100, 33, 4096))
DECODES = ((512, 0), (4096, 1024), (4095, 0), (500, 4096))
ABLE = {"torch_sdpa": set(), "flashinfer": {"window", "fp8"}, "flash_attention_vllm": {"window", "fp8"}}
ABLE["cudnn_frontend"] = {"window"}


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    return fake_cupy.install(monkeypatch)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, state: State) -> list:
    return fake_libraries.install(monkeypatch, state)


def point(family: str, implementation: str, dtype: str, **sizes: int) -> Point:
    cache = "cold" if family == "decode_attention" else "warm"
    return Point(family, implementation, dtype, cache, tuple(sorted(sizes.items())))


def every_point(implementation: str) -> list[Point]:
    """Return points of both families, both formats, with prefixes and windows, for 1 and 3 sequences."""
    found = []
    for heads in SHAPES:
        for batch in (1, 3):
            for dtype in ("bf16/bf16", "bf16/fp8"):
                for new, cached, window in PROMPTS:
                    sizes = {"batch": batch, "new_tokens": new, "cached_tokens": cached, "window": window, **heads}
                    found.append(point("prefill_attention", implementation, dtype, **sizes))
                for context, window in DECODES:
                    sizes = {"batch": batch, "context": context, "window": window, **heads}
                    found.append(point("decode_attention", implementation, dtype, **sizes))
    return found


@pytest.mark.parametrize("implementation", ABLE)
def test_every_library_sees_the_shape_that_a_point_states(implementation: str, state: State, calls: list) -> None:
    gpu, measured = open_gpu(0, None), 0
    for one in every_point(implementation):
        shape, decode = shape_of(one), one.family == "decode_attention"
        lacks = {"window"} if shape.window else set()
        lacks |= {"fp8"} if shape.cache_bytes == 1 else set()
        if lacks - ABLE[implementation] or (decode and implementation == "cudnn_frontend"):
            with pytest.raises(CannotMeasure, match="has no sliding window|does not take bf16/fp8|is not used for"):
                gpu.prepare(one)
            continue
        kernel = gpu.prepare(one)
        keys = one.sizes.get("context", 0) + 1 if decode else one.sizes["new_tokens"] + one.sizes["cached_tokens"]
        new, window = one.sizes.get("new_tokens", 1), one.sizes["window"]
        assert calls[-1] == (new, keys, window if window < keys else 0, 1 if one.dtype.endswith("fp8") else 2)
        assert time_point(gpu, one, Rule(), Watch(), kernel).latency_us == pytest.approx(LAUNCH_US, rel=1e-6)
        kernel.close()
        measured += 1
    assert measured >= 20
    assert len(sys.modules["cudnn"].handles) == (implementation == "cudnn_frontend")


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("fp8_block", 1)])
def test_experts_are_all_given_as_many_tokens_and_their_bytes_are_those_that_training_counts(
    dtype: str, width: int, state: State, calls: list
) -> None:
    sizes = {"tokens": 48, "hidden": 256, "intermediate": 192, "experts": 16, "top_k": 4}
    one = Point("moe", "fused_moe_vllm", dtype, "cold", tuple((FAMILIES_TO_MEASURE["moe"].defaults | sizes).items()))
    gpu = open_gpu(0, None)
    kernel = gpu.prepare(one)
    row = row_of(one, kernel, time_point(gpu, one, Rule(), Watch(), kernel), gpu.identity())
    assert set(calls) == {(48, 16, 4, width)} and row["implementation"] == "fused_moe_triton"
    assert (row["engine"], row["distribution"]) == ("vllm", "balanced")
    assert (row["format"], row["math"]) == (dtype, "bf16" if width == 2 else "fp8")
    table = call_rows(pa.Table.from_pylist([row], sweep_schema()), "moe")
    assert kernel.bytes == pytest.approx(table["bytes"][0].as_py(), rel=0.05)
    for wrong, reason in (({"expert_matrices": 2}, "with a gate"), ({"top_k": 17}, "reaches 17 experts")):
        shape = tuple((one.sizes | wrong).items())
        with pytest.raises(CannotMeasure, match=reason):
            gpu.prepare(one._replace(shape=shape))


def test_bytes_are_those_that_training_counts() -> None:
    for one in every_point("flashinfer"):
        sizes = {"cached_tokens": 0, "context": 0, "new_tokens": 0, **one.sizes}
        stated = ", ".join(f'{value} as "{name}"' for name, value in sizes.items())
        work = {name: sql for name, sql in FAMILIES[one.family].columns.items() if "shape." not in sql}
        columns = ", ".join(f'({sql})::double as "{name}"' for name, sql in work.items())
        bits = 8 if one.dtype.endswith("fp8") else 16
        found = work_cursor().sql(f"select {columns} from (select {stated}, {bits} as weight_bits)").fetchall()[0]
        assert shape_of(one).moved == found[list(work).index("bytes")]


def test_eight_bit_queries_are_told_by_the_row(state: State, calls: list) -> None:
    gpu, formats = open_gpu(0, None), {}
    for name in ("flashinfer", "flash_attention_vllm"):
        one = point("decode_attention", name, "bf16/fp8", batch=2, context=64, window=0, **SHAPES[0])
        kernel = gpu.prepare(one)
        row = row_of(one, kernel, time_point(gpu, one, Rule(), Watch(), kernel), gpu.identity())
        formats[row["implementation"]] = (row["format"], row["math"])
    assert formats == {"flashinfer": ("fp8", "bf16"), "flash_attention_3": ("fp8", "fp8")}


@pytest.mark.parametrize(
    ("major", "head_dim", "known", "version"),
    [
        (8, 128, 4, 2),
        (9, 128, 4, 3),
        (9, 256, 2, 2),
        (10, 128, 4, 4),
        (10, 256, 4, 2),
        (10, 128, 3, 2),
        (12, 128, 4, 2),
    ],
)
def test_flash_attention_is_of_the_version_that_vllm_runs(
    major: int, head_dim: int, known: int, version: int, state: State, calls: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 on Hopper, 4 on B200 and B300, 2 elsewhere and where this vLLM has no other; it is asked, not guessed."""
    flash, gpu = sys.modules["vllm.vllm_flash_attn"], open_gpu(0, None)
    gpu.properties["major"] = major

    def supported(fa_version: int) -> bool:
        assert fa_version <= known, f"Unsupported FA version: {fa_version}"
        return True

    monkeypatch.setattr(flash, "is_fa_version_supported", supported)
    sizes = {"batch": 2, "context": 64, "window": 0, "heads": 8, "kv_heads": 2, "head_dim": head_dim}
    kernel = gpu.prepare(point("decode_attention", "flash_attention_vllm", "bf16/bf16", **sizes))
    assert kernel.implementation == f"flash_attention_{version}" and flash.versions == [version]
    eight_bit = point("decode_attention", "flash_attention_vllm", "bf16/fp8", **sizes)
    if version > 2:
        assert gpu.prepare(eight_bit).implementation == f"flash_attention_{version}" and calls[-1][-1] == 1
    else:
        with pytest.raises(
            CannotMeasure, match="FlashAttention 2, which vLLM uses on this GPU, does not support an 8-bit cache"
        ):
            gpu.prepare(eight_bit)


@pytest.mark.parametrize("when", ["built", "launched"])
def test_a_full_pool_of_a_library_is_told_like_any_full_memory(
    when: str, state: State, calls: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words name the sizes of the moment: every point would have a reason of its own."""

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB")

    flashinfer = sys.modules["flashinfer"].BatchDecodeWithPagedKVCacheWrapper
    monkeypatch.setattr(flashinfer, "plan" if when == "built" else "run", full)
    one = point("decode_attention", "flashinfer", "bf16/bf16", batch=1, context=64, window=0, **SHAPES[0])
    with pytest.raises(CannotMeasure, match="^its buffers do not fit the free memory of the GPU$"):
        open_gpu(0, None).prepare(one)
    assert sys.modules["torch"].emptied


def test_the_stream_of_the_second_gpu_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_cupy.install(monkeypatch, gpus=2)
    fake_libraries.install(monkeypatch, state)
    one = point("decode_attention", "torch_sdpa", "bf16/bf16", batch=1, context=64, window=0, **SHAPES[0])
    gpu = open_gpu(1, None)
    gpu.prepare(one)
    assert sys.modules["torch"].streams == [(gpu.stream.ptr, 1)]


def test_libraries_that_are_not_installed_are_named(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "flashinfer"):
        monkeypatch.setitem(sys.modules, name, None)
    one = point("decode_attention", "flashinfer", "bf16/bf16", batch=1, context=64, window=0, **SHAPES[0])
    with pytest.raises(CannotMeasure, match="torch is not installed"):
        open_gpu(0, None).prepare(one)


def test_a_library_whose_parts_do_not_fit_is_not_called_missing(
    state: State, calls: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flashinfer.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    monkeypatch.delitem(sys.modules, "flashinfer")
    monkeypatch.syspath_prepend(tmp_path)
    one = point("decode_attention", "flashinfer", "bf16/bf16", batch=1, context=64, window=0, **SHAPES[0])
    with pytest.raises(CannotMeasure, match="flashinfer-python is installed, but cannot be imported: libcudart"):
        open_gpu(0, None).prepare(one)


@pytest.mark.parametrize(
    ("family", "share"), [("all_reduce", 1), ("all_gather", 4), ("reduce_scatter", 4), ("all_to_all", 4)]
)
def test_collectives_start_on_every_gpu_within_one_group(
    family: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = fake_cupy.install(monkeypatch, gpus=8)
    nccl = fake_libraries.Nccl(state)
    monkeypatch.setattr(sys.modules["cupy.cuda"], "nccl", nccl, raising=False)
    gpu = open_gpu(0, None)
    for size in (4096, 8192):
        one = point(family, "nccl", "bf16", bytes=size, gpus=4)
        kernel = gpu.prepare(one)
        # numbers of 16 bits: of the whole tensor, or of one GPU's part of it
        latest = nccl.calls[-16 if family == "all_to_all" else -4 :]
        assert {(name, count) for name, count, _ in latest} == {(family, size // 2 // share)}
        assert len({stream for *_, stream in latest}) == 4 and not kernel.captured
        assert time_point(gpu, one, Rule(), Watch(), kernel).latency_us == pytest.approx(LAUNCH_US, rel=1e-6)
    assert nccl.made == 1 and kernel.engine_version == "2.30.7"
    for exchanged in (nccl.sent[-16:], nccl.received[-16:]):
        # a part of the tensor for every peer
        assert len({one[:2] for one in exchanged}) == len({one[2] for one in exchanged}) == len(exchanged)
        assert len(exchanged) == (16 if family == "all_to_all" else 0)


def test_without_nccl_a_collective_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, gpus=2)
    monkeypatch.delitem(sys.modules, "cupy.cuda.nccl", raising=False)  # of a CuPy that is installed
    with pytest.raises(CannotMeasure, match="CuPy does not find NCCL"):
        open_gpu(0, None).prepare(point("all_reduce", "nccl", "bf16", bytes=4096, gpus=2))


def test_a_peer_is_reached_once_and_copied_to(monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_cupy.install(monkeypatch, gpus=2)
    gpu = open_gpu(0, None)
    for size in (4096, 8192):
        gpu.prepare(Point("p2p", "memcpy_peer", "bf16", "warm", (("bytes", size), ("gpus", 2))))
        _, other, _, here, moved, _ = state.copies[-1]
        assert (other, here, moved) == (1, 0, size)
    assert state.reached == {1}
