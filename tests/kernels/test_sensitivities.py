"""Elasticities of kernels: those of the answers on GPUs that differ in a fact, also under a power limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kernelsight as ks
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.sensitivities import FACTS, kernel_sensitivities_of

INPUTS = ("deployment_settings", "gpus", "fabrics", "eta_coefficients", "kernel_implementations", "dies", "gpu_power")
DEPLOYMENT = {"tp": 2, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
DEPLOYMENT |= {"deployment_id": "d", "model": "llama-3.1-8b", "gpu": "h100_sxm"}


def scaled(table: pa.Table, fact: str, factor: float) -> pa.Table:
    values = pc.multiply(table[fact].cast(pa.float64()), factor)
    return table.set_column(table.column_names.index(fact), fact, values)


def session_of(fact: str = "tdp_w", factor: float = 1.0, **limit: float) -> ks.Session:
    """Return a session with the deployment, on GPUs that have ``factor`` times a fact."""
    session = ks.connect()
    session.give("gpus", scaled(session.table("gpus"), fact, factor))
    session.give("deployments", [DEPLOYMENT | limit])
    return session


@pytest.mark.parametrize(
    ("limit", "facts"),
    [
        ({}, ("memory_bandwidth_bytes_per_s", "link_bytes_per_s")),
        ({"power_limit_w": 400.0}, ("bf16_flops_per_s", "tdp_w")),
    ],
)
def test_elasticities_are_those_of_answers_on_other_gpus(limit: dict, facts: tuple[str, ...]) -> None:
    """At 400 W, which holds products and decode attention, what the limit of the board scales moves with it."""
    session, unlimited = session_of(**limit), session_of()
    key = ["deployment_id", "step_shape_id", "call"]
    found = session.table("kernel_sensitivities").sort_by([(name, "ascending") for name in key])
    assert not set(FACTS) - set(found["fact"].to_pylist()) - {"fp8_flops_per_s", "fp4_flops_per_s", "int8_flops_per_s"}
    slowed = [pc.sum(one.table("kernel_latencies")["latency_us"]).as_py() for one in (session, unlimited)]
    assert (slowed[0] != slowed[1]) == bool(limit)
    for fact in facts:
        own = found.filter(pc.equal(found["fact"], fact))
        latencies = [
            session_of(fact, factor, **limit).table("kernel_latencies").sort_by([(name, "ascending") for name in key])
            for factor in (1.01, 0.99)
        ]
        assert own["call"].to_pylist() == latencies[0]["call"].to_pylist()
        more, less = (table["latency_us"].to_numpy() for table in latencies)
        expected = np.log(more / less) / np.log(1.01 / 0.99)
        np.testing.assert_allclose(own["elasticity"].to_numpy(), expected, atol=1e-9, err_msg=fact)
        assert np.abs(expected).max() > 0.1


def test_an_elasticity_over_a_kink_is_the_mean_of_both_sides() -> None:
    """In the roofline tier, of a product at the ridge: below the bandwidth of the ridge memory bounds it."""
    session = session_of()
    calls, tables = session.table("gemm_calls").slice(0, 1), PricingTables(*map(session.table, INPUTS))
    settings, gpus = tables.settings, tables.gpus
    settings = settings.set_column(settings.column_names.index("tier"), "tier", pa.array(["roofline"]))
    row = calls.to_pylist()[0]
    gpu = gpus.filter(pc.equal(gpus["gpu"], row["gpu"])).to_pylist()[0]
    ridge = row["bytes"] / row["flops"] * gpu["bf16_flops_per_s"] / gpu["memory_bandwidth_bytes_per_s"]
    for factor, elasticity in ((1.005, -0.25), (0.995, -0.75), (2.0, 0.0), (0.5, -1.0)):
        moved = scaled(gpus, "memory_bandwidth_bytes_per_s", ridge * factor)
        moved_tables = tables._replace(settings=settings, gpus=moved)
        found = kernel_sensitivities_of("gemm", calls, moved_tables, session.table("energy_constants"))
        (own,) = found.filter(pc.equal(found["fact"], "memory_bandwidth_bytes_per_s")).to_pylist()
        assert own["elasticity"] == pytest.approx(elasticity, abs=0.01)
