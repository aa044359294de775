"""What limits a scenario: loads made so that one resource is short, and what relief must not change."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from kernelsight.kernels.knot_costs import RELIEF
from kernelsight.serving.runs import resource_gains

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 120, "input_len": 256, "output_len": 64}


def gains(session, column="throughput_gain", **flags):
    run = session.simulate(**(FLAGS | flags))
    return run, {row["resource"]: row[column] for row in run.table("resource_gains").to_pylist()}


def test_a_load_that_the_engine_keeps_up_with_is_limited_by_its_arrivals(session):
    run, found = gains(session, request_rate=1.0)
    assert max(found, key=found.get) == "arrivals"
    assert found["arrivals"] == pytest.approx(RELIEF - 1.0, abs=0.02)
    assert run.summary["limit"] == "arrivals"
    assert set(run.table("bottlenecks")["limit"].to_pylist()) == {"arrivals"}


@pytest.mark.parametrize(
    ("short", "resource"),
    [({"max_num_seqs": 5}, "seats"), ({"kv_cache_tokens": 1700}, "KV cache")],
)
def test_a_batch_that_is_kept_small_is_limited_by_what_keeps_it_small(session, short, resource):
    run, found = gains(session, max_concurrency=64, **short)
    assert max(found, key=found.get) == resource
    assert "arrivals" not in found
    limits = run.table("bottlenecks")["limit"].to_pylist()
    assert limits.count(resource) > len(limits) / 2
    assert run.summary["verdict"].startswith(f"limited by {resource}: 20% more give ")


@pytest.mark.parametrize(
    ("load", "unused"),
    [
        ({"request_rate": 20.0}, {"seats", "KV cache"}),
        ({"request_rate": 20.0, "num_turns": 3, "engine": "sglang", "kv_cache_tokens": 9000}, {"seats"}),
        ({"request_rate": 5.0, "max_num_seqs": 100, "kv_cache_tokens": 7000}, {"KV cache"}),
        ({"max_concurrency": 60, "max_num_seqs": 60, "kv_cache_tokens": 9000}, set()),
    ],
)
@pytest.mark.whole
def test_more_of_what_no_request_ran_out_of_gains_nothing_when_it_is_served(session, load, unused):
    read = []
    never_reached = resource_gains.never_reached

    def noted(first):
        read.append({resource for resource, names in never_reached(first).items() if names})
        return never_reached(first)

    with patch.object(resource_gains, "never_reached", noted):
        _, found = gains(session, "e2e_gain", **load)
    with patch.object(resource_gains, "never_reached", return_value={}) as nothing:
        assert gains(session, "e2e_gain", **load)[1] == found
    assert read == [unused] and nothing.called


def test_long_prompts_are_limited_by_arithmetic_and_short_ones_by_memory(session):
    _, prompts = gains(session, max_concurrency=8, input_len=4000, output_len=2, num_prompts=40)
    _, answers = gains(session, max_concurrency=1, input_len=16, output_len=200, num_prompts=4)
    assert max(prompts, key=prompts.get) == "prefill compute"
    assert max(answers, key=answers.get) == "decode bandwidth"
    # memory that takes all of the time would give a fifth more
    assert 0.05 < answers["decode bandwidth"] < RELIEF - 1.0


def test_one_gpu_has_no_links_and_a_plenty_of_a_resource_gains_nothing(session):
    _, found = gains(session, max_concurrency=2)
    assert "link" not in found
    assert found["seats"] == found["KV cache"] == 0.0


def test_the_parts_of_step_costs_lie_within_them(session):
    run, _ = gains(session, request_rate=1.0)
    shares = run.table("step_cost_shares").to_pylist()
    for row, share in zip(run.table("step_costs").to_pylist(), shares, strict=True):
        assert row["step_shape_id"] == share["step_shape_id"]
        assert 0.0 < share["compute_us"] + share["memory_us"] + share["link_us"] <= row["gpu_us"] + 1e-6
        assert row["gpu_p05_us"] <= row["gpu_us"] <= row["gpu_p95_us"]
