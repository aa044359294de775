"""Reader of SGLang's cookbook: closed loops of its serving benchmark, with the length of every request.

Lengths are uniform from 1 to a maximum, drawn with numpy's legacy generator and seed 1, prompts first, which reproduces
the published totals; some versions of the client ask for one token less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return rows of ``measured_runs``, and (reason, number of rows) of those excluded."""
    rows = pl.read_csv(path, infer_schema_length=None, glob=False).to_dicts()
    kept = [row for row in rows if row["users"] > 1 or row["ttft_mean_ms"] <= LARGEST_MEAN * row["ttft_p50_ms"]]
    excluded = [(COMPILING, len(rows) - len(kept))] if len(kept) < len(rows) else []
    return [_run(row, path.stem) for row in kept], excluded


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


def _run(row: Mapping[str, Any], campaign: str) -> dict[str, Any]:
    prompts, outputs = lengths_of(row)
    run = launched(f"python3 -m sglang.launch_server --model {row['model']} {row['flags']}")
    name = f"{row['model']}-{row['gpu']}-{row['input_len_max']}-{row['output_len_max']}-{row['users']}"
    requests = {"arrival_s": np.zeros(prompts.size), "prompt_tokens": prompts, "output_tokens": outputs}
    flags = {"trace": trace_file(name, pa.table(requests)), "max_concurrency": row["users"], "num_warmups": 1}
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
