"""Predicts a table of kernels (``predict --calls``), and compares measured ones with prediction and roofline."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput
from kernelsight.files.parquet_files import read_schema
from kernelsight.files.row_faults import Faults
from kernelsight.fitting.kernel_sweeps import plain
from kernelsight.fitting.kernel_sweeps.importing import checked
from kernelsight.fitting.kernel_sweeps.points import to_contract
from kernelsight.fitting.training import call_rows
from kernelsight.forward.call_files import DEFAULTS, KERNEL, not_read
from kernelsight.forward.forward_step import latencies_of_calls, predict_calls
from kernelsight.logs.profile_points import profile_points
from kernelsight.present.output import note
from kernelsight.scenario.scenario_rows import resolve_gpu

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

PARQUET, LATENCY = ".parquet", "latency_us"
# columns of kernel_calls that a table of kernels does not have
OF_CALLS = {"shape", "flops", "math"}
# the engine of rows that name none, as `calibrate import profile` writes them
NO_ENGINE = "torch"


def predict_kernels(
    session: Session, path: Path, gpu: str, tier: str | None, columns: Mapping[str, str] | None
) -> pa.Table:
    """Return the predicted kernels of a file: ``kernel_latencies`` rows in its order, or of measured ones their loss.

    ``path``: Parquet of ``kernel_calls``, or what :func:`read_kernels` reads with ``columns``. Measured rows have
    ``measured_us``, its ``ratio`` to the prediction, and ``loss_us``, what they take above the roofline, with its share
    of all measured time; the largest loss is first. InvalidInput, UnknownName, ContractBroken: as the readers.
    """
    names = read_schema(path, partial(not_read, path)).names if path.suffix.lower() == PARQUET else ()
    if columns is None and OF_CALLS & set(names) and LATENCY not in names:
        return predict_calls(session, str(path), gpu, tier)
    gpu, coefficients = resolve_gpu(session, gpu), session.table("eta_coefficients")
    choices = coefficients.filter(pc.equal(coefficients["part"], "choice"))
    calls, faults = read_kernels(path, gpu, columns, session.table("gpus"), choices)
    if faults.rows:
        note(faults.sentence(calls.num_rows, "rows"))
    latencies = latencies_of_calls(session, calls, tier, is_engine=False)
    measured_us = calls[LATENCY]
    if measured_us.null_count == calls.num_rows:
        return latencies
    loss_us = pc.subtract(measured_us, latencies["roofline_us"])
    compared = {
        **{name: calls[name] for name in ("name", "family", "shape", "format", "flops", "bytes")},
        "measured_us": measured_us,
        "latency_us": latencies["latency_us"],
        "ratio": pc.divide(measured_us, latencies["latency_us"]),
        **{name: latencies[name] for name in ("roofline_us", "bound")},
        "loss_us": loss_us,
        "loss_share": pc.divide(loss_us, pc.sum(measured_us)),
        "p05_us": latencies["latency_p05_us"],
        "p95_us": latencies["latency_p95_us"],
        **{name: latencies[name] for name in ("tier", "evidence")},
    }
    return pa.table(compared).sort_by([("loss_us", "descending")])


def read_kernels(path: Path, gpu: str, columns: Mapping[str, str] | None, gpus: pa.Table, choices: pa.Table) -> Kernels:
    """Return the rows of a table of kernels, in its order, as ``kernel_calls`` with ``latency_us`` where it has that.

    ``columns``: as of ``calibrate import profile``; a Parquet file of ``sweep_points`` needs none. ``gpu``: ran the
    rows that name no GPU; others are left out. ``choices``: implementations by family that sweeps ran. InvalidInput: no
    row can be used, or as of the readers.
    """
    names = read_schema(path, partial(not_read, path)).names if path.suffix.lower() == PARQUET else ()
    is_sweep = columns is None and {"shape", "latency_us"} <= set(names)
    batches = plain.read(path, None, None) if is_sweep else profile_points([path], gpu, columns, timed=False)
    gpu_row = next(row for row in gpus.to_pylist() if row["gpu"] == gpu)
    faults, parts = Faults(), []
    for batch in batches:
        for reason, count in batch.dropped.items():
            faults.add(reason, count, path.name, reason)
        if batch.family and batch.gpu != gpu:
            faults.add("gpu", batch.rows.height, path.name, f"measured on {batch.gpu}, not {gpu}")
        elif batch.family:
            rows, _ = checked(batch, gpu_row)
            for reason, count in rows["reason"].drop_nulls().value_counts().iter_rows():
                faults.add(reason, count, path.name, f"{batch.family} {reason}")
            parts.append(_calls_of(rows.filter(pl.col("reason").is_null()), batch.family, gpu, choices))
    table = pa.concat_tables(parts) if parts else pa.table({})
    if not table.num_rows:
        raise InvalidInput(f"{path} has no row to predict: {faults.sentence(0, 'rows')}.")
    return Kernels(table.append_column("call", pa.array(map(str, range(table.num_rows)))), faults)


class Kernels(NamedTuple):
    """Rows of ``kernel_calls``, with ``latency_us`` where they were measured, and the rows that were left out."""

    calls: pa.Table
    faults: Faults


def _calls_of(rows: pl.DataFrame, family: str, gpu: str, choices: pa.Table) -> pa.Table:
    """Return kernels of one family with their FLOP and bytes; a kernel that no sweep ran is the engine's choice."""
    # a table of calls has no latencies, and FLOP and bytes read none
    stated = [name for name in ("samples", LATENCY) if name not in rows.columns]
    points = to_contract(rows.with_columns(pl.lit(1).alias(name) for name in stated), gpu, family)
    work = call_rows(points, family)
    swept = choices.filter(pc.equal(choices["family"], family))["implementation"]
    kernel, count = points["implementation"], points.num_rows
    calls = {
        "deployment_id": pa.repeat("calls", count),
        "step_shape_id": pa.repeat(pa.scalar(0, pa.int64()), count),
        "name": pa.array(
            rows["kernel"].fill_null(family) if "kernel" in rows.columns else [family] * count, pa.string()
        ),
        "count": pa.repeat(pa.scalar(1, pa.int64()), count),
        "engine": pc.if_else(pc.equal(points["engine"], NO_ENGINE), DEFAULTS["engine"], points["engine"]),
        KERNEL.name: pc.if_else(pc.is_in(kernel, swept), kernel, None),
    }
    calls |= {name: points[name] for name in ("family", "gpu", "shape", "format", "math")}
    calls[LATENCY] = pa.nulls(count, pa.float64()) if LATENCY in stated else points[LATENCY]
    return pa.table(calls | {name: work[name] for name in ("flops", "bytes")})
