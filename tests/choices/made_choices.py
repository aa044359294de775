"""A made-up world of products: which engine is fastest turns with m, alike on all GPUs unless the target differs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.fitting.measured import gemm, write

ENGINES = ("sglang", "trtllm", "vllm")
SPEED = {"a100_sxm": 1.0, "h100_sxm": 2.5, "l40s": 1.1}
MANY_SIZES = list(itertools.product((1, 8, 64, 512, 4096), (1024, 4096, 8192), (1024, 2048, 8192)))
SIZES = [size for size in MANY_SIZES if size[2] > 1024]
TARGET = "l40s"


def latency_us(gpu: str, engine: str, m: int, n: int, k: int, turned: bool = False) -> float:
    """Return the time of a product: vllm leads at small m, trtllm at large m, sglang never; ``turned``: the reverse."""
    lean = 0.05 * np.log2(m / 64.0) * (-1.0 if turned else 1.0)
    factor = {"vllm": lean, "trtllm": -lean, "sglang": 0.25}[engine]
    base = 4.0 + 2.0 * m * n * k / (1.5e8 * SPEED[gpu]) + (n * k + m * (n + k)) * 2.0 / (1.4e6 * SPEED[gpu])
    return float(base * np.exp(factor))


def rows(gpu: str, sizes: list[tuple[int, int, int]] = SIZES, turned: bool = False) -> list[dict[str, Any]]:
    """Return the sweep of a GPU."""
    return [
        gemm(gpu, *size, latency_us(gpu, engine, *size, turned=turned), engine=engine)
        for size in sizes
        for engine in ENGINES
    ]


def sweep(folder: Path, *parts: list[dict[str, Any]]) -> Path:
    """Write a sweep of the two other GPUs and of what is given beside them."""
    return write(folder / "sweep.parquet", [*rows("a100_sxm"), *rows("h100_sxm"), *itertools.chain(*parts)])


def fastest(shape: str, turned: bool = False) -> str:
    """Return the engine that is fastest at a shape on the target."""
    size = json.loads(shape)
    return min(ENGINES, key=lambda engine: latency_us(TARGET, engine, size["m"], size["n"], size["k"], turned))
