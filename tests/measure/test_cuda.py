"""What of the CUDA side can be held without a GPU: its source compiles, its refusals, NVML's bits, the catalogue."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from kernelsight.cli.main import main, parser
from kernelsight.errors import InvalidInput
from kernelsight.measure.catalogue import (
    catalogue_name,
    catalogue_rows,
    device_row,
    differences,
    remarks,
    unlisted,
    write_row,
)
from kernelsight.measure.cuda.buffers import program
from kernelsight.measure.cuda.cublaslt import (
    A_SCALE,
    B_SCALE,
    BATCH_COUNT,
    BATCH_STRIDE,
    FAST_ACCUMULATION,
    FORMATS,
    TRANSA,
    TRANSB,
    WORKSPACE,
    WORKSPACE_BYTES,
    CublasLt,
    Plan,
    _Heuristic,
)
from kernelsight.measure.cuda.device import PREPARE, open_gpu
from kernelsight.measure.cuda.gpu import Nvml
from kernelsight.measure.cuda.libraries import builder
from kernelsight.measure.library_kernels import LIBRARY_KERNELS
from kernelsight.measure.suite import FAMILIES, OWN
from tests.measure import fake_cupy, nvrtc

H200 = {"name": "NVIDIA H200", "compute_capability": "9.0", "sm_count": 132, "memory_bytes": 150754820096}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.whole
def test_the_kernels_assemble_and_blocks_of_1024_threads_fit_the_registers(architecture: str) -> None:
    """Inline assembly is read by the assembler alone. 65,536 registers are 64 a thread: beyond, a launch fails."""
    path = nvrtc.library()
    if path is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    code, log, found = nvrtc.assembled(program(), architecture, path)
    assert code == "\x7fELF", log
    assert set(found) == set(fake_cupy.signatures())
    # attention and the products of experts run in blocks of 128
    small = {"paged_attention", "paged_mla_decode", "grouped_product"}
    assert {name: used for name, used in found.items() if used[0] > (255 if name in small else 64) or used[1]} == {}


class Driver:
    """NVML of some driver: the calls that it knows, and a power cap."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def __getattr__(self, name: str) -> Any:
        if name not in self.known:
            raise AttributeError(f"undefined symbol: {name}")

        def call(*words: Any) -> int:
            words[-1]._obj.value = 4
            return 0

        return call


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"]
)
def test_limits_are_read_by_the_name_that_the_driver_knows(name: str) -> None:
    """What a driver no longer has, or does not have yet, is not told rather than an error."""
    gpu = Nvml("0000:00:00.0")
    gpu._library = Driver(name, "nvmlDeviceGetClockInfo")
    found = gpu.readings()
    assert found.limits == {"power_cap"} and found.sm_clock_hz == 4e6 and found.temperature_c is None
    assert gpu.serial() is None and gpu.driver() == "unknown"


def test_every_family_that_a_suite_may_name_has_kernels() -> None:
    assert set(PREPARE) == {name for name, own in OWN.items() if own}
    assert {name for name, _ in LIBRARY_KERNELS} <= set(FAMILIES)
    assert all(callable(builder(kernel)) and kernel.checked for kernel in LIBRARY_KERNELS.values())


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", FORMATS)
def test_cublas_holds_what_a_product_states(name: str, batch: int) -> None:
    """Descriptors need no GPU: the library itself checks the number and the size of every attribute."""
    path = nvrtc.library("libcublasLt.so")
    if path is None:
        pytest.skip("cuBLASLt is not installed: pip install nvidia-cublas-cu12")
    library = object.__new__(CublasLt)
    library.library = ctypes.CDLL(str(path))

    class Described(Plan):
        def _choose(self) -> None: ...

    plan = Described(library, name, 64, 512, 256, batch, 4096)
    form = FORMATS[name]

    def told(of: str, handle: ctypes.c_void_p, attribute: int, kind: type) -> int:
        value, written = kind(), ctypes.c_size_t()
        words = (handle, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(written))
        assert getattr(library.library, f"cublasLt{of}GetAttribute")(*words) == 0
        assert written.value == ctypes.sizeof(value)
        return value.value

    assert [told("MatmulDesc", plan.description, one, ctypes.c_int32) for one in (TRANSA, TRANSB)] == [1, 0]
    scales = [told("MatmulDesc", plan.description, one, ctypes.c_void_p) for one in (A_SCALE, B_SCALE)]
    assert scales == [4096 if name == "fp8" else None] * 2
    assert told("MatmulDesc", plan.description, FAST_ACCUMULATION, ctypes.c_int8) == (name == "fp8")
    for layout, kind, rows, columns in (
        (plan.weight, form.operand, 256, 512),
        (plan.activation, form.operand, 256, 64),
        (plan.result, form.result, 512, 64),
    ):
        assert told("MatrixLayout", layout, 0, ctypes.c_uint32) == kind
        assert told("MatrixLayout", layout, 2, ctypes.c_uint64) == rows
        assert told("MatrixLayout", layout, 3, ctypes.c_uint64) == columns
        assert told("MatrixLayout", layout, BATCH_COUNT, ctypes.c_int32) == batch
        assert told("MatrixLayout", layout, BATCH_STRIDE, ctypes.c_int64) == (rows * columns if batch > 1 else 0)
    assert told("MatmulPreference", plan.preference, WORKSPACE, ctypes.c_size_t) == WORKSPACE_BYTES


def test_a_result_of_the_heuristic_has_the_size_that_cublas_writes() -> None:
    assert ctypes.sizeof(_Heuristic) == 96


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (H200, "h200_sxm"),
        ({**H200, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_000_000_000}, "h100_sxm"),
        (
            {"name": "NVIDIA L40S", "compute_capability": "8.9", "sm_count": 142, "memory_bytes": 47_800_000_000},
            "l40s",
        ),
    ],
)
def test_the_catalogue_is_found_by_what_a_device_tells(told: dict[str, Any], name: str) -> None:
    assert catalogue_name(told, catalogue_rows()) == name


def test_a_device_that_no_row_fits_is_named_by_the_user() -> None:
    with pytest.raises(InvalidInput, match=r"NVIDIA H200 \(7 multiprocessors, 140 GiB\) is not in the catalogue"):
        catalogue_name({**H200, "sm_count": 7}, catalogue_rows())
    rows = [row for row in catalogue_rows() if row["gpu"] == "h200_sxm"]
    with pytest.raises(InvalidInput, match="may be h200_sxm or h200_twin; choose one with --gpu"):
        catalogue_name(H200, [*rows, {**rows[0], "gpu": "h200_twin"}])


def test_a_gpu_that_the_catalogue_lacks_keeps_its_name_and_is_told() -> None:
    rows = catalogue_rows()
    assert device_row(H200, "h200_sxn", rows)["gpu"] == "h200_sxn"
    [line] = remarks("h200_sxn", device_row(H200, "h200_sxn", rows), rows)
    assert line.startswith("h200_sxn is not in the catalogue; nearest: h200_sxm") and "--gpus FILE" in line
    assert not unlisted("h200_sxm", rows)


def test_the_row_of_a_device_can_be_given_by_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {**H200, "sm_clock_hz": 1.755e9, "l2_bytes": 62914560, "memory_bandwidth_bytes_per_s": 4.9e12, "tdp_w": None}
    row = device_row(told, "h200_sxm", catalogue_rows())
    write_row(row, tmp_path / "row.json")
    found = main(
        [
            *(
                "sql",
                "select memory_bandwidth_bytes_per_s as bw, measured_as, tdp_w from gpus where gpu = 'h200_sxm_device'",
            ),
            *("--gpus", str(tmp_path / "row.json"), "--format", "json"),
        ]
    )
    printed = json.loads(capsys.readouterr().out)
    assert found == 0 and printed == [{"bw": 4.9e12, "measured_as": "h200_sxm", "tdp_w": 700.0}]
    assert any(
        line.startswith("sm_clock_hz: this GPU 1,755,000,000, the catalogue")
        for line in differences(row, catalogue_rows())
    )


def test_without_a_gpu_the_verb_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        import cupy

        if cupy.cuda.is_available():
            pytest.skip("there is a GPU here")
    except ImportError:
        pass
    for words in (["measure", "--suite", "quick", "-o", str(tmp_path / "sweep.parquet")], ["device"]):
        assert main(["calibrate", *words]) == 2
        told = capsys.readouterr().err
        assert "measuring needs CuPy, which is not installed" in told or "needs an NVIDIA GPU" in told
        assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_that_a_missing_gpu_names_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise fake_cupy.CUDARuntimeError("cudaErrorInsufficientDriver")

    fake_cupy.install(monkeypatch)
    monkeypatch.setattr("cupy.cuda.runtime.getDeviceCount", refuse)
    with pytest.raises(InvalidInput, match="cudaErrorInsufficientDriver") as refusal:
        open_gpu(0, None)
    words = str(refusal.value).split("`")[1].split()
    assert words[:3] == ["python", "-m", "kernelsight"]
    assert parser().parse_args(words[3:]).part == "measure"
