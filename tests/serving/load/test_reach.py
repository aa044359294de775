"""How far loads reach, which scenarios share a load, and which knots are reached."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.serving.costs.knots import (
    EVERYTHING,
    FEW_DEPLOYMENTS,
    _shapes_of,
    bounds_of_knots,
    part_knots,
    within_reach,
)
from kernelsight.serving.load.reach import reach_of
from kernelsight.serving.load.requests import loads_of, requests_of
from kernelsight.session import connect

SCENARIOS = pa.table(
    {
        "scenario_id": ["a", "b", "c", "d"],
        "deployment_id": ["one", "one", "two", "three"],
        "prefill_deployment_id": pa.array([None, None, "four", None], pa.string()),
        "max_concurrency": pa.array([8, None, 2, 9], pa.int64()),
        "input_len": [5, 50, 5, 5],
    }
)
LOADS = pa.table({"scenario_id": ["a", "b", "c", "d"], "load_id": ["a", "b", "c", "nothing"]})
REQUESTS = pa.table(
    {
        "load_id": ["a", "a", "a", "b", "c", "c", "c", "c"],
        "request_id": [0, 1, 2, 0, 0, 1, 2, 3],
        "prompt_tokens": [5, 50, 5, 10, 7, 7, 7, 7],
        "output_tokens": [1, 2, 90, 100, 1, 2, 3, 4],
    }
)


def test_reach_counts_requests_and_tokens_of_each_deployment():
    deployments = pa.table({"deployment_id": ["one", "two", "three", "four"], "draft_deployment_id": pa.nulls(4)})
    found = reach_of(SCENARIOS, LOADS, REQUESTS, deployments).to_pylist()
    assert found == [
        {"deployment_id": "one", "requests": 3, "tokens": 110},
        {"deployment_id": "two", "requests": 2, "tokens": 11},
        {"deployment_id": "four", "requests": 2, "tokens": 11},
    ]


def test_a_draft_model_reaches_as_far_as_its_target():
    deployments = pa.table({"deployment_id": ["one"], "draft_deployment_id": ["draft"]})
    found = reach_of(SCENARIOS.slice(0, 1), LOADS, REQUESTS, deployments).to_pylist()
    assert [(row["deployment_id"], row["requests"], row["tokens"]) for row in found] == [
        ("one", 3, 95),
        ("draft", 3, 95),
    ]


def test_scenarios_share_a_load_whatever_serves_it():
    found = loads_of(SCENARIOS)["load_id"].to_pylist()
    # b has no concurrency and longer prompts; c and d are a's load on other deployments
    assert found == ["a", "b", "a", "a"]


def test_requests_of_shared_loads_stand_in_every_scenario():
    loads = pa.table({"scenario_id": ["x", "y", "z"], "load_id": ["b", "a", "b"]})
    found = requests_of(loads, REQUESTS)
    assert found["scenario_id"].to_pylist() == ["x", "y", "y", "y", "z"]
    assert found["prompt_tokens"].to_pylist() == [10, 5, 50, 5, 10]
    assert found.column_names[0] == "scenario_id" and "load_id" not in found.column_names


def test_requests_that_are_given_are_the_loads():
    row = {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 2, "num_prompts": 4, "input_len": 8, "output_len": 2}
    with connect() as session:
        drawn = session.simulate(**row)
        requests = drawn.table("requests")
        longer = requests.set_column(
            requests.column_names.index("output_tokens"), "output_tokens", pa.array([5] * requests.num_rows)
        )
        drawn.session.give("requests", longer)
        assert drawn.session.table("request_metrics")["output_tokens"].to_pylist() == [5] * 4
        assert drawn.session.table("requests").to_pylist() == longer.to_pylist()


@pytest.mark.parametrize("window", [0, 128])
def test_knots_are_reached_up_to_the_first_that_lies_beyond(window: int):
    shapes = _shapes_of(part_knots(4096, 256, 32768, window))
    two = pa.concat_tables([shapes, shapes])
    owner = np.repeat([0, 1], shapes.num_rows)
    both = within_reach(two, np.array([40, 7])[owner], np.array([2000, 90])[owner], owner)
    reached = within_reach(shapes, 40, 2000)
    assert np.array_equal(both, np.append(reached, within_reach(shapes, 7, 90)))
    assert within_reach(shapes, EVERYTHING, EVERYTHING).all()
    cut = shapes.filter(pa.array(reached))
    for part, most in (("decode_attention", 40), ("prefill_attention", 2000)):
        for name, bound in (("x", most), ("y", 2000)):
            knots, kept = (np.unique(each.filter(pc.equal(each["part"], part))[name]) for each in (shapes, cut))
            assert np.array_equal(kept, knots[: kept.size]) and kept[-2] <= bound < kept[-1]
    others = {name: shapes.filter(pc.equal(shapes["part"], name)).num_rows for name in ("tokens", "logits")}
    assert others == {name: cut.filter(pc.equal(cut["part"], name)).num_rows for name in others}
    windowed = cut.filter(pc.equal(cut["part"], "decode_window"))["y"].to_pylist()
    assert max(windowed, default=window) == window


@pytest.mark.parametrize("count", [FEW_DEPLOYMENTS, FEW_DEPLOYMENTS + 1])
def test_few_deployments_have_knots_for_every_load_and_many_for_loads_like_theirs(count: int):
    names = pa.array([f"d{number}" for number in range(count)])
    tokens = pa.array([None, 4096, 4097, *[70] * (count - 3)], pa.int64())
    found = bounds_of_knots(pa.table({"deployment_id": names, "requests": [5] * count, "tokens": tokens})).to_pydict()
    if count == FEW_DEPLOYMENTS:
        assert found == {"deployment_id": names.to_pylist(), "requests": [None] * count, "tokens": [None] * count}
    else:
        assert found["requests"] == [16] * count
        assert found["tokens"] == [EVERYTHING, 4096, 16384, *[256] * (count - 3)]
