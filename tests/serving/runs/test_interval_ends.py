"""Intervals of a scenario: ends that bracket the middle, directions by what steps are made of, and what is left out."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.serving.runs import interval_ends as ends

LOAD = {"request_rate": 4.0, "num_prompts": 60, "input_len": 200, "output_len": 20}
FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", **LOAD}


def at_ends(session, **flags):
    run = session.simulate(**(FLAGS | flags))
    rows = {row["end"]: row for row in run.table("request_statistics_at_ends").to_pylist()}
    return run, rows


def test_the_ends_are_on_both_sides_and_the_middle_is_what_is_predicted(session):
    run, rows = at_ends(session)
    assert set(rows) == {"fast", "middle", "slow"}
    for metric in ("ttft_mean_ms", "tpot_mean_ms", "e2e_p99_ms"):
        assert rows["fast"][metric] < rows["middle"][metric] < rows["slow"][metric]
        assert rows["middle"][metric] == run.table("scenario_summary")[metric][0].as_py()
    intervals = {row["metric"]: row for row in run.table("scenario_intervals").to_pylist()}
    assert len(intervals) == 14
    assert all(row["low"] <= row["predicted"] <= row["high"] for row in intervals.values())
    assert run.summary["interval_90"]["tpot_mean_ms"] == [
        intervals["tpot_mean_ms"]["low"],
        intervals["tpot_mean_ms"]["high"],
    ]


def test_a_bound_of_the_hardware_has_no_ends(session):
    _, rows = at_ends(session, tier="roofline")
    assert rows["fast"]["e2e_mean_ms"] == rows["slow"]["e2e_mean_ms"]


def test_many_requests_are_not_served_again(session, monkeypatch):
    monkeypatch.setattr(ends, "MOST_REQUESTS", 10)
    run, rows = at_ends(session)
    assert {row["requests"] for row in rows.values()} == {10}
    interval = {row["metric"]: row for row in run.table("scenario_intervals").to_pylist()}["tpot_mean_ms"]
    assert interval["predicted"] == run.table("scenario_summary")["tpot_mean_ms"][0].as_py()


def test_first_requests_of_several_loads_are_those_of_each_alone(session, monkeypatch):
    monkeypatch.setattr(ends, "MOST_REQUESTS", 10)
    rows = [FLAGS | {"request_rate": rate, "num_prompts": count} for rate, count in ((4.0, 60), (2.0, 8), (1.0, 40))]
    alone = [at_ends(session, **row)[1]["middle"] for row in rows]
    at_once = session.what_if(rows).table("request_statistics_at_ends").to_pylist()
    found = {row["scenario_id"]: row for row in at_once if row["end"] == "middle"}
    assert [row["requests"] for row in alone] == [10, 8, 10]
    for row, expected in zip(found.values(), alone, strict=True):
        assert row | {"scenario_id": ""} == expected | {"scenario_id": ""}


def test_intervals_wait_until_they_are_asked_for_and_the_scenario_is_served_once(session):
    run, ran = session.simulate(**FLAGS), []
    run.session.progress = lambda name, _: ran.append(name)
    run.table("scenario_summary")
    served = {name for node in ran for name in node.split(", ")}
    assert "request_statistics" in served and not {"request_statistics_at_ends", "resource_gains"} & served
    ran.clear()
    assert run.summary["interval_90"] and run.summary["verdict"]
    assert run.table("request_metrics").num_rows == FLAGS["num_prompts"]
    assert {"request_statistics_at_ends, resource_gains", "resource_gains, request_statistics_at_ends"} & {*ran}
    assert not any(name in served for node in ran for name in node.split(", "))


@pytest.mark.parametrize(
    ("gpu_ns", "host_ns", "direction"), [(100, 0, 0), (0, 100, 6), (1000, 1000, 3), (3000, 1000, 1)]
)
def test_the_direction_goes_by_what_moves_the_time(gpu_ns, host_ns, direction):
    knots = {"part": ["decode_attention"] * 4, "x": [1.0, 2.0, 4.0, 8.0], "y": [0.0] * 4}
    # no load with two requests reaches the last knot, whose width is another
    costs = {"d": pa.table({**knots, "gpu_us": [10.0, 10.0, 10.0, 1.0], "gpu_p95_us": [15.0, 15.0, 15.0, 999.0]})}
    totals = pa.table({"scenario_id": ["s"], "deployment_id": ["d"], "gpu_ns": [gpu_ns], "host_ns": [host_ns]})
    sd = math.log(1.5) / ends.Z_90
    world = type("World", (), {"hosts": {"d": {"step_log_sd": sd}}})()
    world.scenarios, world.spans = [{"scenario_id": "s", "max_concurrency": None}], {"s": (0, 2)}
    world.columns = {name: np.array([3, 4]) for name in ("prompt_tokens", "output_tokens")}
    assert ends._directions(world, costs, totals) == {"s": direction}


def test_host_time_of_no_known_spread_does_not_move():
    overhead = {"step_log_sd": 0.0, "step_base_us": 7.0, "engine": "vllm"}
    assert ends._host(overhead, 1.0) == overhead
    moved = ends._host(overhead | {"step_log_sd": 1.0}, -0.5)
    assert moved["step_base_us"] == pytest.approx(7.0 * math.exp(-0.5 * ends.Z_90))


def test_both_pools_of_a_disaggregated_scenario_move(session):
    flags = {"prefill_tensor_parallel_size": 1, "prefill_replicas": 1}
    _, rows = at_ends(session, **flags)
    assert rows["fast"]["ttft_mean_ms"] < rows["slow"]["ttft_mean_ms"]


def test_evidence_adds_up_to_the_time_of_the_kernels(session):
    run, _ = at_ends(session)
    told = run.table("knot_evidence")
    knots = run.sql(
        "select sum(latency_us * count) from kernel_latencies "
        "join step_shapes using (deployment_id, step_shape_id) where part <> 'whole'"
    ).fetchall()[0][0]
    assert pc.sum(told["gpu_us"]).as_py() == pytest.approx(knots, rel=1e-6)
    assert "analytic terms" in next(row["evidence"] for row in told.to_pylist() if row["family"] == "norm")
