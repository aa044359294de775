"""Times of matrix products and of what moves their operands: bounds, order, and rows that were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelsight.kernels import gemm, streaming
from kernelsight.kernels.families import FAMILIES

H100 = {
    "sm_count": 132.0,
    "clock_per_us": 1830.0,
    "l2_bytes": 52428800.0,
    "memory_bytes_per_us": 3.35e6,
    "math_flops_per_us": 989.4e6,
    "tdp_w": 700.0,
}
A100 = {**H100, "sm_count": 108.0, "clock_per_us": 1410.0, "memory_bytes_per_us": 2.039e6, "math_flops_per_us": 312e6}
A100 |= {"l2_bytes": 41943040.0, "tdp_w": 400.0}
L40S = {**H100, "sm_count": 142.0, "clock_per_us": 2520.0, "memory_bytes_per_us": 864e3, "math_flops_per_us": 362.05e6}
L40S |= {"l2_bytes": 100663296.0, "tdp_w": 350.0}
GPUS = {"h100": H100, "a100": A100, "l40s": L40S}
for _gpu in GPUS.values():
    _gpu["uncut_flops_per_us"], _gpu["inline_ecc"] = _gpu["math_flops_per_us"], float(_gpu is L40S)
COLD = 1e15
FACTS = Path(gemm.__file__).resolve().parents[1] / "catalog" / "implementations"


def starts(family: str = "batched_gemm", **changed: float) -> dict[str, float]:
    return {one.name: one.start for one in FAMILIES[family].latency_model.coefficients} | changed


def product(m: Any, n: Any, k: Any, batch: Any = 1.0, weight_bytes: float = 2.0, act_bytes: float = 2.0) -> dict:
    """Return the call columns of cold products, as sql/lower/gemm_calls.sql counts their work."""
    m, n, k, batch = np.broadcast_arrays(*(np.asarray(size, dtype=float) for size in (m, n, k, batch)))
    moved = batch * (m * k * act_bytes + n * k * weight_bytes + m * n * 2.0)
    flops = 2.0 * batch * m * n * k
    return {
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "flops": flops,
        "bytes": moved,
        "working_set_bytes": np.full(m.shape, COLD),
    }


def random_products(seed: int, rows: int = 400, **widths: float) -> dict:
    random = np.random.default_rng(seed)
    sizes = np.floor(np.exp(random.uniform(0.0, np.log([[1e5], [1e5], [1e5], [64.0]]), (4, rows))))
    return product(*sizes, **widths)


def test_warm_weights_are_never_slower_than_cold_ones() -> None:
    cold = product(16.0, 2.0 ** np.arange(6, 14), 4096.0)
    warm = {**cold, "working_set_bytes": 6.0 * cold["bytes"]}
    slower, faster = (gemm.gemm(np, call, L40S, starts())[0] for call in (cold, warm))
    assert (faster <= slower).all()
    assert faster[2] < 0.9 * slower[2]


def test_a_part_filled_gpu_splits_the_sum_where_that_is_cheaper() -> None:
    few_tiles = product(64.0, 256.0, 2.0 ** np.arange(9, 17))
    split, whole = (gemm.gemm(np, few_tiles, H100, starts(split_clocks=clocks))[0] for clocks in (7500.0, 2e5))
    assert split[0] == whole[0]
    assert (split <= whole).all()
    assert split[-1] < 0.5 * whole[-1]


@pytest.mark.parametrize("batch", [1.0, 48.0])
def test_a_part_filled_tile_costs_as_much_as_a_full_one(batch: float) -> None:
    """113 to 128 rows are as many tiles of 16, 64 or 128 rows; neither memory nor power bounds these products."""
    gpu = {**H100, "memory_bytes_per_us": 1e12, "l2_bytes": 1e15, "tdp_w": 1e9}
    call = product(np.array([113.0, 120.0, 128.0, 129.0]), 8192.0, 8192.0, batch=batch)
    times, tiles, _ = gemm.gemm(np, call, gpu, starts())
    assert times[:2] == pytest.approx(times[2], rel=1e-4)
    assert times[3] > 1.02 * times[2]
    assert (tiles % batch == 0.0).all()


def test_a_library_that_chooses_by_rows_pays_for_idle_multiprocessors() -> None:
    call = product(np.array([32.0, 128.0, 129.0, 257.0, 8192.0]), 2048.0, 7168.0)
    free, by_rows = (gemm.gemm(np, call, H100, starts(least_rows=share, split_clocks=2e4))[0] for share in (0.0, 0.5))
    assert (by_rows >= free).all()
    assert by_rows[2] > 1.05 * free[2]
    assert by_rows[4] == free[4]


def test_long_products_run_at_the_power_limit() -> None:
    short, long = product(512.0, 4096.0, 4096.0), product(16384.0, 65536.0, 16384.0)
    unlimited = {**L40S, "tdp_w": 1e4}
    times = [[gemm.gemm(np, call, gpu, starts())[0] for gpu in (L40S, unlimited)] for call in (short, long)]
    ratios = [limited / free for limited, free in times]
    assert 1.0 <= ratios[0] < ratios[1]
    assert ratios[1] > 1.2


@pytest.mark.parametrize(("name", "limited"), [("l40s", True), ("a100", False)])
def test_a_served_product_runs_at_the_clock_that_the_power_limit_sustains(name: str, limited: bool) -> None:
    """Burst^(1 - 1/x) limit^(1/x) in serving, nearer to the burst where a collector's calls are short."""
    gpu, call = {**GPUS[name], "tdp_w": 350.0 if limited else 5000.0}, product(8192.0, 8192.0, 8192.0)
    burst, sweep, served = (
        float((latency - floor)[0])
        for clock in (1e12, 3e3, 0.0)
        for latency, _, floor in [gemm.gemm(np, {k: v[None] for k, v in call.items()}, gpu, starts(throttle_us=clock))]
    )
    pj = starts()["energy_pj"] * np.sqrt(3e6 * gpu["sm_count"] / gpu["math_flops_per_us"])
    limit, exponent = 2.0 * 8192.0**3 * pj * 1e-6 / gpu["tdp_w"], starts()["clock_exponent"]
    assert served == pytest.approx(max(burst, burst ** (1.0 - 1.0 / exponent) * limit ** (1.0 / exponent)), rel=1e-6)
    assert (burst < sweep < served) if limited else burst == pytest.approx(served)


def test_quantisation_counts_only_where_it_was_measured_with_the_product() -> None:
    call = product(np.array([1.0, 4096.0]), 4096.0, 4096.0, weight_bytes=1.0, act_bytes=1.0)
    without, with_it = (gemm.gemm(np, call, H100, starts(quantizes=flag))[0] for flag in (0.0, 1.0))
    added = with_it - without
    assert added[0] == pytest.approx(starts()["quantize_us"], rel=0.05)
    assert added[1] > added[0] + 4096.0**2 * starts()["quantize_bytes"] / H100["memory_bytes_per_us"] * 0.99


def test_a_batch_of_one_is_a_product_after_a_gap() -> None:
    call = random_products(5)
    call["batch"] = np.ones_like(call["m"])
    call = {**call, **product(call["m"], call["n"], call["k"])}
    alone = gemm.gemm(np, {name: call[name] for name in call if name != "batch"}, A100, starts())
    batched = gemm.batched_gemm(np, call, A100, starts())
    assert np.array_equal(batched[0], alone[0] + starts()["gap_us"])
    assert np.array_equal(batched[1], alone[1])


def test_every_coefficient_has_a_finite_slope() -> None:
    import jax
    import jax.numpy as jnp

    products = random_products(9)
    warm = {**products, "working_set_bytes": 2.0 * products["bytes"]}
    call = {name: jnp.asarray(values) for name, values in warm.items()}
    declared = FAMILIES["batched_gemm"].latency_model.coefficients
    fitted = {one.name: one.start for one in declared if one.owner != "fixed"}
    fixed = {"quantizes": 1.0, "least_rows": 0.5}

    def logarithm(values: dict, call: dict) -> Any:
        return jnp.log(gemm.batched_gemm(jnp, call, H100, {**values, **fixed})[0])

    def slope(values: dict, direction: dict, call: dict) -> Any:
        return jax.jvp(lambda moved: logarithm(moved, call), (values,), (direction,))[1]

    compiled = jax.jit(slope)
    for name in fitted:
        found = np.asarray(compiled(fitted, {other: float(other == name) for other in fitted}, call))
        assert np.isfinite(found).all(), name
        assert np.abs(found).max() > 0.0, name


# medians of aiconfigurator-core 0.12.0, bf16, cuBLAS behind TensorRT-LLM: gpu, m, n, k, us
MEASURED = (
    ("h100", 1, 65536, 5120, 238.8), ("h100", 128, 4096, 4096, 16.1), ("h100", 1024, 4096, 4096, 45.3),
    ("h100", 4096, 4096, 4096, 174.3), ("h100", 4096, 1024, 8192, 85.7), ("h100", 4096, 65536, 5120, 3429.1),
    ("a100", 1, 65536, 5120, 403.7), ("a100", 512, 4096, 4096, 90.6), ("a100", 4096, 4096, 4096, 514.1),
    ("a100", 8192, 65536, 5120, 21226.1), ("l40s", 4096, 4096, 4096, 545.5), ("l40s", 16, 65536, 5120, 941.1),
)  # fmt: skip


@pytest.mark.parametrize(("gpu", "m", "n", "k", "measured_us"), MEASURED)
def test_unfitted_coefficients_are_near_measured_products(gpu: str, m: int, n: int, k: int, measured_us: float) -> None:
    predicted = gemm.gemm(np, product(m, n, k), GPUS[gpu], starts())[0]
    assert predicted == pytest.approx(measured_us, rel=0.25)


def test_a_cache_that_holds_the_bytes_quantises_faster_than_dram() -> None:
    rows = 2.0 ** np.arange(0, 17)
    call = {"rows": rows, "bytes": rows * 4096.0 * 3.0, "working_set_bytes": rows * 4096.0 * 3.0}
    times = streaming.quantize(np, call, H100, starts("quantize"))[0]
    assert (np.diff(times) > 0.0).all()
    assert (times[:8] < 2.0).all()
    # aiconfigurator-core 0.12.0, H100, TensorRT-LLM static quantisation of 2,048 and 32,768 rows of 4,096
    assert times[11] == pytest.approx(6.4, rel=0.15)
    assert times[15] == pytest.approx(131.5, rel=0.15)


def test_rows_that_were_driven_out_of_the_cache_come_from_dram() -> None:
    moved = 4096.0 * 4096.0
    warm = {"bytes": np.array([moved]), "working_set_bytes": np.array([moved])}
    cold = {**warm, "working_set_bytes": np.array([moved + 4.0 * H100["l2_bytes"]])}
    at = starts("norm")
    times = [streaming.streaming(np, call, H100, at)[0].item() for call in (warm, cold)]
    streamed_us = moved / (H100["memory_bytes_per_us"] * at["memory_efficiency"])
    assert times[1] == pytest.approx(at["floor_us"] + streamed_us, rel=1e-6)
    assert times[0] < times[1] - 1.0


def test_narrow_rows_wait_for_their_dispatch() -> None:
    moved = np.array([96.0, 32768.0 * 96.0])
    call = {"rows": np.array([1.0, 32768.0]), "bytes": moved, "working_set_bytes": moved}
    times = streaming.quantize(np, call, H100, starts("quantize", row_clocks=1.2))[0]
    assert times[1] - times[0] == pytest.approx(32768.0 * 1.2 / 1830.0, rel=0.02)
