"""Tiny sweeps in the contract of sweep_points, written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.catalog.tables import contracts

STATED = {"engine": "vllm", "engine_version": "1", "implementation": "cublas", "dtype": "bf16", "samples": 1}
FORMATS = {"format": "bf16", "math": "bf16", "source": "a test"}


def point(family: str, gpu: str, latency_us: float, /, *, shape: dict[str, int], **stated: Any) -> dict[str, Any]:
    """Return one measured kernel; what is not stated is bf16 by cuBLAS under vLLM."""
    return {**STATED, **FORMATS, "family": family, "gpu": gpu, "latency_us": latency_us, "shape": shape, **stated}


def gemm(gpu: str, m: int, n: int, k: int, latency_us: float, **stated: Any) -> dict[str, Any]:
    """Return one measured product."""
    return point("gemm", gpu, latency_us, shape={"m": m, "n": n, "k": k}, **stated)


def write(path: Path, rows: list[dict[str, Any]], metadata: dict[bytes, bytes] | None = None) -> Path:
    """Write rows as a sweep and return its path."""
    table = pa.Table.from_pylist(rows, schema=contracts()["sweep_points"].schema.remove_metadata())
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path
