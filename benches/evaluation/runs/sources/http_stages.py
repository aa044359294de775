"""Reader of inference-perf runs over HTTP with a shared-prefix data set: stages of Poisson arrivals, one row a run.

The client cycles through 100 prompts of 10 groups. From the second pass on every full block of a prompt is cached, in
the first pass those of its group's shared prompt. The gaps of a stage are scaled so that it lasts as long as stated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import check_file
from kernelsight.files.budget import ROWS
from kernelsight.laboratory.runs.sources.trace_files import trace_file

COLUMNS = frozenset(("run", "workload", "e2e_mean", "e2e_p99", "ttft_mean", "itl_mean", "max_num_batched_tokens"))
STAGES = frozenset(("workload", "shared_prompt_tokens", "question_tokens", "answer_tokens", "stage", "seconds"))
PROMPTS, GROUPS, BLOCK = 100, 10, 16
GPUS = {"H100": "h100_sxm", "A100-80GB": "a100_sxm", "L40S": "l40s"}
SEED = 0
# the client states no temperature: vLLM uses the checkpoint's generation_config.json, which has a top_p for these
# families of models; without one it samples from all tokens
FILTERED = ("meta-llama/", "Qwen/")


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return rows of ``measured_runs``, and (reason, number of rows) of those excluded.

    InvalidInput: the file of workloads beside it (``<name>_workloads.csv``) is missing.
    """
    workloads_file = path.with_name(f"{path.stem}_workloads.csv")

    def refuse(problem: str) -> InvalidInput:
        place = f"put the file {workloads_file.name} that describes them into {path.parent}"
        return InvalidInput(f"{path} names workloads, and {workloads_file.name} {problem}; {place}.")

    check_file(workloads_file, refuse, ROWS)
    workloads: dict[str, list[dict[str, Any]]] = {}
    for stage in pl.read_csv(workloads_file, glob=False).sort("workload", "stage").to_dicts():
        workloads.setdefault(stage["workload"], []).append(stage)
    rows = pl.read_csv(path, infer_schema_length=None, glob=False).to_dicts()
    traces = {name: trace_file(name, requests_of(stages)) for name, stages in workloads.items()}
    return [_run(row, workloads[row["workload"]], traces[row["workload"]], path.stem) for row in rows], []


def requests_of(stages: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the requests that the client sends over the stages, as a trace with hash_ids of full blocks."""
    random = np.random.default_rng(SEED)
    arrivals, start = [], 0.0
    for stage in stages:
        gaps = random.exponential(size=round(stage["requests_per_s"] * stage["seconds"]))
        arrivals.append(start + np.cumsum(gaps) * stage["seconds"] / gaps.sum())
        start += stage["seconds"]
    first_stage = stages[0]
    prompt = first_stage["shared_prompt_tokens"] + first_stage["question_tokens"]
    shared_blocks, blocks = first_stage["shared_prompt_tokens"] // BLOCK, -(-prompt // BLOCK)
    hashes = [
        [1000 * (number % GROUPS) + block for block in range(shared_blocks)]
        + [1000 * (GROUPS + number) + block for block in range(shared_blocks, blocks)]
        for number in range(PROMPTS)
    ]
    arrival_s = np.concatenate(arrivals)
    return pa.table(
        {
            "arrival_s": arrival_s,
            "prompt_tokens": np.full(arrival_s.size, prompt),
            "output_tokens": np.full(arrival_s.size, first_stage["answer_tokens"]),
            "hash_ids": [hashes[number % PROMPTS] for number in range(arrival_s.size)],
            "hash_block_tokens": np.full(arrival_s.size, BLOCK),
        }
    )


def _run(row: Mapping[str, Any], stages: Sequence[Mapping[str, Any]], trace: str, campaign: str) -> dict[str, Any]:
    flags = {
        "trace": trace,
        "max_num_seqs": row["max_num_seqs"],
        "max_num_batched_tokens": row["max_num_batched_tokens"],
        "max_model_len": row["max_model_len"],
        "gpu_memory_utilization": row["gpu_memory_utilization"],
        "enable_prefix_caching": True,
        "sampling": "top_p" if row["model"].startswith(FILTERED) else "random",
    }
    seconds = sum(stage["seconds"] for stage in stages)
    return {
        "run_id": f"{campaign}/{row['run']}",
        "campaign": campaign,
        "task": row["workload"],
        "model": row["model"],
        "gpu": GPUS[row["gpu"]],
        "tp": row["tensor_parallel"],
        "pp": 1,
        "dp": 1,
        "ep": 1,
        "engine": row["engine"],
        "engine_version": row["engine_version"],
        "quantization": row["weight_precision"],
        "workers": 1,
        "request_rate": sum(stage["requests_per_s"] * stage["seconds"] for stage in stages) / seconds,
        "stated_flags": json.dumps(flags),
        "ttft_ms": row["ttft_mean"],
        "ttft_p90_ms": row["ttft_p90"],
        "ttft_p99_ms": row["ttft_p99"],
        "itl_mean_ms": row["itl_mean"],
        "e2e_mean_ms": row["e2e_mean"],
        "e2e_p90_ms": row["e2e_p90"],
        "e2e_p99_ms": row["e2e_p99"],
        "source": "runs over HTTP with inference-perf",
    }
