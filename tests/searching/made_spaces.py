"""Made-up search spaces: a tiled kernel whose best configuration moves a little from GPU to GPU."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow as pa

from kernelsight.searching.space_files import SpaceTables, space_tables

GPUS = ("one", "two", "three")


def latency(block: int, tile: int, vector: int, cached: int, gpu: int) -> float:
    """Return a latency in us: valleys in logarithms, whose place depends on the GPU (0, 1, 2)."""
    x, y = np.log2(block) - 7.0 - 0.3 * gpu, tile - 4.0 + 0.4 * gpu
    return float(100.0 * (1 + gpu) * np.exp(0.15 * x * x + 0.05 * y * y + 0.1 * abs(vector - 2) + 0.1 * (1 - cached)))


def made_rows(gpus: tuple[str, ...] = GPUS, cv: float = 0.01) -> pa.Table:
    """Return rows of a file of search spaces: 320 configurations, of which large blocks with large tiles fail."""
    rows = []
    for number, gpu in enumerate(gpus):
        for block, tile, vector, cached in itertools.product((16, 32, 64, 128, 256), range(1, 9), (1, 2, 4, 8), (0, 1)):
            parameters = {"block_size_x": block, "tile_size_x": tile, "vector": vector, "cached": cached}
            works = block * tile <= 1024
            rows.append(
                {
                    **{"space": "made", "gpu": gpu, "parameters": json.dumps(parameters)},
                    **{"latency_us": latency(block, tile, vector, cached, number) if works else None},
                    **{"cv": cv, "samples": 8, "compile_s": 2.0, "benchmark_s": 0.5},
                    **{"status": "ok" if works else "CompilationFailedConfig", "source": "made.parquet"},
                }
            )
    return pa.Table.from_pylist(rows)


def made_tables(gpus: tuple[str, ...] = GPUS, cv: float = 0.01) -> SpaceTables:
    """Return the given tables of the made-up space."""
    return space_tables(made_rows(gpus, cv), "made.parquet")
