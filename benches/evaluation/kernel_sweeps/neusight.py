"""Reader of NeuSight's sweeps (Lee et al., ASPLOS 2025; repository sitar-lab/NeuSight): CSV of FP32 PyTorch operators.

Columns: OPName, Latency (ms), Device, Torch Version ("p2.1.0"), and the dimensions B, M, N, K of products. Element-wise
operators, softmax and layer norm in FP32 are not kernels of an LLM server; they are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.errors import InvalidInput
from kernelsight.fitting.kernel_sweeps.devices import NOT_IN_CATALOGUE
from kernelsight.fitting.kernel_sweeps.points import Batch, measured, read_csv, reader, without_family

PUBLISHER = "NeuSight"
MEASURED = ("OPName", "Latency", "Device", "Torch Version")
SIZES = ("B", "M", "N", "K")
PRODUCTS = {"linear": "gemm", "bmm": "batched_gemm"}


def _batches(file: Path) -> Iterator[Batch]:
    rows = read_csv(file, MEASURED, PUBLISHER)
    for (device, operator), operator_rows in rows.group_by("Device", "OPName", maintain_order=True):
        found = find_gpu(str(device))
        gpu = found.gpu if found and not found.assumed else None  # a name of several editions is of none
        if gpu is None:
            yield without_family(str(device), NOT_IN_CATALOGUE, operator_rows.height)
        elif operator not in PRODUCTS:
            yield without_family(gpu, "operator_without_family", operator_rows.height)
        else:
            yield Batch(gpu, PRODUCTS[str(operator)], _products(operator_rows, str(operator), file), {})


def _products(rows: pl.DataFrame, operator: str, file: Path) -> pl.DataFrame:
    missing = [name for name in SIZES if name not in rows.columns]
    if missing:
        raise InvalidInput(f"{file} is not a sweep of {PUBLISHER}: missing columns {', '.join(missing)}.")
    batch, m, n, k = (pl.col(name).cast(pl.Int64) for name in SIZES)
    shape = {"m": batch * m, "n": n, "k": k} if operator == "linear" else {"batch": batch, "m": m, "n": n, "k": k}
    labels = {
        "engine": "pytorch",
        "engine_version": pl.col("Torch Version").cast(pl.String).str.strip_prefix("p"),
        "kernel_source": operator,
        "dtype": "fp32",
        "format": "fp32",
        "math": "fp32",
    }
    points = measured(rows, shape, labels, pl.col("Latency") * 1e3)
    return points.with_columns(pl.lit(f"NeuSight/{file.name}").alias("source"))


read = reader(PUBLISHER, "neusight", "a CSV file of NeuSight's dataset, or their folder", _batches)
