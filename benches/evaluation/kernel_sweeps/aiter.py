"""Reader of aiter's tuned kernels (AMD, MIT; repository ROCm/aiter): CSV, plain or .gz, the fastest kernel per shape.

Times are us on the device. Matrix products have the columns M, N, K, batched ones also B; experts have token,
model_dim, inter_dim, expert, topk, with the widths of one GPU. A row names its GPU by ``cu_num`` (and ``gfx``, which
older files lack). All kernels that the library chooses among count as one implementation, as for cuBLAS; a shape that
was tuned twice keeps its best time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.fitting.kernel_sweeps.bounds import impossible
from kernelsight.fitting.kernel_sweeps.points import (
    Batch,
    csv_files,
    first_reason,
    joined,
    measured,
    read_csv,
    without_family,
)

PUBLISHER = "aiter"
ENGINE, VERSION = "aiter", "unstated"
# (gfx target, compute units) -> GPU; an MI325X reports the same values as an MI300X, so files do not distinguish them
GPUS = {("gfx942", 304): "mi300x", ("gfx942", 80): "mi308x"}
OLDEST_GFX = "gfx942"  # of files without the column
PRODUCT = ("cu_num", "M", "N", "K", "us")
EXPERTS = ("cu_num", "token", "model_dim", "inter_dim", "expert", "topk", "q_dtype_w", "q_type", "use_g1u1", "us")
# torch's names of number formats, without "torch."
EIGHT_BIT = {"float8_e4m3fnuz": "fp8", "float8_e4m3fn": "fp8", "int8": "int8"}
SIXTEEN_BIT = {"bfloat16": "bf16", "float16": "fp16"}
MATH = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block": "fp8", "int8": "int8"}
# the time that a tuner writes where it measured nothing
PLACEHOLDER_US = 1.0


def read(
    path: Path | Sequence[Path] | None, gpus: frozenset[str] | None, families: frozenset[str] | None
) -> Iterator[Batch]:
    """Yield the measurements of every CSV file at or below the paths, by family and GPU.

    InvalidInput: no path, no file, columns of another publisher, or a GPU that the names do not identify.
    """
    if path is None:
        raise InvalidInput("aiter needs PATH: its tuned CSV files, or the folder with them.")
    roots = [path] if isinstance(path, Path) else list(path)
    files = [file for root in roots for file in csv_files(root, "*.csv*", PUBLISHER)]
    batches = joined(
        batch
        for file in dict.fromkeys(files)
        for batch in _batches(file)
        if (gpus is None or batch.gpu in gpus) and (families is None or batch.family in families)
    )
    catalogue = {row["gpu"]: row for row in facts("gpus").to_pylist()}
    for batch in batches:
        if batch.family:
            # first reject times below the physical bound: they would be the fastest
            rows = first_reason(batch.rows, *impossible(batch.family, batch.rows, catalogue[batch.gpu]))
            batch = batch._replace(rows=_fastest(rows))
        yield batch


def _batches(file: Path) -> Iterator[Batch]:
    rows = read_csv(file, ("cu_num",), PUBLISHER)
    experts = "token" in rows.columns
    if missing := [name for name in (EXPERTS if experts else PRODUCT) if name not in rows.columns]:
        raise InvalidInput(f"{file} is not a sweep of {PUBLISHER}: missing columns {', '.join(missing)}.")
    numbers = [name for name in (*PRODUCT, *EXPERTS, "B") if name in rows.columns and not name.startswith("q_")]
    rows = rows.with_columns(pl.col(numbers).cast(pl.Float64, strict=False))
    gfx = pl.col("gfx") if "gfx" in rows.columns else pl.lit(OLDEST_GFX)
    family = "moe" if experts else "batched_gemm" if "B" in rows.columns else "gemm"
    for (target, units), gpu_rows in rows.group_by(gfx.alias("target"), "cu_num", maintain_order=True):
        gpu = _gpu(file, str(target), units)
        points = _experts(gpu_rows) if experts else _products(gpu_rows, file.name)
        unknown = points["dtype"].is_null()
        yield Batch(gpu, family, points.filter(~unknown).with_columns(pl.lit(f"aiter/{file.name}").alias("source")), {})
        yield without_family(gpu, "format_not_known", int(unknown.sum()))


def _gpu(file: Path, target: str, units: float | None) -> str:
    if (gpu := GPUS.get((target, int(units or 0)))) is None:
        known_gpus = ", ".join(f"{name} ({gfx}, {count})" for (gfx, count), name in GPUS.items())
        raise InvalidInput(
            f"{file} has rows of a GPU with gfx {target} and cu_num {units:g}, which is not known; remove them, or add "
            f"the GPU to the catalogue. Known: {known_gpus}."
            if units is not None
            else f"{file} has rows without cu_num, the number of compute units; remove them."
        )
    return gpu


def _products(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return matrix products as flat measurements; their number format is in a column, or in the file's name."""
    shape = {"m": pl.col("M"), "n": pl.col("N"), "k": pl.col("K")}
    if "B" in rows.columns:
        shape["batch"] = pl.col("B")
    block = "blockscale" in name
    if "q_dtype_w" in rows.columns:
        dtype = _format("q_dtype_w", EIGHT_BIT)
    elif "dtype" in rows.columns:
        dtype = _format("dtype", SIXTEEN_BIT)
    else:
        # batched products of 8-bit numbers take INT8
        dtype_word = "fp8_block" if block else "bf16" if "bf16" in name else "int8" if "B" in rows.columns else None
        dtype = pl.lit(dtype_word, pl.String)
    source = "preshuffled" if "bpreshuffle" in name else "tuned"
    return _flat(rows, shape, dtype, f"aiter_{source}", None)


def _experts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return fused experts as flat measurements: both stages of a layer, with balanced routing."""
    weight, scales = pl.col("q_dtype_w").str.strip_prefix("torch."), pl.col("q_type").str.strip_prefix("QuantType.")
    plain = pl.when(scales == "No").then(_format("q_dtype_w", SIXTEEN_BIT))
    block = plain.when(scales.is_in(["per_1x128", "per_128x128"]) & weight.str.starts_with("float8"))
    rowwise = block.then(pl.lit("fp8_block")).when(scales.is_in(["per_Token", "per_Tensor"]))
    shape = {
        "tokens": pl.col("token"),
        "hidden": pl.col("model_dim"),
        "intermediate": pl.col("inter_dim"),
        "experts": pl.col("expert"),
        "top_k": pl.col("topk"),
        "moe_tp": pl.lit(1),
        "moe_ep": pl.lit(1),
        "expert_matrices": pl.when(pl.col("use_g1u1") > 0).then(3).otherwise(2),
    }
    points = _flat(rows, shape, rowwise.then(_format("q_dtype_w", EIGHT_BIT)), "aiter_fused_moe", "balanced")
    # some files repeat the time of one batch, to the last digit, for larger ones
    layer = ["dtype", "latency_us", *(name for name in shape if name != "tokens")]
    return first_reason(points, ("time_of_fewer_tokens", pl.col("tokens") > pl.col("tokens").min().over(layer)))


def _format(column: str, format_of_dtype: dict[str, str]) -> pl.Expr:
    return (
        pl.col(column).str.strip_prefix("torch.").replace_strict(format_of_dtype, default=None, return_dtype=pl.String)
    )


def _flat(
    rows: pl.DataFrame, shape: dict[str, pl.Expr], dtype: pl.Expr, source: str, distribution: str | None
) -> pl.DataFrame:
    labels = {
        "engine": ENGINE,
        "engine_version": VERSION,
        "kernel_source": source,
        "dtype": dtype,
        "format": dtype,
        "math": dtype.replace_strict(MATH, default=None, return_dtype=pl.String),
        "distribution": pl.lit(distribution, pl.String),
    }
    latency = pl.col("us").fill_nan(None)
    time = pl.col("latency_us")
    return first_reason(
        measured(rows, shape, labels, latency),
        ("no_latency", time.is_null() | ~time.is_finite() | (time <= 0)),
        ("placeholder_time", time == PLACEHOLDER_US),
    )


def _fastest(rows: pl.DataFrame) -> pl.DataFrame:
    """Reject all but the fastest valid row of a shape and format."""
    is_valid = pl.col("reason").is_null()
    key = [name for name in rows.columns if name not in ("latency_us", "source", "weight", "reason")]
    rank = pl.when(is_valid).then(pl.col("latency_us")).rank("ordinal").over(key)
    return first_reason(rows, ("slower_duplicate", is_valid & (rank > 1)))
