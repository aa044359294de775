"""Rows of ``eta_coefficients`` from fitted numbers, and their file, a pack, which ``kernels.pack`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file
from kernelsight.kernels.coefficients import PATH, Node, names_at
from kernelsight.kernels.nearby import Nearby
from kernelsight.kernels.pack import pack_contract


def node_rows(
    family: str, nodes: Sequence[Node], units: Mapping[str, str], without: str | None, source: str
) -> list[dict]:
    """Return fitted nodes as rows: at the family level the constant, below it factors on the constant."""
    rows = []
    for node in nodes:
        rows.append(
            {
                "family": family,
                "part": "constant",
                "without": without,
                "level": node.level,
                **dict(zip(names_at(node.level), node.path, strict=True)),
                "coefficient": node.coefficient,
                # seven digits: more than any fit determines
                "value": float(np.float32(exp(node.log_value))),
                "log_sd": round(node.log_sd, 4),
                "unit": units[node.coefficient] if node.level == "family" else "1",
                "source": source,
            }
        )
    return rows


def interval_rows(family: str, halves: Mapping[str, np.ndarray], source: str, **node: Any) -> list[dict]:
    """Return interval curves as ``eta_coefficients`` rows: the group in ``dtype``, the half widths by ``position``."""
    return [
        {
            "family": family, "part": "interval", "level": "family", "coefficient": "half", "dtype": group,
            "position": position, "value": float(np.float32(value)), "unit": "log", "source": source, **node,
        }
        for group, curve in halves.items()
        for position, value in enumerate(curve)
    ]  # fmt: skip


def nearby_rows(family: str, gpu: str, nearby: Mapping[str, Nearby], source: str) -> list[dict]:
    """Return each kernel's points as ``eta_coefficients`` rows, one per array: points, weights and length."""
    rows = []
    for name, fit in nearby.items():
        engine, implementation, dtype = name.split("|")
        for coefficient, values in (("points", fit.points), ("weights", fit.weights), ("length", [fit.length])):
            rows.append(
                {
                    "family": family, "part": "nearby", "level": "gpu", "gpu": gpu, "engine": engine,
                    "implementation": implementation, "dtype": dtype, "coefficient": coefficient, "position": 0,
                    "array": np.ravel(np.asarray(values, dtype=np.float32)).astype(float).tolist(), "unit": "1",
                    "source": source,
                }
            )  # fmt: skip
    return rows


def correction_arrays(rows: Sequence[Mapping[str, Any]]) -> list[dict]:
    """Merge rows of corrections and intervals, one per number, into one row per array."""
    arrays: dict[tuple, list[tuple[int, float]]] = {}
    first: dict[tuple, Mapping[str, Any]] = {}
    for row in rows:
        key = tuple(row.get(name) for name in ("family", "without", *PATH[1:], "coefficient"))
        arrays.setdefault(key, []).append((row["position"], row["value"]))
        first.setdefault(key, row)
    return [
        {**first[key], "position": 0, "value": None, "array": [value for _, value in sorted(values)]}
        for key, values in arrays.items()
    ]


def write_pack(rows: pa.Table, path: Path) -> None:
    """Write a pack as Parquet, sorted by its key, so that equal fits give equal bytes. RunFailed: it cannot be."""
    key = [column.name for column in pack_contract().columns if column.key]
    rows = rows.sort_by([(name, "ascending") for name in key])
    with durable_file(path) as draft:
        pq.write_table(rows, draft, compression="zstd", compression_level=12)
