"""Step costs of a sweep: on fewer knots and without tables of kernels, and the same to the last bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.scenario.plan import give_plan
from kernelsight.serving.knots import Reach, part_knots, within_reach
from kernelsight.session import Session, connect
from kernelsight.sweeps.step_costs import put_step_costs, reaches
from kernelsight.sweeps.summarise import SharedLoads, draw_loads

from .conftest import LOAD

DEPLOYMENTS = [
    {"model": "llama-3.1-8b", "gpu": "h100_sxm"},
    {"model": "qwen3-30b-a3b", "gpu": "l40s", "tp": 2, "engine": "sglang"},
    {"model": "gpt-oss-20b", "gpu": "b200_sxm", "tier": "cross-generation", "pp": 2},
    {"model": "deepseek-v3.2", "gpu": "h200_sxm", "tp": 8, "ep": 8},
    {"model": "qwen3-next-80b-a3b", "gpu": "h100_sxm", "tp": 4, "tier": "roofline"},
    {"model": "deepseek-v3", "gpu": "h200_sxm", "tp": 8, "dp": 2, "enable_expert_parallel": True},
]


def served(session: Session, **load: object) -> tuple[pa.Table, SharedLoads]:
    give_plan(session, [{**row, **LOAD, **load} for row in DEPLOYMENTS])
    scenarios = session.table("scenarios")
    return scenarios, draw_loads(scenarios)


def test_costs_are_those_of_the_query_on_the_knots_that_are_left():
    with connect() as session:
        scenarios, loads = served(session, max_concurrency=5)
        with session.fork() as fork:
            put_step_costs(fork, scenarios, loads)
            lean = {name: fork.table(name) for name in ("step_shapes", "step_costs")}
        whole = {name: session.table(name) for name in ("step_shapes", "step_costs")}
    names = ("deployment_id", "part", "x", "y")
    costs = {tuple(row[name] for name in names): row for row in whole["step_costs"].to_pylist()}
    found = lean["step_costs"].to_pylist()
    assert 0 < len(found) < len(costs) / 2
    for row in found:
        other = costs[tuple(row[name] for name in names)]
        for name in ("gpu_us", "launches", "embedding_us", "transfer_us"):
            assert row[name] == other[name], name
    assert {row["transfer_us"] > 0.0 for row in found} == {True, False}
    there = {tuple(row[name] for name in names) for row in lean["step_shapes"].to_pylist()}
    assert {tuple(row[name] for name in names) for row in found} == there & set(costs)


def test_a_session_keeps_its_costs_while_loads_reach_no_further():
    with connect() as session:
        scenarios, loads = served(session, max_concurrency=5)
        put_step_costs(session, scenarios, loads)
        before = session.table("step_costs")
        put_step_costs(session, scenarios.slice(0, 2), loads)
        assert session.table("step_costs") is before
        further = scenarios.set_column(
            scenarios.column_names.index("max_concurrency"), "max_concurrency", pa.array([20] * scenarios.num_rows)
        )
        put_step_costs(session, further, loads)
        assert session.table("step_costs").num_rows > before.num_rows


def test_given_latencies_are_read_as_they_are():
    with connect() as session:
        scenarios, loads = served(session, max_concurrency=5)
        latencies = session.table("kernel_latencies")
        place = latencies.column_names.index("latency_us")
        twice = latencies.set_column(place, "latency_us", pa.array(2.0 * latencies["latency_us"].to_numpy()))
        key = [("deployment_id", "ascending"), ("step_shape_id", "ascending")]
        own = session.table("step_costs").sort_by(key)["gpu_us"].to_numpy()
        with session.fork() as fork:
            fork.give("kernel_latencies", twice)
            put_step_costs(fork, scenarios, loads)
            assert fork.table("step_costs").sort_by(key)["gpu_us"].to_numpy() == pytest.approx(2.0 * own, rel=1e-4)


def test_reach_counts_requests_and_tokens_of_each_deployment():
    scenarios = pa.table(
        {
            "scenario_id": ["a", "b", "c", "d"],
            "deployment_id": ["one", "one", "two", "three"],
            "prefill_deployment_id": pa.array([None, None, "four", None], pa.string()),
            "max_concurrency": pa.array([8, None, 2, 9], pa.int64()),
        }
    )
    requests = pa.table(
        {
            "prompt_tokens": [5, 50, 5, 10, 7, 7, 7, 7],
            "output_tokens": [1, 2, 90, 100, 1, 2, 3, 4],
        }
    )
    loads = SharedLoads(requests, {"a": (0, 3), "b": (3, 4), "c": (4, 8), "d": (8, 8)})
    assert reaches(scenarios, loads, []) == {"one": Reach(3, 110), "two": Reach(2, 11), "four": Reach(2, 11)}


@pytest.mark.parametrize("window", [0, 128])
def test_knots_are_cut_behind_the_first_that_lies_beyond(window: int):
    axes = part_knots(4096, 256, 32768, window)
    cut = within_reach(axes, Reach(40, 2000))
    assert set(cut) == set(axes)
    for part, (xs, ys) in axes.items():
        kept_x, kept_y = cut[part]
        assert np.array_equal(kept_x, xs[: kept_x.size]) and np.array_equal(kept_y, ys[: kept_y.size])
    for part, most in (("decode_attention", 40), ("prefill_attention", 2000)):
        for knots, reached in zip(cut[part], (most, 2000), strict=True):
            assert knots[-2] <= reached < knots[-1]
    assert all(np.array_equal(cut[part][0], axes[part][0]) for part in ("tokens", "logits"))
    if window:
        assert cut["decode_window"][1][-1] == window
