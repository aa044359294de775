"""Fits a whole pack to measured sweeps: constants, corrections and intervals of every family, and kernel choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.progress import Done, Report
from kernelsight.fitting.expressions import fit_family
from kernelsight.fitting.half_widths import fit_intervals
from kernelsight.fitting.harness import harness_rows
from kernelsight.fitting.held_out import folds_of, held_out_errors
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.fitting.measured import fit_measured, has_correction, rows_of
from kernelsight.fitting.pack_rows import correction_arrays, interval_rows
from kernelsight.fitting.points_intervals import points_interval_rows
from kernelsight.fitting.portability import portability_rows
from kernelsight.fitting.sweep_files import measured_families
from kernelsight.fitting.training import to_learn, training_rows
from kernelsight.fitting.vendors import vendor_latency_model
from kernelsight.fitting.versions import version_rows
from kernelsight.kernels.families import FAMILIES, MEASURED
from kernelsight.kernels.kernel_constants import rows_of_part, vendors_of
from kernelsight.kernels.latency_model import LatencyModel
from kernelsight.kernels.pack import default_pack, pack_table

# training effort of a correction; below that for a budget of sites: a whole sweep is denser, and a pack has many
PACK_EFFORT = 0.4
# rows of a single GPU below which a fit is reported as having few rows
FEW_ROWS = 200
# rows below which a GPU is dropped from a family's fit, if other GPUs have more
LEAST_ROWS = 10


def fit_pack(
    sweeps: Sequence[Path],
    train_gpus: Sequence[str],
    gpus: pa.Table,
    fabrics: pa.Table,
    implementations: pa.Table,
    *,
    families: Iterable[str] | None = None,
    base: pa.Table | None = None,
    log: Report = lambda news: None,
) -> pa.Table:
    """Fit every measured family on ``train_gpus``, each vendor separately; return ``eta_coefficients`` rows.

    ``base``: the pack whose NVIDIA constants other vendors start from where these sweeps hold no NVIDIA GPU; None: the
    embedded one. ``log``: is called with progress.

    Each family is also fitted without each generation of the GPUs, for honest cross-generation predictions of GPUs that
    were measured. Deterministic: equal sweeps give equal rows.
    """
    rows: list[dict] = []
    vendor_of = vendors_of(gpus)
    has_rows = measured_families(sweeps, train_gpus)
    fitting = [name for name in (MEASURED if families is None else families) if name in has_rows]
    for number, family in enumerate(fitting):
        log(Done(number, len(fitting), "kernel families"))
        for vendor in sorted({vendor_of[gpu] for gpu in train_gpus}, key=lambda name: name or ""):
            gpus_of_vendor = [gpu for gpu in train_gpus if vendor_of[gpu] == vendor]
            table = to_learn(family, training_rows(sweeps, family, gpus_of_vendor))
            fitted_gpus = _with_enough_rows(table, gpus_of_vendor)
            if not fitted_gpus:
                continue
            table = table.filter(pc.is_in(table["gpu"], pa.array(fitted_gpus)))
            log(f"{family}{f', {vendor}' if vendor else ''}: {table.num_rows:,} rows")
            if table.num_rows < FEW_ROWS and len(set(table["gpu"].to_pylist())) == 1:
                log(f"{family}: few rows of one GPU, so distant shapes are extrapolated; add another --sweep")
            first = rows if any(row["family"] == family for row in rows) else _constants(base, family) if vendor else []
            latency_model = vendor_latency_model(family, FAMILIES[family].latency_model, vendor, table.num_rows, first)
            fitted = family_rows(family, latency_model, table, implementations, gpus, fabrics, log)
            fitted += portability_rows(family, table, implementations, gpus, fabrics)
            rows += [row | {"vendor": vendor} if _is_of_vendor(row) else row for row in fitted]
            rows += choice_rows(sweeps, family, fitted_gpus, implementations)
            if vendor is None:
                rows += version_rows(sweeps, family, fitted_gpus, pack_table(fitted), (implementations, gpus, fabrics))
    rows += points_interval_rows(sweeps, train_gpus, pack_table(rows), gpus, fabrics, implementations)
    first_vendor = [gpu for gpu in train_gpus if vendor_of[gpu] is None]
    return pack_table(rows + harness_rows(sweeps, sorted({row["family"] for row in rows}), first_vendor))


def _is_of_vendor(row: Mapping[str, Any]) -> bool:
    """Return whether a row is part of a vendor's fit; corrections, and intervals of one GPU, belong to the GPU."""
    return row["part"] in ("constant", "portability") or (row["part"] == "interval" and not row.get("gpu"))


def _with_enough_rows(table: pa.Table, gpus: Sequence[str]) -> list[str]:
    """Return the GPUs with rows, but not those with fewer than LEAST_ROWS where others have more."""
    counted = table.group_by("gpu").aggregate([([], "count_all")])
    rows_of_gpu = dict(zip(counted["gpu"].to_pylist(), counted["count_all"].to_pylist(), strict=True))
    counts = {gpu: rows_of_gpu.get(gpu, 0) for gpu in gpus}
    least = min(LEAST_ROWS, max(counts.values(), default=0))
    return [gpu for gpu, count in counts.items() if count >= max(least, 1)]


def _constants(base: pa.Table | None, family: str) -> list[dict]:
    return rows_of_part(default_pack() if base is None else base, family, "constant").to_pylist()


def family_rows(
    family: str,
    latency_model: LatencyModel,
    table: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    log: Report,
) -> list[dict]:
    """Fit a family's constants (to all GPUs, and without each generation), corrections and intervals.

    Returns ``eta_coefficients`` rows.
    """
    tables = (implementations, gpus, fabrics)
    rows = fit_family(family, latency_model, table, *tables, _source(table))
    pack, fits = pack_table(rows), {}
    for name, members in folds_of(table, gpus).items():
        rest = table.filter(pc.invert(pc.is_in(table["gpu"], pa.array(members))))
        without_fold = fit_family(family, latency_model, rest, *tables, _source(rest), name)
        fits[name] = pack_table([{**row, "without": None} for row in without_fold])
        rows += without_fold
    errors = held_out_errors(family, latency_model, table, *tables, fits=fits)
    for name in [None, *fits]:
        in_other_fold = errors.folds != name
        curves = fit_intervals(*(column[in_other_fold] for column in errors))
        rows += correction_arrays(interval_rows(family, curves, "errors on held-out generations", without=name))
    for target in sorted(set(table["gpu"].to_pylist())) if has_correction(family) else ():
        own = fit_measured(family, latency_model, table, target, pack, *tables, effort=PACK_EFFORT)
        curves = fit_intervals(own.fit.unseen_error, own.latency_us, own.kernels)
        log(
            f"{family}: {target} at held-out sites {_median_error(own.fit.unseen_error)}, "
            f"without correction {_median_error(own.log_ratio)} (median)"
        )
        rows += rows_of(family, target, own)
        rows += correction_arrays(interval_rows(family, curves, "errors at held-out sites", gpu=target))
    return rows


def _median_error(log_error: np.ndarray) -> str:
    return f"{np.expm1(np.median(np.abs(log_error))):.1%}"


def _source(table: pa.Table) -> str:
    return f"fitted to measured rows of {', '.join(sorted(set(table['gpu'].to_pylist())))}"
