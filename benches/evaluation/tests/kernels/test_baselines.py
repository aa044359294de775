"""Baselines of a few rows by hand; rates from a system file, and from the catalogue without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.errors import UnknownName
from kernelsight.laboratory.kernels import baselines
from kernelsight.laboratory.kernels.baselines import fit_affine, peaks_of

SYSTEM = """\
gpu:
  mem_bw: 1000000000000 # 1 TB/s
  mem_bw_empirical_scaling_factor: 0.8
  bfloat16_tc_flops: 100000000000000
  int8_tc_flops: 200000000000000
node:
  intra_node_bw: 50000000000  # one direction
"""


@pytest.fixture
def systems(tmp_path: Path) -> Path:
    (tmp_path / "h100_sxm.yaml").write_text(SYSTEM, encoding="utf-8")
    return tmp_path


def gemms(gpu: str, shapes: list[tuple[int, int, int]], **stated: object) -> pa.Table:
    m, n, k = (np.array(values, dtype=float) for values in zip(*shapes, strict=True))
    given = {"gpu": gpu, "engine": "vllm", "dtype": "bf16", "math": "bf16", "implementation": "cublas", **stated}
    columns = {name: [value] * len(shapes) if isinstance(value, str) else value for name, value in given.items()}
    work = {"flops": 2 * m * n * k, "bytes": 2 * (m * k + n * k + m * n)}
    none = pa.nulls(len(shapes), pa.string())
    return pa.table({**columns, "m": m, "n": n, "k": k, **work, "distribution": none})


def test_rates_are_those_of_the_system_file(systems: Path):
    peaks = peaks_of("h100_sxm", systems)
    assert peaks.memory_bytes_per_s == 1e12
    assert peaks.link_bytes_per_s == 50e9
    # a rate that the file does not state is that of 16-bit numbers
    assert (peaks.flops_per_s["bf16"], peaks.flops_per_s["int8"], peaks.flops_per_s["fp8"]) == (1e14, 2e14, 1e14)


def test_rates_are_the_catalogues_without_a_file(systems: Path):
    for place in (None, systems):
        peaks = peaks_of("l40s", place)
        assert (peaks.flops_per_s["bf16"], peaks.memory_bytes_per_s) == (362.05e12, 864e9)


def test_rates_of_an_unknown_gpu_are_refused():
    with pytest.raises(UnknownName, match="unknown GPU 'h100'. Did you mean"):
        peaks_of("h100", None)


def test_roofline_is_the_larger_of_two_times(systems: Path):
    rows = gemms("h100_sxm", [(1, 1000, 1000), (1000, 1000, 1000)])
    # 2.004 MB at 1 TB/s; 2 GFLOP at 100 TFLOP/s
    assert baselines.roofline_us("gemm", rows, systems).tolist() == pytest.approx([2.004, 20.0])


def test_roofline_of_a_collective_is_its_busiest_link(systems: Path):
    rows = pa.table({"gpu": ["h100_sxm"], "math": pa.nulls(1, pa.string()), "flops": [0.0], "bytes": [1e6]})
    rows = rows.append_column("group_size", pa.array([8.0]))
    # 2 x 7/8 of 1 MB at 50 GB/s
    assert baselines.roofline_us("all_reduce", rows, systems).tolist() == pytest.approx([35.0])


def test_waves_are_whole():
    rows = gemms("h100_sxm", [(128, 128 * 66, 64), (128, 128 * 133, 64)])
    waves = baselines.roofline_waves_us("gemm", rows, np.array([1.0, 133.0]))
    assert waves.tolist() == pytest.approx([2.0, 264.0])  # 132 multiprocessors


def test_kernels_without_tiles_have_no_waves():
    rows = pa.table({"gpu": ["l40s"], "rows": [1.0]})
    assert baselines.roofline_waves_us("quantize", rows, np.array([3.0])).tolist() == [3.0]


def test_affine_fit_minds_relative_errors_and_outliers():
    roofline = np.array([1.0, 10.0, 100.0, 1000.0, 5.0])
    slope, start_us = fit_affine(roofline, np.array([5.5, 19.0, 154.0, 1504.0, 100.0]))
    assert (slope, start_us) == (pytest.approx(1.5), pytest.approx(4.0))


@pytest.mark.parametrize(
    ("roofline", "measured", "expected"),
    [([10.0, 20.0], [1.0, 3.0], (0.1, 0.0)), ([1.0, 2.0], [9.0, 8.0], (0.0, 8.0))],
)
def test_affine_fit_has_no_negative_part(roofline: list, measured: list, expected: tuple[float, float]):
    assert fit_affine(np.array(roofline), np.array(measured)) == pytest.approx(expected, rel=1e-3)


def test_affine_roofline_is_fitted_for_each_dtype_and_engine():
    train = pa.table(
        {"dtype": ["bf16"] * 4, "engine": ["vllm", "vllm", "sglang", "sglang"], "latency_us": [12.0, 22.0, 31.0, 61.0]}
    )
    test = pa.table({"dtype": ["bf16", "bf16", "fp8"], "engine": ["sglang", "vllm", "vllm"]})
    found = baselines.affine_roofline_us(train, np.array([10.0, 20.0, 10.0, 20.0]), test, np.array([5.0, 5.0, 5.0]))
    assert found[:2].tolist() == pytest.approx([16.0, 7.0])
    assert np.isnan(found[2])  # no training row of that cell


def test_nearest_gpu_scales_the_h100_by_the_ratio_of_rooflines():
    shapes = [(1, 64, 64), (2, 64, 64), (2, 64, 64), (4, 64, 64)]
    train = gemms("h100_sxm", shapes, latency_us=[10.0, 30.0, 20.0, 50.0], implementation=["a", "a", "b", "a"])
    others = gemms("l40s", [(8, 64, 64)], latency_us=[1.0])
    test = gemms("gb200", [(1, 64, 64), (2, 64, 64), (2, 64, 64), (8, 64, 64)], implementation=["a", "a", "c", "a"])
    train = pa.concat_tables([train, others.select(train.column_names)])
    ratio = np.full(test.num_rows, 0.5)
    found = baselines.nearest_gpu_us(["m", "n", "k"], train, np.ones(5), test, ratio)
    # the same kernel, the same kernel, the faster of the two; the shape of the L40S is not the reference's
    assert found[:3].tolist() == [5.0, 15.0, 10.0]
    assert np.isnan(found[3])


def test_nearest_gpu_without_h100_is_the_training_gpu_nearest_to_it():
    train = pa.concat_tables(
        [
            gemms("l40s", [(1, 64, 64)], latency_us=[10.0]),
            gemms("h200_sxm", [(1, 64, 64)], latency_us=[4.0]),
        ]
    )
    found = baselines.nearest_gpu_us(["m", "n", "k"], train, np.ones(2), gemms("gb200", [(1, 64, 64)]), np.array([2.0]))
    assert found.tolist() == [8.0]
