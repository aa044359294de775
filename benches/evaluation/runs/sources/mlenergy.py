"""Reader of ML.ENERGY benchmark runs: closed loops in vLLM with max_num_seqs users.

Serve flags and client: ml-energy/benchmark (``configs/vllm/<task>/<model>/<GPU>/monolithic.config.yaml``,
``mlenergy/llm/benchmark.py``). Throughput, power and energy are over the saturated time: from the first moment at which
every user has a token to the last at which all users run. Percentiles of ITL are over all gaps of the run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from kernelsight.catalog.tables import facts

CAMPAIGN = "mlenergy"
COLUMNS = frozenset(
    ("task", "weight_precision", "max_num_seqs", "mean_running", "itl_p50_ms", "joules_per_output_token")
)
GPUS = {"H100": "h100_sxm", "B200": "b200_sxm"}
# prompt tokens by task, estimated: no row and no public file states them. gpqa: questions and choices; the others were
# chosen on H100 (chat of dense models, completion by Qwen3-Coder-30B) and checked on B200
PROMPT_TOKENS = {"gpqa": 300, "lm-arena-chat": 600, "sourcegraph-fim": 2000}
# 90 % intervals of these means, estimated: about half as much more or less for questions with their choices, a factor
# of three for numbers that were chosen on rows (prompts of a conversation include earlier turns)
PROMPT_RANGES = {"gpqa": (200, 450), "lm-arena-chat": (200, 1800), "sourcegraph-fim": (700, 6000)}
# distinct requests by task; further ones repeat them in order (num_requests of configs/vllm/<task>/benchmark.yaml and
# num_request_repeats of sweeps.yaml; load_requests of mlenergy/llm/workloads.py), with prefix-cache hits in vLLM
DISTINCT_PROMPTS = {"gpqa": 198, "lm-arena-chat": 1024, "sourcegraph-fim": 1024}
# --max-output-tokens of the client (configs/vllm/<task>/benchmark.yaml): a fifth of the code completions end there, so
# requests that began together end together
OUTPUT_LIMITS = {"gpqa": 32768, "lm-arena-chat": 4096, "sourcegraph-fim": 1024}
# flags of every serve configuration that was read; the client sets temperature 0.8 and top_p 0.95 (benchmark.py)
SERVED = {"async_scheduling": True, "max_num_batched_tokens": 8192, "sampling": "top_p"}
# newest release at the time of these configurations' pinned options
ENGINE_VERSION = "0.11.1"
ENCODED = "images or video: no encoder is modelled"
SLOWER = "more than 1.5 times the ITL of the same deployment with as many users or more: another job on the machine"
OUTRUN = "more than 1.5 times the ITL of the same task on GPUs with less bandwidth in all: another job on the machine"
BUNDLED = "nine in ten gaps shorter than the mean that its throughput states: tokens came in bundles"
FALLING = "less than 0.9 of the throughput of the same deployment with fewer users: another job on the machine"
SICK_ITL, SICK_THROUGHPUT, BUNDLED_SHARE = 1.5, 0.9, 0.75
# contexts of tasks that differ by less than this factor count as equally long
SIMILAR_CONTEXT = 1.5
DEPLOYMENT = ("gpu", "gpus", "expert_parallel", "data_parallel")


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return rows of ``measured_runs``, and (reason, number of rows) of those excluded."""
    rows = pl.read_csv(path, infer_schema_length=None, glob=False).to_dicts()
    text_rows = [row for row in rows if row["task"] in PROMPT_TOKENS]
    excluded = [(ENCODED, len(rows) - len(text_rows))]
    reasons = exclusion_reasons(text_rows)
    excluded += [(reason, reasons.count(reason)) for reason in (BUNDLED, SLOWER, OUTRUN, FALLING)]
    runs = [_run(row) for row, reason in zip(text_rows, reasons, strict=True) if reason is None]
    return runs, [(reason, count) for reason, count in excluded if count]


def exclusion_reasons(rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the reason to exclude each row as implausible, or None; judged by rows of the same model alone.

    A decode step with at least as many requests and as long contexts does not take less time, neither in the same
    deployment nor on GPUs with less total bandwidth; if two rows of a task contradict the latter, all of that task's
    deployment are excluded. Throughput does not fall with more users.
    """
    by_family: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_family.setdefault(_family(row), []).append(row)
    reasons = [_exclusion_reason(row, by_family[_family(row)]) for row in rows]
    series = [(row["task"], _deployment(row)) for row in rows]
    outrun = Counter(key for key, reason in zip(series, reasons, strict=True) if reason == OUTRUN)
    return [reason or (OUTRUN if outrun[key] > 1 else None) for key, reason in zip(series, reasons, strict=True)]


def _exclusion_reason(row: Mapping[str, Any], family: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the reason to exclude a row by itself, compared with rows of its model; None: plausible."""
    if _is_bundled(row):
        return BUNDLED
    users, task = row["max_num_seqs"], row["task"]
    same_deployment = [other for other in family if _deployment(other) == _deployment(row)]
    busier = [other for other in family if other["max_num_seqs"] >= users and not _is_bundled(other)]
    heavier = [
        other["itl_p50_ms"]
        for other in busier
        if other in same_deployment and _context(other) * SIMILAR_CONTEXT >= _context(row)
    ]
    slower = [other["itl_p50_ms"] for other in busier if other["task"] == task and _bandwidth(other) < _bandwidth(row)]
    lighter = [
        other["output_tokens_per_s"]
        for other in same_deployment
        if other["task"] == task and other["max_num_seqs"] < users
    ]
    if min(heavier) * SICK_ITL < row["itl_p50_ms"]:
        return SLOWER
    if min(slower, default=row["itl_p50_ms"]) * SICK_ITL < row["itl_p50_ms"]:
        return OUTRUN
    if max(lighter, default=0.0) * SICK_THROUGHPUT > row["output_tokens_per_s"]:
        return FALLING
    return None


def _is_bundled(row: Mapping[str, Any]) -> bool:
    """Whether a row's gaps are not steps: tokens that arrive in one chunk count as gaps of 0, except the first."""
    gap_ms = 1e3 * row["mean_running"] / row["output_tokens_per_s"]
    return row["itl_p90_ms"] < gap_ms and row["itl_p50_ms"] < BUNDLED_SHARE * gap_ms


def _context(row: Mapping[str, Any]) -> float:
    """Return the mean context of a decoding request, tokens: prompt and half of the output."""
    return PROMPT_TOKENS[row["task"]] + row["output_tokens_mean"] / 2.0


def _bandwidth(row: Mapping[str, Any]) -> float:
    """Return the total memory bandwidth of a row's GPUs, bytes/s."""
    return row["gpus"] * _bandwidths()[GPUS[row["gpu"]]]


@cache
def _bandwidths() -> dict[str, float]:
    """Return the memory bandwidth by GPU, bytes/s."""
    columns = (facts("gpus")[name].to_pylist() for name in ("gpu", "memory_bandwidth_bytes_per_s"))
    return dict(zip(*columns, strict=True))


def _family(row: Mapping[str, Any]) -> str:
    """Return the base model of a row."""
    # instruction-tuned and reasoning checkpoints have one shape
    return row["model"].replace("-Instruct", "").replace("-Thinking", "")


def _deployment(row: Mapping[str, Any]) -> tuple:
    return _family(row), *(row[name] for name in DEPLOYMENT)


def _run(row: Mapping[str, Any]) -> dict[str, Any]:
    ranks = row["data_parallel"]
    experts = row["expert_parallel"]
    flags = {**SERVED, "max_num_seqs": -(-row["max_num_seqs"] // ranks)}
    if row["output_tokens_sd"]:
        variation = row["output_tokens_sd"] / row["output_tokens_mean"]
        flags |= {"length_distribution": "lognormal", "output_len_cv": variation}
        flags["output_len_limit"] = OUTPUT_LIMITS[row["task"]]
    if row["requests"] > (distinct_prompts := DISTINCT_PROMPTS[row["task"]]):
        flags["distinct_prompts"] = distinct_prompts
    stated_flags = dict(_STATED.get((row["task"], row["model"], row["gpu"]), {}))
    return {
        "run_id": f"{CAMPAIGN}/{row['task']}/{row['model']}/{row['gpu']}/{row['gpus']}/{experts}/{row['max_num_seqs']}",
        "campaign": CAMPAIGN,
        "task": row["task"],
        "model": row["model"],
        "gpu": GPUS[row["gpu"]],
        "tp": row["gpus"] // ranks,
        "pp": 1,
        "dp": ranks,
        "ep": experts,
        "engine": "vllm",
        "engine_version": ENGINE_VERSION,
        "quantization": {"bfloat16": "bf16"}.get(row["weight_precision"], row["weight_precision"]),
        "isl": PROMPT_TOKENS[row["task"]],
        **dict(zip(("isl_low", "isl_high"), PROMPT_RANGES[row["task"]], strict=True)),
        "osl": round(row["output_tokens_mean"]),
        "num_prompts": row["requests"],
        "max_concurrency": row["max_num_seqs"],
        "workers": 1,
        "stated_flags": json.dumps(flags | stated_flags),
        **{f"itl_p{share}_ms": row[f"itl_p{share}_ms"] for share in (50, 90, 95, 99)},
        "output_throughput": row["output_tokens_per_s"],
        "while_full": True,
        "mean_power_w": row["power_w"],
        "energy_per_output_token_j": row["joules_per_output_token"],
        "source": "ml-energy/leaderboard public/data/models",
    }


# further flags of single configurations, by task, model and GPU
_STATED: dict[tuple[str, str, str], Mapping[str, Any]] = {
    ("gpqa", "Qwen/Qwen3-8B", "H100"): {"api_server_count": 3},
    ("lm-arena-chat", "Qwen/Qwen3-32B", "B200"): {"api_server_count": 8},
    ("sourcegraph-fim", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "B200"): {"api_server_count": 3},
    ("sourcegraph-fim", "Qwen/Qwen3-Coder-480B-A35B-Instruct", "B200"): {"api_server_count": 8},
    # monolithic.env.yaml: VLLM_USE_FLASHINFER_MOE_FP8=1
    ("gpqa", "deepseek-ai/DeepSeek-R1-0528", "B200"): {"moe_backend": "trtllm_gen_moe"},
}
