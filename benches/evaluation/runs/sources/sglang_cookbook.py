"""Reader of SGLang's cookbook: closed loops of its serving benchmark, with the length of every request.

Lengths are uniform from 1 to a maximum, drawn with numpy's legacy generator and seed 1, prompts first, which reproduces
the published totals; some versions of the client ask for one token less. Prompts are conversations in an order of the
same seed, cut to these lengths (`sample_random_requests`, sglang/benchmark/datasets/random.py): each run begins with
those of the run with fewer users before it, which are cached, as `--flush-cache` is off by default. So is the first
prompt, which the client's warm-up request repeats. Whether runs of other lengths were cached is not modelled: a single
user's answers begin no earlier after them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.laboratory.runs.sources.launched import launched
from kernelsight.laboratory.runs.sources.trace_files import trace_file

COLUMNS = frozenset(("flags", "users", "input_len_max", "output_len_max", "total_output_tokens"))
SEED = 1
COMPILING = "mean TTFT of one user more than 5 times its median: kernels were compiled during the run"
LARGEST_MEAN = 5.0
# what runs on one server with the same prompts have in common, and the tokens of a hashed block
SAME_PROMPTS = ("model", "gpu", "flags", "input_len_max", "output_len_max")
BLOCK = 16


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return rows of ``measured_runs``, and (reason, number of rows) of those excluded."""
    rows = pl.read_csv(path, infer_schema_length=None, glob=False).to_dicts()
    kept = [row for row in rows if row["users"] > 1 or row["ttft_mean_ms"] <= LARGEST_MEAN * row["ttft_p50_ms"]]
    excluded = [(COMPILING, len(rows) - len(kept))] if len(kept) < len(rows) else []
    return [_run(row, max(_requests_before(row, rows), default=0), path.stem) for row in kept], excluded


def _requests_before(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of requests of runs with the same prompts and fewer users."""
    same = [other for other in rows if all(other[name] == row[name] for name in SAME_PROMPTS)]
    return [other["requests"] for other in same if other["users"] < row["users"]]


def lengths_of(row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the prompt and output tokens of each request of the cookbook's client.

    >>> row = {"requests": 10, "input_len_max": 1000, "output_len_max": 1000, "total_output_tokens": 4210}
    >>> [int(lengths.sum()) for lengths in lengths_of(row)]
    [6101, 4210]
    """
    draws = np.random.RandomState(SEED)
    prompts, outputs = (draws.randint(1, row[f"{kind}_len_max"] + 1, row["requests"]) for kind in ("input", "output"))
    fewer = round((outputs.sum() - row["total_output_tokens"]) / row["requests"])
    return prompts, np.maximum(outputs - fewer, 1)


def requests_of(prompts: np.ndarray, outputs: np.ndarray, cached: int) -> pa.Table:
    """Return a trace of requests at once, after warm-ups: the first ``cached`` prompts, or the first one alone."""
    warmups = np.arange(min(max(cached, 1), prompts.size))
    request = np.concatenate([warmups, np.arange(prompts.size)])
    is_warmup = np.arange(request.size) < warmups.size
    blocks = -(-prompts[request] // BLOCK)
    return pa.table(
        {
            "arrival_s": np.zeros(request.size),
            "prompt_tokens": prompts[request],
            "output_tokens": np.where(is_warmup, 1, outputs[request]),
            "hash_ids": [[int(number) << 16 | k for k in range(n)] for number, n in zip(request, blocks, strict=True)],
            "hash_block_tokens": np.full(request.size, BLOCK),
            "warmup": is_warmup.astype(np.int64),
        }
    )


def _run(row: Mapping[str, Any], cached: int, campaign: str) -> dict[str, Any]:
    prompts, outputs = lengths_of(row)
    run = launched(f"python3 -m sglang.launch_server --model {row['model']} {row['flags']}")
    name = f"{row['model']}-{row['gpu']}-{row['input_len_max']}-{row['output_len_max']}-{row['users']}"
    trace = trace_file(name, requests_of(prompts, outputs, cached))
    flags = {"trace": trace, "max_concurrency": row["users"], "enable_prefix_caching": True}
    return run | {
        "run_id": f"{campaign}/{name}",
        "campaign": campaign,
        "gpu": row["gpu"],
        "engine_version": row["engine_version"],
        "max_concurrency": row["users"],
        "num_prompts": row["requests"],
        "stated_flags": json.dumps(run["stated_flags"] | flags),
        "ttft_ms": row["ttft_mean_ms"],
        "tpot_ms": row["tpot_mean_ms"],
        "itl_mean_ms": row["itl_mean_ms"],
        "output_throughput": row["output_tokens_per_s"],
        "source": "SGLang's cookbook",
    }
