"""The launch lines of every kind of deployment that sizing proposes are read back as the same deployment."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import kernelsight as ks
from kernelsight.scenario.plan import plan_rows
from kernelsight.session import Session
from kernelsight.sizing.size_tables import launch_lines

LOAD = {"input_len": 300, "output_len": 12, "request_rate": 1.0, "num_prompts": 9, "gpu": "h100_sxm"}
SPLITS = ({}, {"prefill_replicas": 1, "decode_replicas": 1}, {"prefill_replicas": 5, "decode_replicas": 2})
SIZES = ({}, {"max_num_batched_tokens": 4096}, {"max_cudagraph_capture_size": 1024}, {"kv_cache_dtype": "fp8"})
PARALLEL = ({"tensor_parallel_size": 2}, {"data_parallel_size": 2, "expert_parallel_size": 2})


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_launch_lines_are_read_back(session: Session, engine: str) -> None:
    models = {row["model"]: row for row in session.table("models").to_pylist()}
    for split, sizes, (model, parallel) in itertools.product(
        SPLITS, SIZES, [("qwen3-32b", PARALLEL[0]), *(("qwen3-30b-a3b", sizes) for sizes in PARALLEL)]
    ):
        if engine == "trtllm" and "data_parallel_size" in parallel:
            continue  # its attention is data parallel over the same GPUs
        flags: dict[str, Any] = LOAD | split | sizes | parallel | {"model": model, "engine": engine}
        plan = plan_rows(session, [flags])
        lines = launch_lines(plan.planned[0], plan.deployments, models, model, None)
        stated = ks.read_launch_line("\n".join(lines)).flags
        again = plan_rows(session, [LOAD | stated]).planned[0]
        names = ("deployment_id", "prefill_deployment_id", "prefill_replicas", "decode_replicas")
        assert [again.get(name) for name in names] == [plan.planned[0].get(name) for name in names], lines
