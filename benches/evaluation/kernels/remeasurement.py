"""Remeasurement floors: differences between two measurements of one kernel, a lower bound of a model's error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kernelsight.fitting.cells import is_serving
from kernelsight.fitting.metrics import score

# compared pairs: (family, description, SQL condition on the measurements a and b)
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
    """Return scores of one measurement against another of equal GPU, kernel, dtype and shape.

    Each: {"family", "what", "grid", "serving"}. The earlier version, or vLLM, counts as measured, the other as
    predicted. Pairs that the sweeps do not hold are left out.
    """
    floors = []
    for family, description, condition in PAIRS:
        rows = _pairs(sweeps, gpus, family, condition)
        if rows.num_rows:
            scores = {
                shapes: score(part["first_us"].to_numpy(), part["second_us"].to_numpy())
                for shapes, part in (("grid", rows), ("serving", rows.filter(pa.array(is_serving(family, rows)))))
            }
            floors.append({"family": family, "what": description, **scores})
    return floors


def _pairs(sweeps: Sequence[Path], gpus: Sequence[str], family: str, condition: str) -> pa.Table:
    """Return the shape's fields of each pair with first_us and second_us, in a fixed order."""
    connection = duckdb.connect()
    connection.read_parquet([str(path) for path in sweeps], union_by_name=True).create_view("points")
    return connection.sql(
        f"""
        with chosen as (
          from points where family = $family and list_contains($gpus, gpu)
        )
        select unnest(a.shape), a.latency_us as first_us, b.latency_us as second_us
        from chosen as a
        join chosen as b
          on a.gpu = b.gpu and a.implementation = b.implementation and a.dtype = b.dtype and a.shape = b.shape
          and a.distribution is not distinct from b.distribution
        where {condition}
        order by first_us, second_us
        """,
        params={"family": family, "gpus": list(gpus)},
    ).to_arrow_table()
