"""Step costs against the sum of their kernels: deployments that launch the same are lowered once, calls priced once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.session import Session, connect
from tests.asked import give_plan
from tests.sweeps.conftest import LOAD

ORACLE = (Path(__file__).parents[1] / "oracles" / "step_costs.sql").read_text()
LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
DEPLOYMENTS = [
    {"model": "llama-3.1-8b", "gpu": "h100_sxm", **LIMITS},
    {"model": "llama-3.1-8b", "gpu": "h200_sxm", **LIMITS},
    {"model": "qwen3-30b-a3b", "gpu": "l40s", "tp": 2, "engine": "sglang"},
    {"model": "gpt-oss-20b", "gpu": "b200_sxm", "tier": "cross-generation", "pp": 2},
    {"model": "deepseek-v3.2", "gpu": "h200_sxm", "tp": 8, "ep": 8},
    {"model": "qwen3-next-80b-a3b", "gpu": "h100_sxm", "tp": 4, "tier": "roofline"},
    {"model": "deepseek-v3", "gpu": "h200_sxm", "tp": 8, "dp": 2, "enable_expert_parallel": True},
    # its activations are quantised by a kernel that the lowering asks for by name
    {"model": "deepseek-v3.2", "gpu": "b200_sxm", "tp": 8, "ep": 8, "tier": "cross-generation"},
]
BASE = {"model": "llama-3.1-8b", "gpu": "h100_sxm", **LIMITS}
ATTENTION = ["decode_attention", "prefill_attention"]
# without what an active GPU draws anyway
ENERGY = """
select deployment_id, step_shape_id,
       sum(count * (energy_j - latency_us / 1e6 * (power.idle_w + power.active_w))) as joules
from kernel_latencies
join deployments using (deployment_id)
join gpu_power as power using (gpu)
join step_costs using (deployment_id, step_shape_id)
group by all
"""
RATED = """
select deployment_id, step_shape_id, coalesce(sum(count * latency_us) filter (bound <> 'launch'), 0) as rated_us
from kernel_latencies join step_costs using (deployment_id, step_shape_id) group by all
"""
RATES = ["compute_us", "memory_us", "link_us"]
KEY = [("deployment_id", "ascending"), ("step_shape_id", "ascending")]


def give_deployments(session: Session, rows: list[dict]) -> None:
    give_plan(session, [{**row, **LOAD, "max_concurrency": 5} for row in rows])


@pytest.fixture(scope="module")
def served() -> Iterator[Session]:
    """A session of all deployments, whose forks are changed."""
    with connect() as session:
        give_deployments(session, DEPLOYMENTS)
        yield session


def test_costs_are_the_sums_of_their_kernels(served: Session):
    expected = served.query(ORACLE).sort_by(KEY)
    found = served.table("step_costs").sort_by(KEY)
    assert found.num_rows > 1000
    shares = served.table("step_cost_shares").sort_by(KEY)
    parts = np.stack([shares[name].to_numpy() for name in RATES])
    assert (parts >= 0.0).all() and (parts.sum(axis=0) <= found["gpu_us"].to_numpy() + 1e-6).all()
    assert (parts.max(axis=1) > 0.0).all()
    joules, found = found["dynamic_energy_j"].to_numpy(), found.drop_columns(["dynamic_energy_j"])
    assert found.equals(expected.cast(found.schema))
    summed = served.query(ENERGY).sort_by(KEY)["joules"].to_numpy()
    assert np.isfinite(joules).all() and joules == pytest.approx(summed, rel=1e-6, abs=1e-6)
    signatures = served.table("launch_signatures").to_pylist()
    named = {row["deployment_id"]: row["signature_id"] for row in signatures}
    one, two = served.table("deployments")["deployment_id"].to_pylist()[:2]
    assert named[one] == named[two]
    assert len(set(named.values())) == len(DEPLOYMENTS) - 1
    assert {row["transfer_us"] > 0.0 for row in found.to_pylist()} == {True, False}


def test_step_costs_depend_on_no_load_and_evidence_on_what_it_reaches(served: Session):
    costs, told = served.table("step_costs"), served.table("kernel_evidence")
    whole = pc.sum(served.table("knot_evidence")["gpu_us"]).as_py()
    with served.fork() as session:
        names = session.table("deployments").select(["deployment_id"])
        nothing = pa.nulls(names.num_rows, pa.int64())
        session.give("deployment_reach", names.append_column("requests", nothing).append_column("tokens", nothing))
        assert session.table("step_costs").equals(costs)
        assert pc.sum(session.table("kernel_evidence")["gpu_us"]).as_py() == pytest.approx(whole, rel=1e-9)
    assert 0.0 < pc.sum(told["gpu_us"]).as_py() < whole / 2


def test_given_latencies_are_read_as_they_are(served: Session):
    own = served.table("step_costs").sort_by(KEY)["gpu_us"].to_numpy()
    for name in ("kernel_latencies", "gemm_latencies"):
        latencies = served.table(name)
        place = latencies.column_names.index("latency_us")
        twice = latencies.set_column(place, "latency_us", pa.array(2.0 * latencies["latency_us"].to_numpy()))
        with served.fork() as fork:
            fork.give(name, twice)
            found = fork.table("step_costs").sort_by(KEY)
            shares = fork.table("step_cost_shares").sort_by(KEY)
            parts = sum(shares[rate].to_numpy() for rate in RATES)
            times = found.drop_columns(["dynamic_energy_j"])
            assert times.equals(fork.query(ORACLE).sort_by(KEY).cast(times.schema))
            if name == "kernel_latencies":
                assert found["gpu_us"].to_numpy() == pytest.approx(2.0 * own, rel=1e-4)
                # how they scale with rates is not stated: all of each with the one that bounds it, launches with none
                rated = fork.query(RATED).sort_by(KEY)["rated_us"].to_numpy()
                assert 0.0 < rated.sum() < 0.999 * found["gpu_us"].to_numpy().sum()
                assert np.allclose(parts, rated, rtol=1e-5)
            else:
                assert found["gpu_us"].to_numpy().sum() > own.sum() * 1.01
    assert served.table("gemm_latencies").num_rows


def test_deployments_that_launch_the_same_kernels_share_a_signature():
    other_memory = {"gpu_memory_utilization": 0.8}  # changes no kernel
    other_gpu = {"gpu": "h200_sxm"}  # the same kernels, at another price
    changes = ({}, other_memory, other_gpu, {"tensor_parallel_size": 2}, {"tier": "roofline"})
    with connect() as session:
        scenarios = give_plan(session, [{**BASE, **row, **LOAD, "max_concurrency": 4} for row in changes])
        deployment_of = {row["scenario_id"]: row["deployment_id"] for row in session.table("scenarios").to_pylist()}
        names = [deployment_of[scenario] for scenario in scenarios]
        launched = session.table("launch_signatures").to_pylist()
        costs = session.table("step_costs").sort_by(KEY)
    signatures = {row["deployment_id"]: row["signature_id"] for row in launched}
    base, *others = names
    times = {name: costs.filter(pc.equal(costs["deployment_id"], name))["gpu_us"] for name in names}
    assert len(signatures) == len(changes)
    for change, name in zip(changes[1:], others, strict=True):
        assert (signatures[name] == signatures[base]) == (change in (other_memory, other_gpu)), change
        assert times[name].equals(times[base]) == (change == other_memory), change


def test_given_calls_are_read_as_they_are():
    with connect() as session:
        give_plan(session, [{**BASE, **LOAD, "max_concurrency": 4}])
        calls, own = session.table("gemm_calls"), session.table("step_costs")
        thrice = pa.array(3 * calls["count"].to_numpy())
        with session.fork() as fork:
            fork.give("gemm_calls", calls.set_column(calls.column_names.index("count"), "count", thrice))
            given = fork.table("step_costs")
        given, own = (table.sort_by("step_shape_id") for table in (given, own))
        largest = pc.max_element_wise(given["gpu_us"], own["gpu_us"])
        grown = pc.greater(given["gpu_us"], pc.multiply(own["gpu_us"], 1.5))
        assert largest.equals(given["gpu_us"])
        assert pc.all(pc.or_(grown, pc.is_in(own["part"], pa.array(ATTENTION)))).as_py()


def lowered_of(session: Session) -> list[str]:
    """Return a list that grows by the family of each call table that is made from now on."""
    made: list[str] = []
    read = session._read

    def noted(name: str, *asked: object) -> pa.Table:
        made.extend([name] if name.endswith("_calls") else [])
        return read(name, *asked)

    session._read = noted
    return made


COSTED = ("step_costs", "kernel_evidence", "step_cost_shares")


def test_a_signature_that_was_priced_before_is_not_lowered_again():
    deployments = DEPLOYMENTS[:4]
    slower = {"model": "llama-3.1-8b", "gpu": "h200_sxm", "gpu_memory_utilization": 0.7, **LIMITS}
    with connect() as session:
        # facts of this session alone: nothing was priced with them
        session.extend("gpus", [{**session.table("gpus").to_pylist()[0], "gpu": "unlike"}])
        give_deployments(session, deployments)
        first = {name: session.table(name) for name in COSTED}
        with session.fork() as fork:
            made = lowered_of(fork)
            # of the host alone: no kernel takes another time
            own = {"deployment_id": fork.table("deployments")["deployment_id"][0].as_py(), "part": "host"}
            fork.give("corrections", [{**own, "factor": 1.0, "exposed_us": 9.0}])
            again = {name: fork.table(name) for name in COSTED}
        assert not made
        assert first["step_costs"].num_rows > 1000
        for name in COSTED:
            key = [
                (column, "ascending")
                for column in first[name].column_names
                if column in ("deployment_id", "step_shape_id", "family", "tier", "evidence")
            ]
            assert again[name].sort_by(key).equals(first[name].sort_by(key)), name
        with session.fork() as fork:
            made = lowered_of(fork)
            give_deployments(fork, [slower, {**BASE, "tp": 2}])
            mixed = fork.table("step_costs").sort_by(KEY)
        assert "gemm_calls" in made
        assert mixed.num_rows
    with connect() as session:
        give_deployments(session, [slower, {**BASE, "tp": 2}])
        assert session.table("step_costs").sort_by(KEY).equals(mixed)
