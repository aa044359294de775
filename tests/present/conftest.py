"""Small runs of every kind: one replica and two, pipeline stages, draft models, prefill and decode replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsight.session import connect

LOAD = {"request_rate": 20, "num_prompts": 24, "input_len": 300, "output_len": 16, "range_ratio": 0.5}
SMALL = {"model": "qwen3-0.6b", "gpu": "l4", **LOAD}
DRAFTS = {"num_speculative_tokens": 3, "draft_acceptance_rate": 0.7}
KINDS = {
    "one replica": {},
    "two replicas": {"data_parallel_size": 2},
    "pipeline stages": {"pipeline_parallel_size": 2},
    "draft model": {"model": "qwen3-8b", "speculative_model": "qwen3-0.6b", **DRAFTS},
    "prefill and decode replicas": {"prefill_replicas": 1, "decode_replicas": 2},
    "windows of attention": {"model": "gpt-oss-20b", "gpu": "h100_sxm"},
    "latent attention": {"model": "deepseek-v3", "gpu": "h200_sxm", "tensor_parallel_size": 8},
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run of two replicas, without its steps."""
    path = tmp_path_factory.mktemp("runs") / "run.duckdb"
    with connect() as opened:
        opened.simulate(**SMALL, data_parallel_size=2).save(path)
    return path


@pytest.fixture(scope="session")
def saved_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved sweep of two loads and two engine limits."""
    path = tmp_path_factory.mktemp("runs") / "sweep.duckdb"
    with connect() as opened:
        opened.what_if({**SMALL, "input_len": [200, 400], "max_num_seqs": [4, 16]}).save(path)
    return path
