"""Elasticities of kernels against central differences of the kernel model itself, and the sides that kinks name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kernelsight as ks
from kernelsight.kernels.gpu_power import power_of_gpus
from kernelsight.kernels.latency import evaluate_calls, latency_columns
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.sensitivities import FACTS, SMOOTH, STEP, kernel_sensitivities_of, moved_hardware

INPUTS = ("deployment_settings", "gpus", "fabrics", "eta_coefficients", "kernel_implementations", "dies", "gpu_power")
DEPLOYMENT = {"tp": 2, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
# the worst that a central difference of 1 % differs from a derivative where nothing kinks
CURVED = 0.01


def scaled(table: pa.Table, fact: str, factor: float) -> pa.Table:
    values = pc.multiply(table[fact].cast(pa.float64()), factor)
    return table.set_column(table.column_names.index(fact), fact, values)


def calls_of(session: ks.Session, family: str, every: int = 7) -> tuple[pa.Table, PricingTables]:
    """Return some calls of a family, and what they are priced with."""
    calls = session.table(f"{family}_calls")
    return calls.take(pa.array(np.arange(0, calls.num_rows, every))), PricingTables(
        *(session.table(name) for name in INPUTS)
    )


@pytest.fixture(scope="module")
def session() -> ks.Session:
    session = ks.connect()
    session.give("deployments", [DEPLOYMENT | {"deployment_id": "d", "model": "llama-3.1-8b", "gpu": "h100_sxm"}])
    return session


@pytest.mark.parametrize("family", ["gemm", "norm", "all_reduce"])
def test_elasticities_are_those_of_central_differences(session: ks.Session, family: str) -> None:
    calls, tables = calls_of(session, family)
    found = kernel_sensitivities_of(family, calls, tables)
    assert not set(FACTS) - set(found["fact"].to_pylist()) - {"fp8_flops_per_s", "fp4_flops_per_s", "int8_flops_per_s"}
    for fact in set(found["fact"].to_pylist()):
        own = found.filter(pc.equal(found["fact"], fact))
        assert own.num_rows == calls.num_rows
        more, less = (
            evaluate_calls(family, calls, tables._replace(gpus=scaled(tables.gpus, fact, factor))).latency_us
            for factor in (1.0 + STEP, 1.0 - STEP)
        )
        difference = np.log(more / less) / np.log((1.0 + STEP) / (1.0 - STEP))
        smooth = pc.is_null(own["kink"]).to_numpy(zero_copy_only=False)
        assert smooth.mean() > 0.9
        np.testing.assert_allclose(own["elasticity"].to_numpy()[smooth], difference[smooth], atol=CURVED, err_msg=fact)
        np.testing.assert_allclose(own["central_elasticity"].to_numpy(), difference, atol=1e-3, err_msg=fact)


def test_a_kink_names_the_side_on_which_another_limit_takes_over(session: ks.Session) -> None:
    """In the roofline tier, of a product at the ridge: below the bandwidth of the ridge memory bounds it."""
    calls, tables = calls_of(session, "gemm")
    settings, gpus = tables.settings, tables.gpus
    settings = settings.set_column(settings.column_names.index("tier"), "tier", pa.array(["roofline"]))
    row = calls.slice(0, 1).to_pylist()[0]
    gpu = gpus.filter(pc.equal(gpus["gpu"], row["gpu"])).to_pylist()[0]
    ridge = row["bytes"] / row["flops"] * gpu["bf16_flops_per_s"] / gpu["memory_bandwidth_bytes_per_s"]
    sides = ((1.005, 0.0, "below", -0.25), (0.995, -1.0, "above", -0.75), (2.0, 0.0, None, 0.0))
    for factor, elasticity, kink, central in sides:
        moved = scaled(gpus, "memory_bandwidth_bytes_per_s", ridge * factor)
        found = kernel_sensitivities_of("gemm", calls.slice(0, 1), tables._replace(settings=settings, gpus=moved))
        (own,) = found.filter(pc.equal(found["fact"], "memory_bandwidth_bytes_per_s")).to_pylist()
        assert (own["elasticity"], own["kink"]) == (pytest.approx(elasticity), kink)
        assert own["central_elasticity"] == pytest.approx(central, abs=0.01)
    assert 0.0 < SMOOTH < 1.0


def test_hardware_columns_move_as_powers_of_the_facts(session: ks.Session) -> None:
    gpus = session.table("gpus").slice(0, 3)
    moved = moved_hardware(gpus, session.table("fabrics"))
    memory = moved.powers["memory_bytes_per_us"].reshape(3, len(FACTS))
    expected = np.zeros((3, len(FACTS)))
    expected[:, FACTS.index("memory_bandwidth_bytes_per_s")] = 1.0
    np.testing.assert_allclose(memory, expected, atol=1e-6)


def test_under_a_power_limit_derivatives_are_those_of_limited_latencies() -> None:
    """At 400 W, which holds products and decode attention; what the limit of the board scales moves with it."""
    session = ks.connect()
    limit = {"power_limit_w": 400.0, "deployment_id": "d", "model": "llama-3.1-8b", "gpu": "h100_sxm"}
    session.give("deployments", [DEPLOYMENT | limit])
    constants = session.table("energy_constants")
    for family in ("gemm", "decode_attention"):
        # with a limit every fact counts: fewer calls, so that as many rows are compiled as without
        calls, tables = calls_of(session, family, every=16)
        found = kernel_sensitivities_of(family, calls, tables)
        without_limit = tables._replace(settings=tables.settings.drop_columns("power_limit_w"))
        free = latency_columns(family, calls, without_limit)["latency_us"]
        limited = latency_columns(family, calls, tables)["latency_us"]
        assert pc.any(pc.greater(limited, pc.multiply(free, 1.05))).as_py()
        for fact in ("memory_bandwidth_bytes_per_s", "bf16_flops_per_s", "tdp_w"):
            rows = found.filter(pc.equal(found["fact"], fact))
            more, less = (
                latency_columns(family, calls, tables._replace(gpus=moved, gpu_power=power_of_gpus(moved, constants)))[
                    "latency_us"
                ].to_numpy()
                for moved in (scaled(tables.gpus, fact, 1.0 + STEP), scaled(tables.gpus, fact, 1.0 - STEP))
            )
            difference = np.log(more / less) / np.log((1.0 + STEP) / (1.0 - STEP))
            smooth = pc.is_null(rows["kink"]).to_numpy(zero_copy_only=False)
            assert smooth.mean() > 0.8
            np.testing.assert_allclose(rows["elasticity"].to_numpy()[smooth], difference[smooth], atol=CURVED)
            assert fact != "tdp_w" or np.abs(difference).max() > 0.1
