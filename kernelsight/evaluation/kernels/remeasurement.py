"""Remeasurement floors: differences between two measurements of one kernel, below which no model's error can go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kernelsight.fitting.cells import is_serving
from kernelsight.fitting.metrics import score

# what is compared: (family, condition on the first measurement, on the second, on both), the words for it
PAIRS = (
    (
        "moe",
        "one key in two versions of TensorRT-LLM",
        "a.engine = 'trtllm' and a.engine = b.engine and a.engine_version < b.engine_version",
    ),
    (
        "gemm",
        "one library call through vLLM and through SGLang",
        "a.dtype = 'bf16' and a.engine = 'vllm' and b.engine = 'sglang'",
    ),
)


def remeasurement_floors(sweeps: Sequence[Path], gpus: Sequence[str]) -> list[dict[str, Any]]:
    """Return by how much two measurements of equal GPU, kernel, dtype and shape differ, as scores.

    Each: {"family", "what", "grid", "serving"}. The earlier version, or vLLM, stands as the measured one. A pair that
    the sweeps do not hold is left out.
    """
    floors = []
    for family, what, pair in PAIRS:
        rows = _pairs(sweeps, gpus, family, pair)
        if rows.num_rows:
            scores = {
                shapes: score(part["first_us"].to_numpy(), part["second_us"].to_numpy())
                for shapes, part in (("grid", rows), ("serving", rows.filter(pa.array(is_serving(family, rows)))))
            }
            floors.append({"family": family, "what": what, **scores})
    return floors


def _pairs(sweeps: Sequence[Path], gpus: Sequence[str], family: str, pair: str) -> pa.Table:
    """Return the shape's fields of each pair, and both latencies, in a fixed order."""
    connection = duckdb.connect()
    connection.read_parquet([str(path) for path in sweeps], union_by_name=True).create_view("points")
    return connection.sql(
        f"""
        with asked as (
          from points where family = $family and list_contains($gpus, gpu)
        )
        select unnest(a.shape), a.latency_us as first_us, b.latency_us as second_us
        from asked as a
        join asked as b
          on a.gpu = b.gpu and a.implementation = b.implementation and a.dtype = b.dtype and a.shape = b.shape
          and a.distribution is not distinct from b.distribution
        where {pair}
        order by first_us, second_us
        """,
        params={"family": family, "gpus": list(gpus)},
    ).to_arrow_table()
