"""Reader of throughput tables in TensorRT-LLM's documentation: trtllm-bench, all requests at once, fixed lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

CAMPAIGN = "trtllm_tables"
COLUMNS = frozenset(
    ("page", "format", "seats_all_stages", "max_num_tokens", "attention_data_parallel", "output_tokens_per_s")
)
VERSIONS = {"perf-overview of 0.17": "0.17.0", "perf-overview of 1.0": "1.0.0"}
# NVIDIA's checkpoints of these formats; the others are the model's own
QUANTIZATIONS = {"fp8": "fp8_static", "nvfp4": "nvfp4", "fp16": "none", "fp8_block": "fp8_block"}
# formats of the published checkpoint itself
OWN_FORMATS = ("mxfp4",)
# models with latent attention: layers, heads, hidden size. The file's seats and tokens of these count the latent cache;
# trtllm-bench did so from pull request 16707 (July 2026) on, after the pages
LATENT = {"deepseek-r1": (61, 128, 7168)}
# GiB of weights by format, as trtllm-bench counted them: elements of the checkpoint (two of NVFP4 count as one, pull
# request 13498) times 1 or 0.5 bytes; and of the GPUs
WEIGHTS_GIB = {"fp8_block": 637.5, "nvfp4": 183.7}
DEVICE_GIB = {"h200_sxm": 141.0, "gb200": 186.0}
# options of the later page for DeepSeek-R1 (docs/source/developer-guide/perf-overview.md, commit 03e27c7d)
BALANCED = {"attention_dp_balance": True, "attention_dp_timeout_iters": 60, "attention_dp_batching_wait_iters": 0}


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return rows of ``measured_runs``, and (reason, number of rows) of those excluded."""
    rows = pl.read_csv(path, infer_schema_length=None, glob=False).to_dicts()
    return [_run(row, number) for number, row in enumerate(rows)], []


def _run(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    ranks = row["attention_data_parallel"]
    seats, tokens = row["seats_all_stages"], row["max_num_tokens"]
    if row["model"] in LATENT:
        seats, tokens = latent_limits(row)
    flags = {
        "max_num_seqs": seats,
        "max_num_batched_tokens": tokens,
        "max_cudagraph_capture_size": seats,
        "enable_chunked_prefill": row["chunked_prefill"],
        "kv_cache_dtype": row["kv_cache_dtype"],
        "gpu_memory_utilization": 0.95,
        "capacity_policy": "guaranteed_no_evict",
    }
    if row["model"] in LATENT and ranks > 1:
        flags |= BALANCED
    if row["format"] not in OWN_FORMATS:
        flags["quantization"] = QUANTIZATIONS[row["format"]]
    if row["format"] == "fp16":
        flags["dtype"] = "fp16"
    return {
        "run_id": f"{CAMPAIGN}/{number}",
        "campaign": CAMPAIGN,
        "model": row["model"],
        "gpu": row["gpu"],
        "tp": row["tensor_parallel"],
        "pp": row["pipeline_parallel"],
        "dp": ranks,
        "ep": row["tensor_parallel"] * ranks if row["expert_parallel"] else 1,
        "engine": "trtllm",
        "engine_version": VERSIONS.get(row["page"]),
        "quantization": row["format"],
        "isl": row["input_tokens"],
        "osl": row["output_tokens"],
        "num_prompts": row["prompts"],
        "max_concurrency": row["prompts"],
        "workers": 1,
        "stated_flags": json.dumps(flags),
        "output_throughput": float(row["output_tokens_per_s"]),
        "source": f"TensorRT-LLM documentation, {row['page']}",
    }


def latent_limits(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return (seats, tokens of a step) that trtllm-bench gives each rank of a model with latent attention.

    As it counts them (tensorrt_llm/bench/build/tuning.py, commit 04cba882): the requests whose caches fit in 0.95 of
    what the weights leave of all GPUs, as if each head of hidden size / heads elements had keys and values; both are
    rounded up, and a step holds a whole prompt beside the decodes.

    >>> latent_limits({"model": "deepseek-r1", "gpu": "h200_sxm", "tensor_parallel": 1, "attention_data_parallel": 8,
    ...                "format": "fp8_block", "kv_cache_dtype": "fp8", "input_tokens": 1000, "output_tokens": 1000})
    (384, 2048)
    """
    layers, heads, hidden = LATENT[row["model"]]
    gpus = row["tensor_parallel"] * row["attention_data_parallel"]
    prompt, output = row["input_tokens"], row["output_tokens"]
    element_bytes = 1 if row["kv_cache_dtype"] == "fp8" else 2
    free_bytes = 0.95 * (gpus * DEVICE_GIB[row["gpu"]] - WEIGHTS_GIB[row["format"]]) * 1024**3
    token_bytes = 2 * layers * heads * (hidden // heads) * element_bytes
    requests = min(free_bytes / (token_bytes * (prompt + output)), 4096.0)
    seats = max(64, _rounded_up(requests, (256, 32), (1024, 128), (math.inf, 256)))
    tokens = min(requests * (1 + prompt / output), 32768.0)
    tokens = max(2048, _rounded_up(tokens, (4096, 256), (8192, 512), (math.inf, 1024)))
    return seats, max(tokens, prompt + seats)


def _rounded_up(number: float, *steps: tuple[float, int]) -> int:
    """Return the number, rounded up to a multiple that goes with the first bound above it."""
    multiple = next(multiple for bound, multiple in steps if number < bound)
    return multiple * math.ceil(number / multiple)
