"""The capacity of a deployment: what a flood of requests reaches, what limits it, and what is said near it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelsight.serving.runs.full_batch import lengths_of
from kernelsight.serving.runs.requests_per_step import cohorts_of, counts_of, prompt_steps
from kernelsight.session import connect
from tests.asked import summaries

SMALL = {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 16, "input_len": 300, "output_len": 40, "range_ratio": 0.5}
FLOOD = {"request_rate": 2000.0, "num_prompts": 1200}
DEPLOYMENTS = {
    "prompts and decodes at once": {},
    "full steps": {"max_num_batched_tokens": 64, "input_len": 500, "output_len": 8},
    "prompts first": {"engine": "sglang"},
    "a small cache": {"kv_cache_tokens": 2400},
    "two pipeline stages": {"pipeline_parallel_size": 2},
    "two replicas": {"replicas": 2},
    "prefill apart": {"prefill_replicas": 1, "decode_replicas": 1},
    "one batch after another": {"scheduling": "static"},
    "whole prompts": {"engine": "trtllm", "max_num_batched_tokens": 310, "range_ratio": 1.0},
    "a whole prompt alone": {"engine": "trtllm", "max_num_batched_tokens": 300, "range_ratio": 1.0, "num_prompts": 60},
    "drafts": {"speculative_method": "ngram", "num_speculative_tokens": 2, "draft_acceptance_rate": 0.5},
}


@pytest.fixture(scope="module")
def flooded():
    with connect() as session:
        rows = summaries(session, [SMALL | FLOOD | flags for flags in DEPLOYMENTS.values()])
    return dict(zip(DEPLOYMENTS, rows, strict=True))


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_flood_of_requests_reaches_the_capacity(flooded, name: str):
    row = flooded[name]
    assert row["completed"] == DEPLOYMENTS[name].get("num_prompts", FLOOD["num_prompts"])
    assert row["request_throughput"] == pytest.approx(row["capacity"], rel=0.06)
    assert row["capacity_low"] < row["capacity"] < row["capacity_high"]
    assert row["load"] == pytest.approx(FLOOD["request_rate"] / row["capacity"])


def test_the_cache_limits_where_it_holds_fewer_requests_than_seats(flooded):
    limits = {name: row["capacity_limit"] for name, row in flooded.items()}
    assert limits["a small cache"] == "KV cache"
    assert limits["prompts and decodes at once"] == limits["full steps"] == "steps"


def test_a_slow_front_end_is_the_limit():
    with connect() as session:
        flags = SMALL | {"request_rate": 1.0, "num_prompts": 8, "range_ratio": 1.0}
        rows = session.simulate(**flags).session.table("host_overheads").to_pylist()
        session.give("host_overheads", [row | {"per_output_token_us": 5000.0} for row in rows])
        row = session.simulate(**flags).summary
    assert row["capacity_limit"] == "front end"
    # a first token is no step of the front end's pace
    assert row["capacity"] == pytest.approx(1e6 / 5000.0 / (SMALL["output_len"] - 1), rel=0.05)


def test_a_closed_loop_asks_what_it_completes():
    with connect() as session:
        load = {"max_concurrency": 2, "num_prompts": 20}
        row = session.simulate(**SMALL | load).summary
    assert row["load"] == pytest.approx(row["request_throughput"] / row["capacity"])
    assert 0.05 < row["load"] < 0.6


def test_near_the_capacity_it_is_said_and_intervals_are_wide(flooded):
    with connect() as session:
        rate = flooded["prompts and decodes at once"]["capacity"]
        rows = [SMALL | {"num_prompts": 2000, "request_rate": share * rate} for share in (0.5, 1.0)]
        runs = [session.simulate(**row) for row in rows]
        calm, near = (run.summary for run in runs)
    assert calm["near_capacity"] is None and near["near_capacity"].startswith("near its capacity: steps 5 % slower")
    widths = [np.divide(*row["interval_90"]["ttft_p99_ms"][::-1]) for row in (calm, near)]
    assert widths[1] > 2.0 * widths[0]
    ends = runs[1].table("request_statistics_at_ends").to_pylist()
    middle, slower = (next(row for row in ends if row["end"] == end) for end in ("middle", "slower steps"))
    assert slower["tpot_mean_ms"] > 1.04 * middle["tpot_mean_ms"]
    assert "slower steps" not in runs[0].table("request_statistics_at_ends")["end"].to_pylist()


def test_answers_of_one_length_that_began_together_end_together():
    """Prompts first: a queue keeps the groups that arrivals made while seats were free, and burstier ones are larger.

    Independent of each other, they would begin in more steps, each with its own cost.
    """
    flags = SMALL | {"engine": "sglang", "max_num_seqs": 64, "input_len": 128, "output_len": 64, "range_ratio": 1.0}
    with connect() as session:

        def row(**load):
            return session.what_if([flags | load]).table("scenario_summary").to_pylist()[0]

        capacity = row(request_rate=1.0, num_prompts=8)["capacity"]
        assert row(request_rate=1.0, num_prompts=8, burstiness=0.3)["capacity"] > 1.005 * capacity
        served = row(request_rate=0.98 * capacity, num_prompts=4000)
        beyond = row(request_rate=1.15 * capacity, num_prompts=4000)
    # a queue that stays short below the capacity, and grows above it
    assert served["queue_mean_ms"] < 0.3 * served["e2e_mean_ms"]
    assert beyond["queue_mean_ms"] > 0.5 * beyond["e2e_mean_ms"]


@pytest.mark.parametrize(
    "mean, first, again",
    [(0.5, 0.4, 0.1), (2.0, 0.6, 0.6), (30.0, 0.9, 0.8), (2.0, 0.9, 0.9), (3.0, 1.0, 1.0), (0.3, 0.35, 0.9)],
)
def test_cohorts_hold_the_requests_that_begin(mean: float, first: float, again: float):
    found = cohorts_of(mean, first, again)
    # no more steps have prompts than requests begin, each of them one at least
    assert sum(share for share, _ in found) == pytest.approx(min(first, mean))
    assert sum(share * count for share, count in found) == pytest.approx(mean, rel=0.03)


@pytest.mark.parametrize("mean, first, again", [(0.42, 0.3, 0.1), (0.4, 0.3, 0.2)])
def test_cohorts_are_those_of_one_step_after_another(mean: float, first: float, again: float):
    """Each step that follows adds those of one step: written out here, number by number."""
    found = cohorts_of(mean, first, again)
    # a number alone is whole, so that the tokens of a step are
    assert [count for _, count in found] == [float(number) for number in range(1, len(found) + 1)]
    low, high = 1e-6, 1e2
    for _ in range(60):
        rate = (low + high) / 2.0
        low, high = (rate, high) if rate / -math.expm1(-rate) < mean * (1.0 - again) / first else (low, rate)
    most = math.ceil(4.0 + 8.0 * mean / first)
    one = [0.0] + [rate**number * math.exp(-rate) / math.factorial(number) for number in range(1, most + 1)]
    one = [share / sum(one) for share in one]
    shares = [0.0] * (most + 1)
    for number in range(1, most + 1):
        earlier = sum(one[step] * shares[number - step] for step in range(1, number))
        shares[number] = (1.0 - again) * one[number] + again * earlier
    expected = [first * share / sum(shares) for share in shares[1:]]
    assert [share for share, _ in found] == pytest.approx(expected[: len(found)], rel=1e-6)


@pytest.mark.parametrize("begin, prompt, room", [(0.1, 500.0, 1000.0), (3.0, 200.0, 900.0), (0.2, 2600.0, 1000.0)])
def test_steps_hold_the_prompts_that_begin(begin: float, prompt: float, room: float):
    parts = prompt_steps(begin, prompt, room)
    assert sum(share for share, _ in parts) == pytest.approx(1.0)
    assert sum(share * tokens for share, tokens in parts) == pytest.approx(begin * prompt, rel=1e-3)
    assert max(tokens for _, tokens in parts) <= room


@pytest.mark.parametrize("mean", [0.02, 1.0, 60.0])
def test_counts_are_those_of_independent_events(mean: float):
    found = counts_of(mean)
    assert sum(share for share, _ in found) == pytest.approx(1.0)
    assert sum(share * count for share, count in found) == pytest.approx(mean, rel=2e-3)


def test_context_is_the_mean_over_steps_that_decode():
    found = lengths_of(np.array([100, 100]), np.array([1, 3]), cached=0.25)
    assert (found.prompt, found.cached, found.decodes, found.longest) == (75.0, 25.0, 1.0, 2)
    assert found.context == pytest.approx(101.5)
