"""Hardware columns by hand: which boards split their L2, carry ECC in band, lack a format, or have PCIe for a link."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.kernels.hardware import MATH, hardware_columns
from tests.kernels.calls import with_column

GPUS = facts("gpus")["gpu"].to_pylist()
HARDWARE = hardware_columns(facts("gpus"), facts("fabrics"))


def column(name: str, *gpus: str) -> list[Any]:
    return [HARDWARE[name][GPUS.index(gpu)] for gpu in gpus]


def rate(gpu: str, math: str) -> float:
    """Return the rate of a number format in TFLOP/s."""
    return HARDWARE["math_flops_per_us"][GPUS.index(gpu), MATH.index(math)] / 1e6


def test_rates_are_stated_a_microsecond() -> None:
    assert column("memory_bytes_per_us", "h100_sxm") == [3.35e6]
    assert column("clock_per_us", "h100_sxm") == [1830.0]
    assert column("vector_flops_per_us", "h100_sxm") == [pytest.approx(66.9e6)]
    assert column("peak_link_bytes_per_us", "h100_sxm") == [450e3]
    assert column("link_bytes_per_us", "h100_sxm") == [pytest.approx(450e3 * 0.75)]


def test_l2_is_two_halves_on_large_dies() -> None:
    assert column("l2_partitions", "a100_sxm", "h100_sxm", "b200_sxm", "gb300") == [2.0] * 4
    assert column("l2_partitions", "t4", "a10g", "l40s", "rtx_pro_6000_server") == [1.0] * 4


def test_kinds_of_memory() -> None:
    nvidia = [row["gpu"] for row in facts("gpus").to_pylist() if row["vendor"] == "nvidia"]
    without = {gpu for gpu, hbm in zip(nvidia, column("hbm", *nvidia), strict=True) if not hbm}
    gddr6 = {"t4", "a10", "a10g", "a40", "a6000", "rtx_3090", "l4", "l20", "l40", "l40s", "rtx_4090", "rtx_6000_ada"}
    gddr7, lpddr = {"rtx_5090", "rtx_pro_6000_server", "rtx_pro_6000_workstation"}, {"gb10"}
    assert without == gddr6 | gddr7 | lpddr
    assert column("inline_ecc", "t4", "a10g", "l40s") == [1.0] * 3
    # GDDR7 corrects on the die; on workstation boards it is off as delivered, and GeForce boards have it off or not
    assert column("inline_ecc", "rtx_pro_6000_server", "a100_sxm", "h100_sxm") == [0.0] * 3
    assert column("inline_ecc", "rtx_3090", "rtx_4090", "a6000", "rtx_6000_ada") == [0.0] * 4


def test_blackwell_ultra_has_twice_the_exponentials() -> None:
    assert column("exponentials_per_clock", "b300_sxm", "gb300") == [32.0] * 2
    assert column("exponentials_per_clock", "b200_sxm", "h100_sxm") == [16.0] * 2


def test_a_format_that_a_gpu_lacks_runs_at_its_16_bit_rate() -> None:
    assert rate("h100_sxm", "fp8") == pytest.approx(1978.9)
    assert rate("h100_sxm", "fp4") == rate("h100_sxm", "bf16") == pytest.approx(989.4)
    # no bfloat16 before Ampere
    assert rate("t4", "bf16") == rate("t4", "fp8") == rate("t4", "fp16") == pytest.approx(65.0)
    assert column("uncut_16_bit_flops_per_us", "t4", "h100_sxm") == pytest.approx([65e6, 989.4e6])


def test_a_gpu_without_a_link_has_the_pcie_generation_nearest_in_rate() -> None:
    fabrics = facts("fabrics")
    names = fabrics["fabric"].to_pylist()
    numbered = with_column(fabrics, "latency_us", np.arange(float(len(names))))
    latency = hardware_columns(facts("gpus"), numbered)["link_latency_us"]
    found = {gpu: names[int(latency[GPUS.index(gpu)])] for gpu in ("t4", "l40s", "rtx_pro_6000_server", "h100_sxm")}
    assert found == {
        **{"t4": "pcie3_x16", "l40s": "pcie4_x16", "rtx_pro_6000_server": "pcie5_x16"},
        "h100_sxm": "nvlink4",
    }
    assert column("link_over_pcie", "t4", "l40s") == [1.0] * 2 and column("link_over_pcie", "h100_sxm") == [0.0]
    assert column("link_max_gpus", "gb200", "h100_nvl") == [72.0, 2.0]
