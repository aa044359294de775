"""Energy of kernels: the closed form of power, what pads and expands, and clocks under a power limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.kernels.energy import POWER_COLUMNS, Work, drawn_by, held, padded_rows, under_limit
from kernelsight.session import connect

AT = {
    "idle_w": 50.0, "active_w": 50.0, "memory_w": 400.0, "compute_w": 1200.0, "expand_w": 100.0, "link_w": 20.0,
    "cap_w": 700.0, "cap_sharpness": 50.0, "clock_exponent": 3.0,
}  # fmt: skip


def work(memory=0.0, compute=0.0, expand=0.0, link=0.0) -> Work:
    return Work(*(np.array([value]) for value in (memory, compute, expand, link)))


def limited(limit_w: float, what: Work, latency_us: float = 10.0) -> tuple[float, float]:
    """Latency and total power of one call under a limit."""
    at, latency = {name: np.array([AT[name]]) for name in POWER_COLUMNS}, np.array([latency_us])
    took, drawn = under_limit(what, latency, drawn_by(what, latency, at), np.array([limit_w]), at)
    return float(took[0]), float(drawn[0]) + AT["idle_w"] + AT["active_w"]


def test_power_adds_up_over_resources_by_the_time_that_each_is_busy():
    drawn = drawn_by(work(8.0, 2.0, 1.0, 5.0), np.array([10.0]), AT)
    assert drawn.tolist() == pytest.approx([400 * 0.8 + 1200 * 0.2 + 100 * 0.1 + 20 * 0.5])


def test_arithmetic_with_its_padding_is_busy_for_no_longer_than_the_kernel():
    assert drawn_by(work(compute=40.0), np.array([10.0]), AT).tolist() == [1200.0]


def test_a_limit_is_kept_exactly_and_only_arithmetic_gets_longer_by_the_clock():
    compute_us, power = limited(400.0, work(memory=0.5, compute=9.0))
    assert power == pytest.approx(400.0)
    memory_us, _ = limited(400.0, work(memory=9.5, compute=0.5))
    # traffic alone is held by the clock of the memory in the end; arithmetic needs a lower clock for the same power
    assert 10.0 < memory_us < compute_us < 30.0


def test_a_limit_below_the_power_without_work_is_refused():
    with pytest.raises(InvalidInput, match=r"a power limit of 50 W is less than the 50\.\d+ W that the GPU draws"):
        limited(50.0, work(compute=9.0))


def test_held_power_never_exceeds_the_limit_of_the_board():
    power = held(np.array([1.0, 350.0, 700.0, 1e5]), 700.0, 5.0)
    assert (np.diff(power) > 0).all() and power[-1] <= 700.0 and power[0] == pytest.approx(1.0)


def test_experts_with_few_rows_pad_most():
    def padded(tokens: float, block_rows: float = 0.0) -> float:
        columns = {"tokens": tokens, "top_k": 2.0, "moe_ep": 1.0, "local_experts": 64.0, "active_experts": 64.0}
        columns["block_rows"] = block_rows
        return float(padded_rows({name: np.array([value]) for name, value in columns.items()})[0])

    assert padded(100.0) > padded(1000.0) > padded(1e5) == pytest.approx(1.0, abs=0.02)
    assert padded(100.0, 8192.0) == pytest.approx(8192.0 / 200.0)


FLAGS = {"model": "qwen3-0.6b", "gpu": "h100_sxm", "phase": "prefill", "input_len": 4096, "batch_size": 2}


def test_a_step_states_its_energy_and_a_limit_makes_it_longer():
    with connect() as session:
        free, held_back = session.predict(**FLAGS).as_dict(), session.predict(**FLAGS, power_limit=300).as_dict()
    assert 0 < free["power_w"]["low"] < free["power_w"]["mean"] < free["power_w"]["high"]
    assert free["power_w"]["mean"] <= 700.0
    kernels = sum(kernel["count"] * kernel["energy_mj"] for kernel in free["kernels"])
    assert kernels == pytest.approx(free["energy_mj"]) == free["power_w"]["mean"] * free["total_us"] / 1e3
    assert held_back["power_w"]["mean"] <= 300.0
    assert held_back["total_us"] > 1.05 * free["total_us"] and held_back["energy_mj"] < free["energy_mj"]


def test_narrow_weights_are_expanded_only_where_the_arithmetic_is_wider():
    from kernelsight.kernels.energy import work_of

    with connect() as session:
        calls = pa.table(
            {
                "gpu": ["h100_sxm"] * 3,
                "math": ["bf16", "bf16", "fp8"],
                "format": ["bf16", "mxfp4", "fp8"],
                "flops": [1e12] * 3,
                "bytes": [3.35e6] * 3,
            }
        )
        found = work_of("gemm", calls, session.table("gpus"), session.table("fabrics"))
    assert found.memory.tolist() == pytest.approx([1.0] * 3) and found.expand.tolist() == pytest.approx([0, 1.0, 0])
    assert found.compute[0] == pytest.approx(2 * found.compute[2], rel=1e-3)
