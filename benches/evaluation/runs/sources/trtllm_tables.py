"""Reader of throughput tables in TensorRT-LLM's documentation: trtllm-bench, all requests at once, fixed lengths."""

from __future__ import annotations

import json
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


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return rows of ``measured_runs``, and (reason, number of rows) of those excluded."""
    rows = pl.read_csv(path, infer_schema_length=None, glob=False).to_dicts()
    return [_run(row, number) for number, row in enumerate(rows)], []


def _run(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    ranks = row["attention_data_parallel"]
    flags = {
        "max_num_seqs": row["seats_all_stages"],
        "max_num_batched_tokens": row["max_num_tokens"],
        "max_cudagraph_capture_size": row["seats_all_stages"],
        "enable_chunked_prefill": row["chunked_prefill"],
        "kv_cache_dtype": row["kv_cache_dtype"],
        "gpu_memory_utilization": 0.95,
        "capacity_policy": "guaranteed_no_evict",
    }
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
