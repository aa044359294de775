"""The CUDA side on a fake of CuPy: every launch has the words that its kernel declares, and is timed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.fitting.training import call_rows
from kernelsight.kernels.families import MEASURED
from kernelsight.measure.cuda.device import open_gpu
from kernelsight.measure.cuda.gpu import MOST_COPIES
from kernelsight.measure.device import FLUSH_CACHES, CannotMeasure, DeviceLost
from kernelsight.measure.rows import row_of, sweep_schema
from kernelsight.measure.run import time_point
from kernelsight.measure.suite import FAMILIES, OF_NO_ENGINE, OWN_DTYPES, Point, Rule, number_formats
from kernelsight.measure.timing import Watch
from tests.measure import fake_cupy
from tests.measure.fake_cupy import LAUNCH_US, State

STREAMING = ("norm", "activation", "rope", "kv_write", "quantize", "embedding", "softmax", "sampling")


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    return fake_cupy.install(monkeypatch)


def points(family: str, **sizes: int) -> list[Point]:
    """Return the points of every kernel, format and state of the cache of a family."""
    of = FAMILIES[family]
    shape = tuple(sorted({"head_dim": 128, **sizes}.items() if "head_dim" in of.sizes else sizes.items()))
    return [
        Point(family, implementation, dtype, cache, shape)
        for implementation in of.implementations
        for dtype in of.dtypes
        for cache in of.caches
    ]


@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (33, 4096), (8192, 1024)])
@pytest.mark.parametrize("family", STREAMING)
def test_streaming_kernels_are_launched_as_they_are_declared(
    family: str, rows: int, columns: int, state: State
) -> None:
    gpu = open_gpu(0, None)
    assert gpu.gpu == "h200_sxm"
    for point in points(family, rows=rows, columns=columns):
        kernel = gpu.prepare(point)
        assert kernel.copies <= (MOST_COPIES if point.cache == "cold" else 1)
        found = time_point(gpu, point, Rule(), Watch(), kernel)
        assert found.latency_us == pytest.approx(LAUNCH_US, rel=1e-6)
        assert (found.gap_us == pytest.approx(5.0)) or point.cache == "cold"
        name, grid, _ = state.launched[-1]
        assert grid == (rows,) and name in fake_cupy.signatures()
        kernel.close()


@pytest.mark.parametrize("family", [family for family in STREAMING if family in MEASURED])
def test_bytes_are_those_that_training_counts(family: str, state: State) -> None:
    """Of a thousand rows; a norm's weights are read beside, and a sampler that keeps some is taken to pass twice."""
    gpu, rows, moved = open_gpu(0, None), [], []
    for point in points(family, rows=1024, columns=4096):
        kernel = gpu.prepare(point)
        stored, math = number_formats(family, point.dtype)
        named = {"family": family, "implementation": point.implementation, "dtype": point.dtype, "format": stored}
        rows.append({**named, "gpu": gpu.gpu, "engine": "kernelsight", "math": math, "shape": point.sizes})
        moved.append(kernel.bytes * (2 if point.implementation == "top_k_top_p" else 1))
        kernel.close()
    table = pa.Table.from_pylist([{**row, "latency_us": 1.0} for row in rows], sweep_schema())
    assert moved == pytest.approx(call_rows(table, family)["bytes"].to_pylist(), rel=2e-3)


SHAPES = {
    "prefill_attention": {
        "batch": 2,
        "new_tokens": 256,
        "cached_tokens": 3840,
        "heads": 32,
        "kv_heads": 8,
        "window": 0,
    },
    "decode_attention": {"batch": 4, "context": 4095, "heads": 32, "kv_heads": 8, "window": 0},
    "mla_decode": {"batch": 4, "context": 4095, "heads": 16, "kv_lora_rank": 512, "rope_dim": 64},
    "moe": {"tokens": 16, "hidden": 1024, "intermediate": 512, "experts": 8, "top_k": 2}
    | {"moe_tp": 1, "moe_ep": 1, "expert_matrices": 3},
}
KERNELS_OF = {
    "prefill_attention": ["paged_attention", "join_parts"],
    "decode_attention": ["paged_attention", "join_parts"],
    "mla_decode": ["paged_mla_decode", "join_parts"],
    "moe": ["grouped_product", "gated_activation", "grouped_product"],
}


@pytest.mark.parametrize("family", SHAPES)
def test_kernels_without_a_library_are_launched_as_declared_and_move_what_training_counts(
    family: str, state: State
) -> None:
    gpu, rows, moved = open_gpu(0, None), [], []
    for point in (one for one in points(family, **SHAPES[family]) if one.implementation in OF_NO_ENGINE):
        if point.dtype not in OWN_DTYPES[family]:
            continue
        kernel = gpu.prepare(point)
        assert [name for name, _, _ in state.launched][-len(KERNELS_OF[family]) :] == KERNELS_OF[family]
        timing = time_point(gpu, point, Rule(), Watch(), kernel)
        assert timing.latency_us == pytest.approx(len(KERNELS_OF[family]) * LAUNCH_US, rel=1e-6)
        rows.append(row_of(point, kernel, timing, gpu.identity()))
        moved.append(kernel.bytes)
        kernel.close()
    # one that is far from an engine's speed is no evidence of it
    assert {bool(row["not_fitted"]) for row in rows} == {family == "prefill_attention"}
    table = pa.Table.from_pylist(rows, sweep_schema())
    assert moved == pytest.approx(call_rows(table, family)["bytes"].to_pylist(), rel=0.05)


def test_a_cold_point_reads_four_caches_first_and_walks_through_its_copies(state: State) -> None:
    gpu = open_gpu(0, None)
    [point] = [one for one in points("norm", rows=64, columns=4096) if one.cache == "cold"][:1]
    kernel = gpu.prepare(point)
    state.launched.clear()
    gpu.graph(kernel, 5, flush=True)
    names = [name for name, _, _ in state.launched if name not in ("fill", "fill_below")]
    # once to load it, once in the graph
    assert names == ["read_all", "read_all", *5 * ["rms_norm"]]
    flushed = next(words for name, _, words in state.launched if name == "read_all")
    assert int(flushed[1]) * 16 == FLUSH_CACHES * gpu.l2_bytes
    outs = [int(words[0]) for name, _, words in state.launched if name == "rms_norm"]
    assert len(set(outs)) == 5


@pytest.mark.parametrize("implementation", FAMILIES["copy"].implementations)
def test_copies_go_the_way_that_they_are_called_by(implementation: str, state: State) -> None:
    gpu = open_gpu(0, None)
    kernel = gpu.prepare(Point("copy", implementation, "bytes", "cold", (("bytes", 4096),)))
    to, source, size, kind, stream = state.copies[-1]
    assert (size, stream, kind) == (4096, 7, {"device": 3, "h2d": 1, "d2h": 2}[implementation.split("_")[1]])
    assert to != source and kernel.captured != implementation.endswith("pageable")
    point = Point("copy", implementation, "bytes", "cold", (("bytes", 4096),))
    assert time_point(gpu, point, Rule(), Watch(), kernel).latency_us == pytest.approx(LAUNCH_US, rel=1e-6)


def test_what_a_gpu_tells_of_itself(state: State) -> None:
    row = open_gpu(0, None).identity().row
    assert row["like"] == "h200_sxm" and row["sm_count"] == 132
    # 6,144 bits at twice 3,201 MHz
    assert row["memory_bandwidth_bytes_per_s"] == pytest.approx(4.917e12, rel=1e-3)


@pytest.mark.parametrize(("uuid", "serial"), [(b"\x01\xab", "01ab"), ({"bytes": "x"}, "{'bytes': 'x'}"), (None, "0")])
def test_a_gpu_without_nvml_is_told_by_what_cuda_knows(uuid: object, serial: str, state: State) -> None:
    gpu = open_gpu(0, None)
    gpu.nvml._library, gpu.properties["uuid"] = None, uuid
    assert gpu.identity().serial == serial


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (Point("norm", "rms_norm", "bf16", "warm", (("columns", 100), ("rows", 1))), "not a multiple of 8"),
        (
            Point("norm", "rms_norm", "bf16", "warm", (("columns", 2**20), ("rows", 2**20))),
            "do not fit the free memory",
        ),
        (Point("p2p", "memcpy_peer", "bf16", "warm", (("bytes", 64), ("gpus", 2))), "but this machine has one"),
        (
            Point("all_reduce", "nccl", "bf16", "warm", (("bytes", 64), ("gpus", 2))),
            "it needs 2 GPUs, but this machine has 1",
        ),
        (
            Point("quantize", "quantize_per_block", "fp8", "warm", (("columns", 136), ("rows", 1))),
            "not a multiple of 128",
        ),
        (Point("gemm", "cublas", "fp8", "cold", (("k", 8), ("m", 1), ("n", 16))), "need n and k in multiples of 16"),
    ],
)
def test_points_that_cannot_be_measured_say_why(point: Point, reason: str, state: State) -> None:
    with pytest.raises(CannotMeasure, match=reason):
        open_gpu(0, None).prepare(point)


def test_errors_of_cuda_are_of_the_point_or_of_the_device(state: State) -> None:
    gpu, point = open_gpu(0, None), points("norm", rows=1, columns=256)[0]
    state.error = "cudaErrorInvalidValue"
    with pytest.raises(CannotMeasure, match="CUDA error: cudaErrorInvalidValue"):
        gpu.prepare(point)
    state.lost = True
    with pytest.raises(DeviceLost, match="cudaErrorInvalidValue"):
        gpu.prepare(point)


def test_a_number_that_no_gpu_has_is_refused(state: State) -> None:
    with pytest.raises(InvalidInput, match="--device 3 does not exist; CUDA finds 1 GPUs"):
        open_gpu(3, None)
