"""How far two harnesses differ that time equal calls of one kernel: half widths of intervals for calls of any harness.

A collector replays graphs, flushes caches and lets the clock settle in its own way, and builds kernels of its own
version. Sweeps of several engines on one GPU that hold the same call of the same kernel show by how much: their log
ratios, by family and number formats, each generation with the same weight, each cell shrunk half way to the mean of all
(:func:`kernelsight.fitting.points_intervals.fit_points_intervals`). Learnt without an engine, intervals with this term
hold 86 % of its equal calls at a width of 2.4, without it 68 % at 1.5 (mean of 22 cells, ``benches/harness.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.fitting.cells import generation_of
from kernelsight.fitting.pack_rows import correction_arrays, interval_rows
from kernelsight.fitting.points_intervals import RemainingErrors, fit_points_intervals
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.intervals import ALL, group_of_harness

# most equal calls of a kernel on a GPU by each pair of engines: enough for quantiles
MOST_PAIRS = 400


class EqualCalls(NamedTuple):
    """Equal calls by two engines, (pairs,) each: log(``other`` / ``engine``), ``engine``'s time in us, and labels."""

    log_ratio: np.ndarray
    latency_us: np.ndarray
    family: np.ndarray
    dtype: np.ndarray
    gpu: np.ndarray
    implementation: np.ndarray
    engine: np.ndarray
    other: np.ndarray


def equal_calls(sweeps: Sequence[Path], families: Iterable[str], gpus: Sequence[str]) -> EqualCalls:
    """Return the calls of the same kernel that several engines measured on one GPU, each pair in both orders."""
    pairs = [_pairs(training_rows(sweeps, family, gpus)).with_columns(family=pl.lit(family)) for family in families]
    joined = pl.concat(pairs)
    return EqualCalls(*(joined[name].to_numpy() for name in EqualCalls._fields))


def _pairs(table: pa.Table) -> pl.DataFrame:
    rows, kernel = pl.from_arrow(table), ["gpu", "implementation", "dtype", "engine", "other"]
    call = pl.struct(pl.exclude("engine", "engine_version", "latency_us")).hash().alias("call")
    timed = rows.select(call, "gpu", "implementation", "dtype", "engine", "latency_us")
    timed = timed.group_by(pl.exclude("latency_us")).agg(pl.col("latency_us").median())
    shared = timed.filter(pl.len().over("call") > 1)
    others = shared.select("call", pl.col("engine").alias("other"), pl.col("latency_us").alias("other_us"))
    return (
        shared.join(others, on="call")
        .filter(pl.col("engine") != pl.col("other"))
        .filter(pl.col("call").rank("ordinal").over(kernel) <= MOST_PAIRS)
        .sort(*kernel, "call")
        .select(*kernel, "latency_us", (pl.col("other_us") / pl.col("latency_us")).log().alias("log_ratio"))
    )


def harness_curves(calls: EqualCalls, chosen: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """Return the half widths (knots,) by family and number formats from ``chosen`` pairs, and the mean as (*, *)."""
    cell = np.array([f"{family} {dtype}" for family, dtype in zip(calls.family, calls.dtype, strict=True)], object)
    generation = np.array([generation_of(gpu) for gpu in calls.gpu], object)
    columns = (cell, calls.log_ratio, calls.latency_us, generation)
    curves = fit_points_intervals([RemainingErrors(*(column[chosen] for column in columns))])
    usual = np.exp(np.mean([np.log(curve) for curve in curves.values()], axis=0))
    return {tuple(name.split(" ", 1)): curve for name, curve in curves.items()} | {(ALL, ALL): usual}


def harness_rows(sweeps: Sequence[Path], families: Iterable[str], gpus: Sequence[str]) -> list[dict]:
    """Return the half widths as ``eta_coefficients`` rows of each family: by its number formats, and of others."""
    names = list(families)
    calls = equal_calls(sweeps, names, gpus)
    if not calls.log_ratio.size:
        return []
    curves, rows = harness_curves(calls, np.ones(calls.log_ratio.size, bool)), []
    for family in names:
        groups = {group_of_harness(dtype): curve for (name, dtype), curve in curves.items() if name in (family, ALL)}
        rows += interval_rows(family, groups, "equal calls of several engines")
    return correction_arrays(rows)
