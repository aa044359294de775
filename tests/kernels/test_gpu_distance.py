"""How far a GPU lies from those that were measured, and what that does to its intervals."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.kernels.gpu_distance import GpuDistances
from kernelsight.kernels.hardware import hardware_columns
from kernelsight.kernels.intervals import BY_OCTAVE, growth
from tests.kernels.calls import call_table, price, work
from tests.kernels.test_cut_rates import cut_gpus

GPUS, FABRICS = facts("gpus"), facts("fabrics")


def octaves(family: str, gpu: str, *others: str) -> float:
    return GpuDistances(family, GPUS, hardware_columns(GPUS, FABRICS)).octaves(gpu, others)


def test_a_gpu_is_no_octave_from_itself_and_from_one_with_a_slower_link() -> None:
    assert octaves("gemm", "h100_sxm", "h100_sxm", "l40s") == 0.0
    assert octaves("gemm", "h800_sxm", "h100_sxm") == 0.0
    assert octaves("all_reduce", "h800_sxm", "h100_sxm") == pytest.approx(np.log2(450 / 200))


def test_the_largest_ratio_counts_and_the_nearest_gpu() -> None:
    # an H20's multiprocessor has a quarter of the FLOP, and its board more than three times the watts for each
    assert octaves("gemm", "h20", "h100_sxm") == pytest.approx(2.0, abs=0.05)
    assert octaves("gemm", "h200_sxm", "h100_sxm", "l40s") == pytest.approx(np.log2(4.8 / 3.35))
    # GDDR for HBM is an octave more, and so is another vendor
    assert octaves("gemm", "l40s", "a100_sxm") > 3.0
    assert octaves("gemm", "mi300x", "a100_sxm", "h100_sxm") > 1.0
    assert octaves("gemm", "mi300x") == 0.0


def test_links_of_another_kind_are_far() -> None:
    assert octaves("all_reduce", "l40s", "h100_sxm") == pytest.approx(1.0 + np.log2(450 / 32))
    assert octaves("all_reduce", "rtx_4090", "l40s") == 1.0


def test_a_twin_lies_near() -> None:
    def twin(family: str, gpu: str, *others: str) -> str | None:
        return GpuDistances(family, GPUS, hardware_columns(GPUS, FABRICS)).twin(gpu, others)

    assert twin("gemm", "h800_sxm", "h200_sxm", "h100_sxm", "l40s") == "h100_sxm"
    assert twin("gemm", "gh200_144gb", "h200_sxm", "h100_sxm") == "h200_sxm"
    assert twin("gemm", "h20", "h200_sxm", "h100_sxm") is None
    assert twin("gemm", "rtx_4090", "l40s") is None
    # a bridge joins two, and what eight say to each other over it is another matter
    assert twin("gemm", "a100_pcie", "a100_sxm") == "a100_sxm"
    assert twin("all_reduce", "a100_pcie", "a100_sxm") is None


def test_intervals_widen_with_the_distance_from_what_was_measured() -> None:
    sizes = {name: np.array([4096.0]) for name in ("m", "n", "k")}
    calls = call_table({**sizes, **work("gemm", sizes), "format": ["bf16"]}, "h100_sxm 0.1", "bf16")
    near = calls.set_column(calls.column_names.index("gpu"), "gpu", pa.array(["h100_sxm 1.0"]))
    widths = []
    for table in (near, calls):
        [row] = price("gemm", table, gpus=cut_gpus("h100_sxm", None)).to_pylist()
        assert row["tier"] == "cross-generation"
        widths.append(np.log(row["latency_p95_us"] / row["latency_us"]))
    assert growth(np.log2(10.0)) == pytest.approx(1.0 + BY_OCTAVE * (np.log2(10.0) - 1.0))
    assert widths[1] > 1.2 * widths[0]
    # a hypothetical GPU is as far from the one whose fit it has
    hypothetical = cut_gpus("h100_sxm", "h100_sxm")
    ends = [price("gemm", table, gpus=hypothetical).to_pylist()[0] for table in (near, calls)]
    assert [row["tier"] for row in ends] == ["hypothetical"] * 2
    widths = [np.log(row["latency_p95_us"] / row["latency_us"]) for row in ends]
    assert widths[1] > 1.2 * widths[0]
