"""Reader of GPUStack's performance laboratory: all prompts at once over the chat endpoint, of one length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from kernelsight.laboratory.runs.sources.launched import launched

COLUMNS = frozenset(("document", "launch", "prompts", "total_tokens_per_s"))


def read(path: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return rows of ``measured_runs``, and (reason, number of rows) of those excluded."""
    rows = pl.read_csv(path, infer_schema_length=None, glob=False).to_dicts()
    return [_run(row, number, path.stem) for number, row in enumerate(rows)], []


def _run(row: Mapping[str, Any], number: int, campaign: str) -> dict[str, Any]:
    run = launched(row["launch"])
    outputs = row["output_tokens"] / (row["input_tokens"] + row["output_tokens"])
    return run | {
        "run_id": f"{campaign}/{number}",
        "campaign": campaign,
        "gpu": row["gpu"],
        "engine_version": row["engine_version"],
        "isl": row["input_tokens"],
        "osl": round(row["output_tokens"]),
        "max_concurrency": row["prompts"],
        "num_prompts": row["prompts"],
        "stated_flags": json.dumps(run["stated_flags"] | {"endpoint": "chat"}),
        "ttft_ms": row["ttft_mean_ms"],
        "tpot_ms": row["tpot_mean_ms"],
        "output_throughput": row["total_tokens_per_s"] * outputs,
        "source": f"GPUStack's performance laboratory, {row['document']}",
    }
