"""Baselines of kernel latency: roofline, roofline with waves, an affine fit of it, and the nearest GPU's measurements.

All in microseconds, NaN where a baseline has no answer. Peak rates come from the ``systems/*.yaml`` of the package
aiconfigurator-core, or from the table ``gpus`` where it is not installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput, unknown
from kernelsight.evaluation.kernels.evaluate import Baselines
from kernelsight.files.bounded_files import read_text
from kernelsight.fitting.splits import shape_columns
from kernelsight.kernels.families import FAMILIES

NEAREST = "h100_sxm"
TILE = 128
PACKAGE = "aiconfigurator-core"
PER_US = 1e-6
# field of a system file by arithmetic; FP32 is not in those files
SYSTEM_FIELDS = {
    "bf16": "bfloat16_tc_flops",
    "fp16": "bfloat16_tc_flops",
    "fp8": "fp8_tc_flops",
    "fp4": "fp4_tc_flops",
    "int8": "int8_tc_flops",
}


class Peaks(NamedTuple):
    """Peak rates of one GPU: FLOP/s by arithmetic, memory and link bytes/s (one direction), multiprocessors."""

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    link_bytes_per_s: float
    sm_count: int


def shipped_baselines() -> Baselines:
    """Return the baselines with the peak rates of the installed aiconfigurator-core, else of the table ``gpus``."""
    return partial(baseline_columns, systems=systems_folder())


def baseline_columns(
    family: str, train: pa.Table, test: pa.Table, systems: Path | None = None
) -> dict[str, np.ndarray]:
    """Return the baselines of a family's test rows, us, by column; ``systems``: folder of system files."""
    of_train, of_test = roofline_us(family, train, systems), roofline_us(family, test, systems)
    return {
        "roofline_us": of_test,
        "roofline_waves_us": roofline_waves_us(family, test, of_test),
        "affine_roofline_us": affine_roofline_us(train, of_train, test, of_test),
        "nearest_gpu_us": nearest_gpu_us(shape_columns(family), train, of_train, test, of_test),
    }


def systems_folder() -> Path | None:
    """Return the folder of system files of the installed aiconfigurator-core, without importing it; None: not there."""
    try:
        location = distribution(PACKAGE).locate_file("aiconfigurator_core/systems")
    except PackageNotFoundError:
        return None
    folder = Path(str(location))
    return folder if folder.is_dir() else None


@cache
def peaks_of(gpu: str, systems: Path | None) -> Peaks:
    """Return the peak rates of a GPU; an arithmetic that it lacks has the rate of its 16-bit one.

    UnknownName: a GPU that is not in the table ``gpus``.
    """
    gpus = facts("gpus")
    rows = {row["gpu"]: row for row in gpus.to_pylist()}
    if gpu not in rows:
        raise unknown("GPU", gpu, rows, "The table gpus has no rates of it.")
    row = rows[gpu]
    peaks = {math: row[f"{math}_flops_per_s"] for math in (*SYSTEM_FIELDS, "fp32")}
    peaks["fp32"] = row["fp32_matrix_flops_per_s"] or peaks["fp32"]
    memory, link = row["memory_bandwidth_bytes_per_s"], row["link_bytes_per_s"]
    if systems and (file := systems / f"{gpu}.yaml").is_file():
        fields = _numbers(read_text(file, lambda problem: InvalidInput(f"file {file} {problem}; give another folder.")))
        peaks |= {math: fields.get(field) for math, field in SYSTEM_FIELDS.items()}
        memory, link = fields["mem_bw"], fields["intra_node_bw"]
    flops = {math: rate or peaks["bf16"] or peaks["fp16"] for math, rate in peaks.items()}
    return Peaks(flops, memory, link, row["sm_count"])


def _numbers(text: str) -> dict[str, float]:
    """Return the "name: number" lines of a system file by name, of all its sections."""
    return {name: float(number) for name, number in re.findall(r"^\s+(\w+):\s*([\d.]+)", text, flags=re.MULTILINE)}


def roofline_us(family: str, rows: pa.Table, systems: Path | None) -> np.ndarray:
    """Return the roofline of each row, us: max(FLOP / dense peak, bytes / bandwidth), or bytes over a link's rate."""
    size = rows["bytes"].to_numpy()
    result = np.empty(rows.num_rows)
    wire_share = FAMILIES[family].wire_share
    if wire_share:
        size = size * wire_share(rows["group_size"].to_numpy())
    for gpu, math, indices in _groups(rows, "gpu", "math"):
        peaks = peaks_of(gpu, systems)
        if wire_share:
            result[indices] = size[indices] / (peaks.link_bytes_per_s * PER_US)
            continue
        rate = peaks.flops_per_s.get(math, peaks.flops_per_s["bf16"])
        compute_us = rows["flops"].to_numpy()[indices] / (rate * PER_US)
        result[indices] = np.maximum(compute_us, size[indices] / (peaks.memory_bytes_per_s * PER_US))
    return result


def roofline_waves_us(family: str, rows: pa.Table, roofline: np.ndarray) -> np.ndarray:
    """Return roofline x ceil(w) / w, us, with w = tiles of 128 x 128 per multiprocessor; the roofline without tiles."""
    tiles = _tiles(family, rows)
    if tiles is None:
        return roofline
    result = np.empty(rows.num_rows)
    for gpu, indices in _groups(rows, "gpu"):
        waves = tiles[indices] / peaks_of(gpu, None).sm_count
        result[indices] = roofline[indices] * np.ceil(waves) / waves
    return result


def _tiles(family: str, rows: pa.Table) -> np.ndarray | None:
    """Return the number of 128 x 128 output tiles of each row's kernel; None for a family without tiles."""

    def column(name: str) -> np.ndarray:
        return rows[name].to_numpy()

    def tiles(size: np.ndarray) -> np.ndarray:
        return np.ceil(size / TILE)

    if family in ("gemm", "batched_gemm"):
        batch = column("batch") if family == "batched_gemm" else 1.0
        return batch * tiles(column("m")) * tiles(column("n"))
    if family in ("prefill_attention", "encoder_attention", "mla_prefill"):
        return column("batch") * column("heads") * tiles(column("new_tokens"))
    if family in ("decode_attention", "mla_decode"):
        kv_heads = column("kv_heads") if family == "decode_attention" else 1.0
        return column("batch") * kv_heads * tiles(column("context") + 1.0)
    if family == "moe":
        active = column("active_experts")
        per_expert = column("tokens") * column("top_k") / column("moe_ep") / active
        return active * tiles(per_expert) * tiles(2.0 * column("intermediate"))
    return None


def affine_roofline_us(train: pa.Table, train_roofline: np.ndarray, test: pa.Table, roofline: np.ndarray) -> np.ndarray:
    """Return a x roofline + t0, us, with a and t0 fitted to the training rows of each (dtype, engine)."""
    result = np.full(test.num_rows, np.nan)
    measured = train["latency_us"].to_numpy()
    fits = {
        (dtype, engine): fit_affine(train_roofline[indices], measured[indices])
        for dtype, engine, indices in _groups(train, "dtype", "engine")
    }
    for dtype, engine, indices in _groups(test, "dtype", "engine"):
        if (dtype, engine) in fits:
            slope, start_us = fits[dtype, engine]
            result[indices] = slope * roofline[indices] + start_us
    return result


def fit_affine(roofline: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    """Return (a, t0) >= 0 of least mean |a r + t0 - m| / m, by iteratively reweighted least squares.

    >>> a, t0 = fit_affine(np.array([1.0, 2.0, 4.0, 100.0, 8.0]), np.array([5.0, 7.0, 11.0, 203.0, 60.0]))
    >>> round(a, 3), round(t0, 3)
    (2.0, 3.0)
    """
    terms = np.stack([roofline / measured, 1.0 / measured], axis=1)
    solved = _least_absolute(terms)
    if solved.min() >= 0.0:
        return float(solved[0]), float(solved[1])
    # the optimum is on an edge: one term only, whichever fits better
    single = [_least_absolute(terms[:, [column]])[0] for column in (0, 1)]
    errors = [np.abs(single[column] * terms[:, column] - 1.0).mean() for column in (0, 1)]
    return (float(single[0]), 0.0) if errors[0] <= errors[1] else (0.0, float(single[1]))


def _least_absolute(terms: np.ndarray, rounds: int = 60) -> np.ndarray:
    """Return the x that minimises sum |terms x - 1|, by reweighted least squares with weights 1 / |residual|."""
    weights = np.ones(len(terms))
    solved = np.zeros(terms.shape[1])
    for step in range(rounds):
        weighted = terms * weights[:, None]
        solved = np.linalg.lstsq(weighted.T @ terms, weighted.sum(axis=0), rcond=None)[0]
        weights = 1.0 / np.maximum(np.abs(terms @ solved - 1.0), max(0.1 * 0.7**step, 1e-7))
    return solved


def nearest_gpu_us(
    family_shape: Sequence[str], train: pa.Table, train_roofline: np.ndarray, test: pa.Table, roofline: np.ndarray
) -> np.ndarray:
    """Return the reference GPU's measurement of equal engine, dtype and shape, us, x the ratio of rooflines.

    Of the same implementation if there is one, else the fastest of the engine's; median over engine versions. The
    reference is h100_sxm, or if it is not a training GPU the training GPU nearest to it in memory bandwidth.
    """
    keys = ["engine", "dtype", "distribution", *family_shape]
    reference = _reference(set(train["gpu"].unique().to_pylist()))
    if reference is None:
        return np.full(test.num_rows, np.nan)
    is_reference = pc.equal(train["gpu"], reference)
    train_rows = pl.from_arrow(train.select([*keys, "implementation", "latency_us"]).filter(is_reference)).with_columns(
        eta=pl.col("latency_us") / pl.Series(train_roofline[is_reference.to_numpy(zero_copy_only=False).astype(bool)])
    )
    same_kernel = train_rows.group_by([*keys, "implementation"]).agg(pl.col("eta").median())
    any_kernel = same_kernel.group_by(keys).agg(pl.col("eta").min())
    sites = pl.from_arrow(test.select([*keys, "implementation"]))
    sites = sites.join(same_kernel, on=[*keys, "implementation"], how="left", nulls_equal=True, maintain_order="left")
    sites = sites.join(any_kernel, on=keys, how="left", nulls_equal=True, maintain_order="left", suffix="_any")
    eta = sites.select(pl.coalesce("eta", "eta_any")).to_series().to_numpy()
    return np.asarray(eta, dtype=float) * roofline


def _reference(gpus: set[str]) -> str | None:
    """Return NEAREST, or the GPU nearest to it in memory bandwidth; None without GPUs."""
    if NEAREST in gpus:
        return NEAREST
    rates = {gpu: peaks_of(gpu, None).memory_bytes_per_s for gpu in (*gpus, NEAREST)}
    return min(sorted(gpus), key=lambda gpu: abs(np.log(rates[gpu] / rates[NEAREST])), default=None)


def _groups(rows: pa.Table, *names: str) -> list[tuple]:
    """Return (value, ..., row indices) for each combination of values of the named columns."""
    codes = pl.from_arrow(rows.select(list(names))).with_row_index("row")
    return [
        (*values, group["row"].to_numpy().astype(np.int64))
        for values, group in codes.group_by(list(names), maintain_order=True)
    ]
