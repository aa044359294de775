"""Parts of a request's time: they add up, agree with kept steps, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kernelsight.session import Session, connect
from kernelsight.sweeps.runs import Run

LOADS = {
    "open": {"request_rate": 12.0, "num_prompts": 150},
    "closed": {"max_concurrency": 24, "num_prompts": 150},
    "preempted": {"request_rate": 60.0, "num_prompts": 150, "kv_cache_tokens": 8192},
    "replicas": {"request_rate": 30.0, "num_prompts": 150, "data_parallel_size": 2, "router": "least_loaded"},
}
KERNELS = ("prefill_gemm", "prefill_attention", "decode_gemm", "decode_attention", "moe", "communication")
PLAN = {"model": "qwen3-30b-a3b", "gpu": "h100_sxm", "tensor_parallel_size": 2, "input_len": 700, "output_len": 40}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with connect() as opened:
        yield opened


@pytest.fixture(scope="module", params=LOADS)
def run(request: pytest.FixtureRequest, session: Session) -> Run:
    run = session.simulate(**PLAN, range_ratio=0.3, **LOADS[request.param])
    run.session.compute("request_parts", "request_events", "steps", "request_metrics")
    return run


def single(session: Session) -> Run:
    """Serve one request alone."""
    run = session.simulate(**PLAN, request_rate=1.0, num_prompts=1)
    run.session.compute("request_parts")
    return run


@pytest.fixture(scope="module")
def alone(session: Session) -> Run:
    return single(session)


def parts_by_phase(run, phase: str):
    return run.sql(f"select * from request_parts where phase = '{phase}' order by request_id").to_arrow_table()


def test_parts_of_each_phase_add_up_to_it_in_whole_nanoseconds(run) -> None:
    events = run.sql("select * from request_events order by request_id").to_arrow_table()
    moments = {name: events[f"{name}_ns"].to_numpy() for name in ("sent", "first_token", "finish")}
    spans = {"prefill": ("sent", "first_token"), "decode": ("first_token", "finish")}
    for phase, (begin, end) in spans.items():
        parts = parts_by_phase(run, phase)
        columns = [name for name in parts.column_names if name.endswith("_ns")]
        total = sum(parts[name].to_numpy() for name in columns)
        assert np.array_equal(total, moments[end] - moments[begin])
        assert all(parts[name].to_numpy().min() >= 0 for name in columns if name != "host_ns")


def test_steps_and_host_time_are_those_of_the_kept_steps(run) -> None:
    """Every request is in all steps of its engine from its admission on, unless it was preempted."""
    steps = run.sql("select * from steps order by replica, end_ns").to_arrow_table().to_pylist()
    events = run.sql("select * from request_events where preemptions = 0 order by request_id").to_arrow_table()
    decode = {row["request_id"]: row for row in parts_by_phase(run, "decode").to_pylist()}
    for event in events.to_pylist()[::7]:
        first, finish = event["first_token_ns"], event["finish_ns"]
        own = [
            step
            for step in steps
            if step["replica"] == event["replica"] and step["start_ns"] >= first and step["end_ns"] <= finish
        ]
        found = decode[event["request_id"]]
        assert found["steps"] == len(own)
        assert found["prompt_steps"] == sum(step["prefill_tokens"] > 0 for step in own)
        assert found["host_ns"] == pytest.approx(sum(step["host_ns"] for step in own), abs=len(own) + 10)


def test_asking_for_parts_changes_no_other_table() -> None:
    with connect() as session:
        alone = session.simulate(**PLAN, **LOADS["open"])
        alone.session.compute("request_metrics")
        beside = session.simulate(**PLAN, **LOADS["open"])
        beside.session.compute("request_parts", "request_metrics", "scenario_summary")
        for name in ("request_metrics", "scenario_summary"):
            assert alone.table(name).drop(["scenario_id"]).equals(beside.table(name).drop(["scenario_id"]))


def test_one_request_alone_sees_the_breakdown(alone: Run) -> None:
    total_us, moe_us = alone.sql(
        "select sum(total_us), sum(total_us) filter (family = 'moe') from kernel_breakdown"
    ).fetchall()[0]
    seen = alone.sql(f"select sum({' + '.join(f'{name}_ns' for name in KERNELS)}), sum(moe_ns) from request_parts")
    kernels_ns, moe_ns = seen.fetchall()[0]
    assert kernels_ns / 1e3 == pytest.approx(total_us, rel=1e-6)
    assert moe_ns / 1e3 == pytest.approx(moe_us, rel=1e-6)


def parts_with(fork: Session, alone: Run, corrections: list[dict[str, Any]]) -> tuple[Run, list[tuple[dict, dict]]]:
    """Serve one request with corrections; return the run, and the parts of each phase without and with them."""
    own = {"deployment_id": alone.table("deployments")["deployment_id"][0].as_py(), "factor": 1.0, "exposed_us": 0.0}
    fork.give("corrections", [own | row for row in corrections])
    corrected = single(fork)
    was, became = (run.table("request_parts").sort_by("phase").to_pylist() for run in (alone, corrected))
    return corrected, list(zip(was, became, strict=True))


def test_corrections_of_host_time_hold_for_every_step_and_request(session: Session, alone: Run) -> None:
    with session.fork() as fork:
        added = [{"part": "host", "exposed_us": 300.0}, {"part": "front_end", "exposed_us": 2000.0}]
        for row, other in parts_with(fork, alone, added)[1]:
            assert other["host_ns"] == pytest.approx(row["host_ns"] + 300_000 * row["steps"], abs=2)
            assert other["front_end_ns"] == row["front_end_ns"] + 2_000_000 * (row["phase"] == "prefill")


def test_corrections_scale_kernels(session: Session, alone: Run) -> None:
    with session.fork() as fork:
        scaled = [{"part": "moe", "factor": 1.5}, {"part": "decode_gemm", "factor": 0.5}]
        corrected, pairs = parts_with(fork, alone, scaled)
        for row, other in pairs:
            assert other["moe_ns"] == pytest.approx(1.5 * row["moe_ns"], rel=1e-5)
            assert other["decode_gemm_ns"] == pytest.approx(0.5 * row["decode_gemm_ns"], rel=1e-5)
            assert other["prefill_attention_ns"] == row["prefill_attention_ns"]
        shown = corrected.sql("select sum(total_us) from kernel_breakdown").fetchall()[0][0]
        paid = corrected.sql("select sum(gpu_ns) / 1e3 from replica_totals").fetchall()[0][0]
        assert shown == pytest.approx(paid, rel=1e-6)


def test_a_decode_engine_counts_the_steps_that_a_request_was_in(session: Session) -> None:
    """Steps during its KV transfer are others': each token but the first is one step, and the rest of the time host."""
    load = {"request_rate": 12.0, "num_prompts": 60, "prefill_replicas": 1, "decode_replicas": 2}
    run = session.simulate(**PLAN, range_ratio=0.3, **load)
    run.session.compute("request_parts", "request_events")
    rows = run.sql(
        "select steps, output_tokens, kv_received_ns - first_token_ns as transfer_ns, host_ns from request_parts "
        "join request_events using (scenario_id, request_id) where phase = 'decode' and preemptions = 0"
    ).fetchall()
    assert len(rows) == 60
    assert all(steps == output - 1 and host >= transfer > 0 for steps, output, transfer, host in rows)
