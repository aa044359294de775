"""What the nearest measured GPU shows at the very same shape, where orders of kernels turn from one tile to the next.

No effect that varies smoothly with sizes holds such an order, and a kernel model holds only what its form states.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

UNKNOWN = math.inf  # of a GPU whose catalogue row lacks what is compared: farther than any other


def nearest_gpu(gpu: str, among: Collection[str], gpus: pa.Table) -> str | None:
    """Return the GPU nearest in compute capability, then in memory bandwidth, then by name; None: there is none."""
    rows = {row["gpu"]: row for row in gpus.to_pylist()}

    def apart(name: str) -> tuple[float, float, str]:
        one, other = rows.get(name, {}), rows.get(gpu, {})
        capability = [_number(row.get("compute_capability")) for row in (one, other)]
        rate = [_number(row.get("memory_bandwidth_bytes_per_s")) for row in (one, other)]
        far = abs(capability[0] - capability[1]) if all(map(math.isfinite, capability)) else UNKNOWN
        ratio = abs(math.log(rate[0] / rate[1])) if all(map(math.isfinite, rate)) else UNKNOWN
        return far, ratio, name

    return min(among, key=apart, default=None)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def nearest_of_each(
    gpu: str, others: Collection[str], gpus: pa.Table, generations: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return which GPU the rows of ``gpu``, and those of each other one, look at.

    Where none of ``gpu``'s own generation was measured, others do not look at their own either: they are to teach how
    far the order of another generation holds.
    """

    def kind(name: str) -> str:
        return generations.get(name) or name

    alike = any(kind(name) == kind(gpu) for name in others)
    found = {gpu: nearest_gpu(gpu, [name for name in others if name != gpu], gpus)}
    for name in others:
        rest = [one for one in others if one != name and (alike or kind(one) != kind(name))]
        found.setdefault(name, nearest_gpu(name, rest, gpus))
    return found


def remainders(
    rows: pl.DataFrame,
    model_us: np.ndarray,
    measured: pl.DataFrame,
    site: Sequence[str],
    nearest: Mapping[str, str | None],
) -> np.ndarray:
    """Return of each row how the nearest GPU's contrast at its shape differs from the kernel model's, in the log.

    ``measured``: rows of GPUs with ``latency_us``; ``site``: the columns of a site beside its GPU; ``nearest``: the GPU
    that each one's rows look at. The same kernel counts, else the fastest one of the same engine. Each site's mean is
    zero over what is known there; zero too where fewer than two of its candidates are known.
    """
    key = [*site, "engine"]
    looked = rows.select("gpu", *key, "implementation").with_columns(
        gpu=pl.col("gpu").replace_strict(dict(nearest), return_dtype=pl.String)
    )
    known = measured.select("gpu", *key, "implementation", "latency_us")
    same = _beside(looked, known, ["gpu", *key, "implementation"])
    engine = _beside(looked, known, ["gpu", *key])
    found = np.log(np.where(np.isnan(same), engine, same)) - np.log(model_us)
    place = rows.select(pl.struct("gpu", *site).rle_id()).to_series().to_numpy()
    there = ~np.isnan(found)
    count = np.bincount(place, there)
    mean = np.bincount(place, np.where(there, found, 0.0)) / np.maximum(count, 1)
    return np.where(there & (count[place] > 1), found - mean[place], 0.0)


def _beside(rows: pl.DataFrame, known: pl.DataFrame, key: list[str]) -> np.ndarray:
    """Return the least known latency with the same values of ``key`` as each row; nan: none."""
    least = known.group_by(key).agg(pl.col("latency_us").min())
    found = rows.select(key).join(least, on=key, how="left", nulls_equal=True, maintain_order="left")["latency_us"]
    return found.cast(pl.Float64).fill_null(math.nan).to_numpy()
