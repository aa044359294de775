"""Evaluation of a kernel model on sweeps of newer engine versions than it was fitted to: the split that users meet.

Rows are new if no earlier sweep holds their engine in that version. The difference of two versions at the same key
(GPU, engine, kernel, number formats, shape) is the floor: the error of a model that repeats its sweep exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.dataflow.databases import literal
from kernelsight.errors import InvalidInput, unknown
from kernelsight.fitting.cells import is_serving
from kernelsight.fitting.expressions import predict_family
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.measured import correct, has_correction, kernels_of
from kernelsight.fitting.metrics import score
from kernelsight.fitting.splits import shape_columns
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.engine_versions import version_key
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.intervals import group_of, measured_half_widths, spread
from kernelsight.kernels.kernel_constants import rows_of_part

NEW = "new"
# scope of a row of a new version: its key was measured in an earlier one, or only its kernel, or neither
SCOPES = ("same key", "same kernel", "new kernel")
COLUMNS = ("scope", "family", "dtype", "gpus", "versions", "n", "mape", "median_ape", "bias", "coverage_90", "width_90")
COLUMNS += ("floor_n", "floor_mape", "floor_median_ape", "floor_bias")


def new_versions(old: Sequence[Path], new: Sequence[Path], chosen: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the (engine, version) pairs of the new sweeps that the old ones do not hold.

    ``chosen``: engine:version each, to return these alone. UnknownName: one that is not new; InvalidInput: none is new.
    """
    pairs = "select distinct engine, engine_version from read_parquet($files, union_by_name = true)"
    connection = duckdb.connect()
    old_pairs, new_pairs = (
        set(connection.sql(pairs, params={"files": [str(path) for path in files]}).fetchall()) for files in (old, new)
    )
    names = {f"{engine}:{version}": (engine, version) for engine, version in sorted(new_pairs - old_pairs)}
    if not names:
        raise InvalidInput("the sweeps hold no engine version that the training sweeps lack; give newer ones.")
    for name in chosen:
        if name not in names:
            raise unknown("new engine version", name, names, f"Known: {', '.join(names)}.")
    return [names[name] for name in (chosen or names)]


def version_rows(
    family: str, gpu: str, old: Sequence[Path], new: Sequence[Path], versions: Sequence[tuple[str, str]]
) -> tuple[pa.Table, list[str], np.ndarray]:
    """Return (rows, scopes, earlier_us): a family's rows of a GPU in new versions, and each one's scope (SCOPES).

    ``earlier_us``: latency at the same key in the newest old version, shape [rows]; NaN where it was not measured.
    """
    version_list = ", ".join(f"({literal(engine)}, {literal(version)})" for engine, version in versions)
    rows = training_rows(new, family, [gpu], extra=f"and (engine, engine_version) in ({version_list})")
    earlier = training_rows(old, family, [gpu])
    kernel = ["engine", "implementation", "dtype"]
    key = [*kernel, "math", "distribution", *shape_columns(family)]
    earlier_rows = pl.from_arrow(earlier.select([*key, "engine_version", "latency_us"]))
    ages = {
        version: age
        for age, version in enumerate(sorted(earlier_rows["engine_version"].unique().sort(), key=version_key))
    }
    age = pl.col("engine_version").replace_strict(ages, return_dtype=pl.Int64)
    newest = pl.col("latency_us").filter(age == age.max()).median()
    medians = earlier_rows.group_by(key).agg(newest.alias("earlier_us"))
    kernels = earlier_rows.select(kernel).unique().with_columns(pl.lit(True).alias("known"))
    keys_of_rows = pl.from_arrow(rows.select(key))
    keys_of_rows = keys_of_rows.join(medians, on=key, how="left", nulls_equal=True, maintain_order="left")
    keys_of_rows = keys_of_rows.join(kernels, on=kernel, how="left", nulls_equal=True, maintain_order="left")
    scope = pl.when(pl.col("earlier_us").is_not_null()).then(pl.lit(SCOPES[0]))
    scope = scope.when(pl.col("known")).then(pl.lit(SCOPES[1])).otherwise(pl.lit(SCOPES[2]))
    earlier_us = keys_of_rows["earlier_us"].fill_null(float("nan")).to_numpy()
    return rows, keys_of_rows.select(scope).to_series().to_list(), earlier_us


def packed_latency(family: str, gpu: str, rows: pa.Table, pack: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (latency_us, p05_us, p95_us) that a pack predicts for measured rows of one GPU, shape [rows] each.

    As measured in a sweep: with replay gaps and warm data, which a served graph does not have.
    """
    latency_model = FAMILIES[family].latency_model
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    latency = predict_family(family, latency_model, rows, pack, *tables)
    parts = {part: _rows_of(pack, family, part, gpu) for part in ("correction", "nearby", "interval")}
    if has_correction(family) and parts["correction"]:
        latency = correct(family, latency_model, rows, latency, parts["correction"] + parts["nearby"], *tables)
    gpu_curves = {row["dtype"]: np.array(row["array"]) for row in parts["interval"]}
    general_curves = {row["dtype"]: np.array(row["array"]) for row in _rows_of(pack, family, "interval", None)}
    fitted_kernels = set(pc.unique(rows_of_part(pack, family, "constant")["implementation"]).to_pylist())
    names, kernel_of_row = np.unique(np.asarray(kernels_of(rows), dtype=str), return_inverse=True)
    name_fields = [name.split("|") for name in names.tolist()]
    groups = [group_of(dtype, implementation in fitted_kernels) for _, implementation, dtype in name_fields]
    halves = [
        measured_half_widths(gpu_curves, general_curves, name, group) for name, group in zip(names, groups, strict=True)
    ]
    factor = spread(np, latency, np.array(halves)[kernel_of_row])
    return latency, latency / factor, latency * factor


def scored_versions(
    old: Sequence[Path],
    new: Sequence[Path],
    pack: pa.Table,
    *,
    versions_chosen: Sequence[str] = (),
    gpus: Sequence[str] = (),
    families: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Yield, for each family and GPU of the old sweeps, rows of new versions with scopes and predictions.

    ``versions_chosen``, ``gpus``, ``families``: to score these alone; see ``new_versions``. InvalidInput, UnknownName:
    versions, GPUs or families that the sweeps do not hold, or that are held out.
    """
    versions = new_versions(old, new, versions_chosen)
    counts = duckdb.connect().sql(
        "select distinct gpu, family from read_parquet($files, union_by_name = true)",
        params={"files": [str(path) for path in new]},
    )
    gpu_families = set(counts.fetchall())
    measured = {gpu for gpu in pc.unique(pack["gpu"]).to_pylist() if gpu}
    for names, index, name_kind in ((gpus, 0, "GPU"), (families, 1, "kernel family")):
        for name in names:
            if name in SEALED:
                raise InvalidInput(f"{name} is held out for the final evaluation; its new versions are not scored.")
            if name not in {pair[index] for pair in gpu_families}:
                raise unknown(name_kind, name, {pair[index] for pair in gpu_families}, "The sweeps hold no row of it.")
    for gpu, family in sorted(gpu_families, key=lambda pair: (pair[1], pair[0])):
        is_chosen = (not gpus or gpu in gpus) and (not families or family in families)
        if not is_chosen or gpu not in measured or gpu in SEALED or family not in FAMILIES:
            continue
        rows, scope, earlier_us = version_rows(family, gpu, old, new, versions)
        if not rows.num_rows:
            continue
        latency, low, high = packed_latency(family, gpu, rows, pack)
        yield pa.table(
            {
                "family": pa.repeat(family, rows.num_rows),
                **{name: rows[name] for name in ("gpu", "dtype", "engine", "engine_version", "implementation")},
                **{"scope": scope, "serving": is_serving(family, rows)},
                **{"latency_us": rows["latency_us"], "earlier_us": earlier_us},
                **{"predicted_us": latency, "p05_us": low, "p95_us": high},
            }
        )


def version_scores(scored: Sequence[pa.Table], *, serving: bool = True) -> list[dict[str, Any]]:
    """Return rows of COLUMNS by scope (family and dtype None), then by scope, family and dtype; errors are fractions.

    ``serving``: score only shapes that served models have.
    """
    rows = pl.concat([pl.from_arrow(table) for table in scored])
    rows = rows.filter(pl.col("serving")) if serving else rows
    scores = [
        _scores(scope, None, None, scope_rows) for scope in SCOPES if (scope_rows := rows.filter(scope=scope)).height
    ]
    for scope in SCOPES:
        parts = rows.filter(scope=scope).partition_by("family", "dtype", as_dict=True)
        scores += [_scores(scope, family, dtype, scope_rows) for (family, dtype), scope_rows in sorted(parts.items())]
    return scores


def _scores(scope: str, family: str | None, dtype: str | None, rows: pl.DataFrame) -> dict[str, Any]:
    """Return one row of COLUMNS: the scores of ``rows``, and of the floor."""
    measured = rows["latency_us"].to_numpy()
    errors = score(measured, *(rows[name].to_numpy() for name in ("predicted_us", "p05_us", "p95_us")))
    floor = score(measured, rows["earlier_us"].to_numpy())
    versions = sorted(set(pl.concat_str("engine", "engine_version", separator=" ").pipe(rows.select).to_series()))
    scope_columns = {"gpus": " ".join(sorted(rows["gpu"].unique())), "versions": ", ".join(versions)}
    floors = {f"floor_{name}": floor[name] for name in ("n", "mape", "median_ape", "bias")}
    row: Mapping[str, Any] = {"scope": scope, "family": family, "dtype": dtype, **scope_columns, **errors, **floors}
    return {name: row[name] for name in COLUMNS}


def _rows_of(pack: pa.Table, family: str, part: str, gpu: str | None) -> list[dict[str, Any]]:
    """Return a pack's rows of one GPU, family and part; ``gpu`` None: of the fit to all of NVIDIA's GPUs."""
    rows = rows_of_part(pack, family, part)
    if gpu is None:
        is_general = pc.and_(pc.is_null(rows["gpu"]), pc.and_(pc.is_null(rows["without"]), pc.is_null(rows["vendor"])))
        return rows.filter(is_general).to_pylist()
    return rows.filter(pc.fill_null(pc.equal(rows["gpu"], gpu), False)).to_pylist()
