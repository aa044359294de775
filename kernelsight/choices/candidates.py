"""Candidates of a kernel choice: the implementations at each shape, with measured and modelled latencies.

A site is one shape with its number formats (and distribution of tokens) on one GPU; its candidates are the engines and
implementations that could run it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import facts
from kernelsight.choices.contrasts import LEFT_TO_SIBLINGS, Candidates
from kernelsight.fitting.experimental_design import positions
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.measured import features_of
from kernelsight.fitting.splits import shape_columns
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.engine_versions import version_key
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_constants import family_facts, lineage_of
from kernelsight.kernels.pack import pack_table


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


# most training sites per GPU and number format: more add little about other GPUs
SITES_PER_GPU = 60
# columns that decide whether an implementation exists at a shape, where a family has them
EXISTS_BY = ("head_dim", "window")
IDENTITY = ("gpu", "engine", "implementation")
NOT_CALLS = {*IDENTITY, "engine_version", "dtype", "math", "format", "distribution", "latency_us"}


class Choice(NamedTuple):
    """The candidates of a family on one GPU, ordered by site, and those of other GPUs that were measured.

    ``sources``: other GPUs with shapes that several implementations ran; ``rows``: training rows of the candidates
    (latency_us is null where it was not measured); ``model_us``: latency by the kernel model, one per row; ``others``:
    candidates of the sources; ``level_errors``: log(measured / model) of these, by a model without their generation.
    """

    family: str
    gpu: str
    sources: tuple[str, ...]
    rows: pl.DataFrame
    model_us: np.ndarray
    candidates: Candidates
    others: Candidates
    level_errors: np.ndarray


def site_columns(family: str) -> list[str]:
    """Return the columns of training rows that identify a site, beside its GPU."""
    return ["dtype", "distribution", *shape_columns(family)]


def measured_rows(sweeps: Sequence[Path], family: str, gpus: Sequence[str]) -> pl.DataFrame:
    """Return the measured rows of a family on some GPUs, of the newest engine version of each candidate at a site."""
    rows = pl.from_arrow(training_rows(sweeps, family, gpus))
    versions = sorted(rows["engine_version"].unique().sort().to_list(), key=version_key)
    age = pl.col("engine_version").replace_strict(versions, list(range(len(versions))), return_dtype=pl.Int64)
    key = ["gpu", *site_columns(family), "engine", "implementation"]
    return rows.sort([*key, age, "latency_us"]).unique(key, keep="last", maintain_order=True)


def shared_sites(family: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Filter rows to sites with at least two candidates."""
    return rows.filter(pl.len().over(["gpu", *site_columns(family)]) > 1)


def spread_sites(family: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Filter rows to at most SITES_PER_GPU evenly spaced sites of each GPU and number format."""
    sites = rows.select("gpu", *site_columns(family)).unique(maintain_order=True)
    site_index = pl.int_range(pl.len()).over("gpu", "dtype")
    count = pl.len().over("gpu", "dtype")
    # the k-th of n sites is kept where k x SITES_PER_GPU / n passes a whole number
    passes = (site_index * SITES_PER_GPU) // count != ((site_index - 1) * SITES_PER_GPU) // count
    spread = sites.filter((count <= SITES_PER_GPU) | passes)
    return rows.join(spread, on=spread.columns, how="semi", nulls_equal=True, maintain_order="left")


def existing_candidates(family: str, shapes: pl.DataFrame, like: pl.DataFrame, gpu: str) -> pl.DataFrame:
    """Return the candidates of shapes: the implementations that ``like`` has at the same formats, head size and window.

    ``shapes``: call columns of sites; ``like``: measured rows, of the GPU itself or of one whose kernels it runs.
    """
    exists_by = [name for name in EXISTS_BY if name in shapes.columns]
    kind_columns = [
        (pl.col(name) > 0).alias(f"_{name}") if name == "window" else pl.col(name).alias(f"_{name}")
        for name in exists_by
    ]
    keys = ["dtype", *(f"_{name}" for name in exists_by)]
    kernels = like.with_columns(kind_columns).select(*keys, "engine", "implementation", "math", "format")
    kernels = kernels.sort(kernels.columns).unique([*keys, "engine", "implementation"], maintain_order=True)
    sites = shapes.drop([name for name in (*IDENTITY, "math", "format", "latency_us") if name in shapes.columns])
    candidates = sites.unique(site_columns(family), maintain_order=True).with_columns(kind_columns)
    candidates = candidates.join(
        kernels.sort(keys + ["engine", "implementation"]), on=keys, how="inner", maintain_order="left"
    )
    measured = like.filter(pl.col("gpu") == gpu)
    measured = measured.select(*site_columns(family), "engine", "implementation", "latency_us")
    on = [*site_columns(family), "engine", "implementation"]
    candidates = candidates.with_columns(gpu=pl.lit(gpu)).join(
        measured, on=on, how="left", nulls_equal=True, maintain_order="left"
    )
    return candidates.drop([f"_{name}" for name in exists_by])


def with_expectations(
    family: str, gpu: str, candidates: pl.DataFrame, rows_elsewhere: pl.DataFrame, gpus: pa.Table | None = None
) -> Choice:
    """Return a choice: the candidates with latencies by the kernel model, fitted to the other GPUs.

    ``candidates``: on ``gpu``, the latency null where it is not known; ``rows_elsewhere``: measured rows of other GPUs.
    Each generation of these is predicted by a fit without it, as the target's must be.
    """
    tables = facts("kernel_implementations"), gpus or facts("gpus"), facts("fabrics")
    order = ["gpu", *site_columns(family), "engine", "implementation"]
    columns = [*NOT_CALLS - {"engine_version"}, *(name for name in candidates.columns if name not in NOT_CALLS)]
    candidates = candidates.sort(order)
    others = spread_sites(family, shared_sites(family, rows_elsewhere)).sort(order)
    generations = family_facts(family, *tables[:2]).generation
    others_us = np.empty(others.height)
    generation = np.array([generations.get(name) or name for name in others["gpu"].to_list()], dtype=object)
    elsewhere = np.array([generations.get(name) or name for name in rows_elsewhere["gpu"].to_list()], dtype=object)
    for name in np.unique(generation) if others.height else ():
        is_training = elsewhere != name
        training = rows_elsewhere.filter(pl.Series(is_training if is_training.any() else ~is_training))
        is_held_out = generation == name
        others_us[is_held_out] = _model(family, training, others.filter(pl.Series(is_held_out)), tables)
    model_us = _model(family, rows_elsewhere, candidates, tables)
    all_rows = pl.concat([others.select(columns), candidates.select(columns)])
    names = sorted(rows_elsewhere["gpu"].unique().to_list())
    sibling_of = siblings(gpu, names, tables[1], generations)
    all_us = np.concatenate([others_us, model_us])
    sibling_logs = sibling_differences(all_rows, all_us, rows_elsewhere, site_columns(family), sibling_of)
    rows = _candidates(family, all_rows, all_us, sibling_logs, tables)
    errors = np.log(others["latency_us"].to_numpy() / others_us)
    sources = tuple(sorted(others["gpu"].unique().to_list()))
    return Choice(
        family,
        gpu,
        sources,
        candidates,
        model_us,
        rows.at(slice(others.height, None)),
        rows.at(slice(0, others.height)),
        errors,
    )


def _model(family: str, training: pl.DataFrame, rows: pl.DataFrame, tables: tuple[pa.Table, ...]) -> np.ndarray:
    """Return the latency of rows in us by a kernel model fitted to training rows."""
    latency_model = FAMILIES[family].latency_model
    constants = pack_table(fit_family(family, latency_model, training.to_arrow(), *tables, "choice"))
    table = _arrow(rows.with_columns(pl.col("latency_us").fill_null(1.0)))
    return predict_family(family, latency_model, table, constants, *tables, measured=False)


def _arrow(rows: pl.DataFrame) -> pa.Table:
    """Convert rows to Arrow with plain strings, as training rows have them."""
    table = rows.to_arrow()
    types = [pa.string() if pa.types.is_large_string(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema([field.with_type(plain) for field, plain in zip(table.schema, types, strict=True)]))


def _candidates(
    family: str, rows: pl.DataFrame, model_us: np.ndarray, sibling_logs: np.ndarray, tables: tuple[pa.Table, ...]
) -> Candidates:
    """Return rows as candidates; ``sibling_logs``: log differences of a GPU of the same generation from the model."""
    site = rows.select(pl.struct("gpu", *site_columns(family)).rle_id()).to_series().to_numpy().astype(np.int64)
    log_model = np.log(model_us)
    level = np.bincount(site, log_model) / np.bincount(site)
    table = _arrow(rows.with_columns(pl.col("latency_us").fill_null(1.0)))
    features = features_of(family, FAMILIES[family].latency_model, table, *tables)
    fastest = np.full(level.size, np.inf)
    np.minimum.at(fastest, site, log_model)
    known_facts = family_facts(family, *tables[:2])
    lineages = [lineage_of(known_facts, name) for name in rows["implementation"].to_list()]
    latency = rows["latency_us"].to_numpy().astype(float)
    extra = np.column_stack([fastest[site] / np.log(2.0), hidden_octaves(rows)])
    sizes = np.log2(np.maximum(rows.select(shape_columns(family)).to_numpy().astype(float), 0.5))
    shape = np.hstack([sizes, extra])
    return Candidates(
        positions(shape[:, shape.std(axis=0) > 0]),
        positions(np.hstack([features, extra])),
        *(_codes(words) for words in (rows["engine"], rows["implementation"], lineages, rows["dtype"], rows["gpu"])),
        site,
        log_model - level[site],
        np.log(latency) - level[site],
        log_model - level[site] + sibling_logs,
        np.where(sibling_logs == 0.0, 1.0, LEFT_TO_SIBLINGS),
    )


def hidden_octaves(rows: pl.DataFrame) -> np.ndarray:
    """Return the octaves by which the keys exceed a sliding window, which kernels without windows read in full."""
    if "window" not in rows.columns:
        return np.zeros(rows.height)
    keys = pl.col("context") + 1.0 if "context" in rows.columns else pl.col("new_tokens") + pl.col("cached_tokens")
    octaves = pl.when(pl.col("window") > 0).then((keys / pl.col("window")).log(2.0).clip(0.0)).otherwise(0.0)
    return rows.select(octaves).to_series().to_numpy()


def _codes(words: Sequence[str]) -> np.ndarray:
    return np.unique(np.asarray(list(words), dtype=str), return_inverse=True)[1]
