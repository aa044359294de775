"""Throughput of closed loops while their seats are taken."""

from __future__ import annotations

import pytest

from kernelsight.evaluation.runs.simulate_runs import plan_runs, serve_runs
from kernelsight.session import connect

FLAGS = {
    **{"model": "qwen3-0.6b", "gpu": "l4", "tensor_parallel_size": 1, "engine": "vllm", "input_len": 64},
    **{"output_len": 40, "max_concurrency": 8},
}
UNEVEN = {"length_distribution": "lognormal", "output_len_cv": 1.5}


def test_throughput_of_a_loop_is_that_of_its_windows_in_which_all_decode() -> None:
    with connect() as session:
        session.progress = None
        runs = [FLAGS | {"num_prompts": 800}, FLAGS | UNEVEN | {"num_prompts": 16}, FLAGS | {"num_prompts": 4}]
        [rows] = serve_runs(session, plan_runs(session, runs), [[None] * 3])
    long, short, empty = (row["predicted"] for row in rows)
    users = 8e3 * long["output_throughput"] / long["request_throughput"] / long["e2e_mean_ms"]
    assert long["full_output_throughput"] == pytest.approx(users, rel=0.05)
    # the last requests of a run with few decode alone
    assert short["full_output_throughput"] > 1.2 * short["output_throughput"]
    assert "full_output_throughput" not in empty
