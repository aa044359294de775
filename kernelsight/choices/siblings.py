"""Sibling GPUs, of the same generation: their measured contrasts of kernels at the very same shape.

The fastest kernel may change from tile to tile: no effect that varies smoothly with sizes shows that, nor a kernel
model's expression.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa


def siblings(
    gpu: str, gpu_names: Collection[str], gpus: pa.Table, generations: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return the sibling of each GPU: that of the same generation with the nearest memory bandwidth, or None.

    Where ``gpu`` itself has none, the others have none either, so that contrasts are learned under its conditions.
    """
    rate = dict(zip(gpus["gpu"].to_pylist(), gpus["memory_bandwidth_bytes_per_s"].to_pylist(), strict=True))

    def nearest(name: str) -> str | None:
        generation = generations.get(name)
        same_generation = [
            other for other in gpu_names if other != name and generation and generations.get(other) == generation
        ]
        return min(
            same_generation,
            key=lambda candidate: (abs(math.log(rate[candidate] / rate[name])), candidate),
            default=None,
        )

    of_gpu = nearest(gpu)
    return {name: nearest(name) if of_gpu else None for name in gpu_names} | {gpu: of_gpu}


def sibling_differences(
    rows: pl.DataFrame,
    model_us: np.ndarray,
    measured: pl.DataFrame,
    site: Sequence[str],
    sibling_of: Mapping[str, str | None],
) -> np.ndarray:
    """Return (rows,): the sibling's contrast at a row's shape less the kernel model's, in the log.

    ``measured``: rows of GPUs with ``latency_us``; ``site``: the columns of a site beside its GPU; ``sibling_of``: the
    sibling of each GPU. By the same kernel, else by the fastest one of the same engine. The mean over a site's known
    candidates is zero, and so is each that is known alone, or not known.
    """
    key = [*site, "engine"]
    sibling_rows = rows.select("gpu", *key, "implementation").with_columns(
        gpu=pl.col("gpu").replace_strict(dict(sibling_of), return_dtype=pl.String)
    )
    measured_kernels = measured.select("gpu", *key, "implementation", "latency_us")
    same_kernel = _with_latency(sibling_rows, measured_kernels, ["gpu", *key, "implementation"])
    same_engine = _with_latency(sibling_rows, measured_kernels, ["gpu", *key])
    differences = np.log(np.where(np.isnan(same_kernel), same_engine, same_kernel)) - np.log(model_us)
    site_of_row = rows.select(pl.struct("gpu", *site).rle_id()).to_series().to_numpy()
    is_known = ~np.isnan(differences)
    count = np.bincount(site_of_row, is_known)
    mean = np.bincount(site_of_row, np.where(is_known, differences, 0.0)) / np.maximum(count, 1)
    return np.where(is_known, differences - mean[site_of_row], 0.0)


def _with_latency(rows: pl.DataFrame, measured_kernels: pl.DataFrame, key: list[str]) -> np.ndarray:
    """Return the least measured latency with the same values of ``key`` as each row; nan: none."""
    least = measured_kernels.group_by(key).agg(pl.col("latency_us").min())
    latency = rows.select(key).join(least, on=key, how="left", nulls_equal=True, maintain_order="left")["latency_us"]
    return latency.cast(pl.Float64).fill_null(math.nan).to_numpy()
