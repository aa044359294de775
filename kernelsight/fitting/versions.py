"""Fits what each engine version changes: medians of measured / fitted by kernel, GPU and version of a sweep.

A version that a GPU's sweep lacks moves as on GPUs of its generation, by equal calls. How versions moved on other
generations foretells nothing (benches/versions.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import predict_family
from kernelsight.fitting.measured import correct, has_correction
from kernelsight.fitting.splits import shape_columns
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.engine_versions import (
    FORETOLD_SD,
    FORETOLD_SHARE,
    HALF_OF_90,
    KNOTS_US,
    at_or_before,
    version_key,
)
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_constants import family_facts, rows_of_part

KERNEL = ["engine", "implementation", "dtype"]
# SQL condition on a sweep's rows
RELEASES = "and regexp_full_match(engine_version, 'v?[0-9.]+(post[0-9]+|rc[0-9]+)?')"
# latencies that belong to each knot: up to the next edge
EDGES_US = (22.0, 110.0)
# rows at which a version's own median counts as much as the mean of the GPU's versions
SHRINKING_ROWS = 30.0
# equal calls that link two cells
FEWEST_EQUAL = 30
# weights beside that of a link between versions on one GPU: links across GPUs decide where there is none, and what
# no link decides is the version's rather than the GPU's
ACROSS_GPUS, NO_GPU_EFFECT, NO_VERSION_EFFECT = 0.1, 0.01, 0.001
# a version's factor cannot turn the order of two latencies: least and most change from one knot to the next
STEEPEST = 1.0
# drift of a family whose kernels were measured in one version alone
UNKNOWN_DRIFT = 0.1


class Link(NamedTuple):
    """Equal calls of a kernel in two versions, or on two GPUs, of one generation."""

    kernel: tuple[str, ...]  # KERNEL
    generation: str
    cells: tuple[tuple[str, str], tuple[str, str]]  # GPU and version
    logs: np.ndarray  # (KNOTS_US,) median logarithm of (time in the second cell / in the first)


# by kernel, generation and version: (KNOTS_US,) logarithms
Effects = dict[tuple[tuple[str, ...], str, str], np.ndarray]


def version_rows(
    sweeps: Sequence[Path], family: str, gpus: Sequence[str], pack: pa.Table, tables: Sequence[pa.Table]
) -> list[dict]:
    """Return ``eta_coefficients`` rows of part version: each GPU's, those that GPUs have in common, and the drift.

    ``pack``: the fit to all versions of the family; ``tables``: kernel_implementations, gpus, fabrics. Builds that are
    no release have no place in the order of versions, and are left out.
    """
    rows, generation = residuals(sweeps, family, gpus, pack, tables), family_facts(family, *tables[:2]).generation
    if rows.is_empty():
        return []
    found = rows_of_medians(family, medians(rows), links_of(family, rows, generation), generation)
    return [*found, *alike_rows(found)]


def alike_rows(rows: Sequence[Mapping]) -> list[dict]:
    """Return the rows of versions that no sweep has, likened to a swept one (``kernel_versions_alike``)."""
    place = ("engine", "implementation", "engine_version")
    return [
        dict(row)
        | {"engine_version": fact["version"], "source": fact["source"]}
        | {"log_sd": round(float(np.hypot(row.get("log_sd") or 0.0, fact["log_sd"])), 4)}
        for fact in facts("kernel_versions_alike").to_pylist()
        for row in rows
        if tuple(row.get(name) for name in place) == (fact["engine"], fact["implementation"], fact["like_version"])
    ]


def residuals(
    sweeps: Sequence[Path], family: str, gpus: Sequence[str], pack: pa.Table, tables: Sequence[pa.Table]
) -> pl.DataFrame:
    """Return the rows of sweeps with ``fitted_us`` and ``residual``, log(measured / fitted); releases alone."""
    frames = []
    for gpu in gpus:
        rows = training_rows(sweeps, family, [gpu], RELEASES)
        if not rows.num_rows:
            continue
        fitted = fitted_us(family, gpu, rows, pack, tables)
        measured = rows["latency_us"].to_numpy()
        frame = pl.from_arrow(rows)
        frames.append(frame.with_columns(fitted_us=pl.Series(fitted), residual=pl.Series(np.log(measured / fitted))))
    return pl.concat(frames) if frames else pl.DataFrame()


def fitted_us(family: str, gpu: str, rows: pa.Table, pack: pa.Table, tables: Sequence[pa.Table]) -> np.ndarray:
    """Return the latency that a pack fits to measured rows of one GPU, as its sweep measures it, microseconds."""
    latency_model = FAMILIES[family].latency_model
    latency = predict_family(family, latency_model, rows, pack, *tables)
    own = [
        row
        for part in ("correction", "nearby")
        for row in rows_of_part(pack, family, part).to_pylist()
        if row["gpu"] == gpu
    ]
    has_own = has_correction(family) and any(row["part"] == "correction" for row in own)
    return correct(family, latency_model, rows, latency, own, *tables) if has_own else latency


def medians(rows: pl.DataFrame) -> pl.DataFrame:
    """Return by kernel, GPU and version the median residual at each knot, and the number of rows."""
    by = [*KERNEL, "gpu", "engine_version"]
    return rows.group_by(by).agg(pl.len().alias("rows"), *_at_knots("residual", "fitted_us")).sort(by)


def _at_knots(column: str, latency_us: str) -> list[pl.Expr]:
    """Return the medians of a column at each knot; one without rows has the median of the nearest one with some."""
    lows, highs = (0.0, *EDGES_US), (*EDGES_US, np.inf)
    spans = [pl.col(latency_us).is_between(low, high, closed="left") for low, high in zip(lows, highs, strict=True)]
    first, middle, last = (pl.col(column).filter(span).median() for span in spans)
    nearest = (first, middle, last), (middle, first, last), (last, middle, first)
    return [pl.coalesce(*order).alias(f"knot_{number}") for number, order in enumerate(nearest)]


def links_of(family: str, rows: pl.DataFrame, generation: Mapping[str, str | None]) -> list[Link]:
    """Return the links of each kernel in rows of a sweep; ``generation``: of each GPU."""
    key = ["math", "distribution", *shape_columns(family)]
    log_us = pl.col("latency_us").log().mean().alias("log_us")
    calls = rows.group_by([*KERNEL, "gpu", "engine_version", *key]).agg(log_us)
    mean_us, move = (pl.mean_horizontal("log_us", "log_us_new").exp(), pl.col("log_us_new") - pl.col("log_us"))
    links = []
    for kernel, group in calls.group_by(KERNEL):
        cells = group.partition_by("gpu", "engine_version", as_dict=True, include_key=False)
        for first, second in combinations(sorted(cells), 2):
            if generation.get(first[0]) == generation.get(second[0]):
                both = cells[first].join(cells[second], on=key, nulls_equal=True, suffix="_new")
                if both.height >= FEWEST_EQUAL:
                    logs = both.select(us=mean_us, move=move).select(_at_knots("move", "us")).to_numpy()[0]
                    links.append(Link(kernel, generation.get(first[0]) or "", (first, second), logs))
    return sorted(links, key=lambda link: link[:3])


def effects_of(links: Sequence[Link]) -> Effects:
    """Return the effect of each version on each kernel of a generation, by least squares over the links.

    A GPU has one effect on all kernels of a number format: where other kernels ran on two GPUs, a version that one of
    them ran is compared with a version that the other ran.
    """
    effects: Effects = {}
    for dtype in dict.fromkeys(link.kernel[-1] for link in links):
        own = [link for link in links if link.kernel[-1] == dtype]
        ends = [[(link.kernel, link.generation, version) for _, version in link.cells] for link in own]
        versions = list(dict.fromkeys(name for pair in ends for name in pair))
        columns: list = [*versions, *dict.fromkeys(gpu for link in own for gpu, _ in link.cells)]
        design = np.zeros((len(own), len(columns)))
        weights = np.array([1.0 if link.cells[0][0] == link.cells[1][0] else ACROSS_GPUS for link in own])[:, None]
        for row, link, pair in zip(design, own, ends, strict=True):
            for sign, version, (gpu, _) in zip((-1.0, 1.0), pair, link.cells, strict=True):
                row[columns.index(version)] += sign
                row[columns.index(gpu)] += sign
        weak = np.diag([NO_VERSION_EFFECT if name in versions else NO_GPU_EFFECT for name in columns])
        logs = np.vstack([weights * [link.logs for link in own], np.zeros((len(columns), len(KNOTS_US)))])
        solved, *_ = np.linalg.lstsq(np.vstack([weights * design, weak]), logs, rcond=None)
        effects |= dict(zip(versions, solved, strict=False))
    return effects


def rows_of_medians(
    family: str, found: pl.DataFrame, links: Sequence[Link], generation: Mapping[str, str | None]
) -> list[dict]:
    """Return the rows of :func:`version_rows` that follow from :func:`medians` and links."""
    effects = effects_of(links)
    rows: list[dict] = []
    drifts: list[float] = []
    at_knots = pl.selectors.starts_with("knot_")
    for kernel, cells in found.group_by(KERNEL, maintain_order=True):
        words = dict(zip(KERNEL, kernel, strict=True))
        for (gpu,), own in cells.group_by("gpu", maintain_order=True):
            values, counts = own.select(at_knots).to_numpy(), own["rows"].to_numpy()[:, None]
            share = counts / (counts + SHRINKING_ROWS)
            # a fit holds the only version of a GPU
            values = share * values + (1.0 - share) * values.mean(0) if len(values) > 1 else 0.0 * values
            logs = dict(zip(own["engine_version"].to_list(), values, strict=True))
            rows += [_row(family, words, version, value, gpu) for version, value in logs.items()]
            by_key = {version_key(version): version for version in sorted(logs, key=version_key)}
            drifts += np.diff([logs[version][1] for version in by_key.values()]).tolist()
            place = (kernel, generation.get(gpu) or "")
            for *its_place, version in effects:
                near = by_key[at_or_before(by_key, version_key(version))]
                if tuple(its_place) == place and version not in logs and (*place, near) in effects:
                    move = effects[*place, version] - effects[*place, near]
                    sd = round(float(np.hypot(FORETOLD_SD, FORETOLD_SHARE * move[1])), 4)
                    rows.append(_row(family, words, version, logs[near] + move, gpu) | {"log_sd": sd})
        # of GPUs whose sweeps lack the kernel
        for (version,), own in cells.group_by("engine_version", maintain_order=True):
            rows.append(_row(family, words, version, own.select(at_knots).mean().to_numpy()[0]))
    # nine of ten moves lie within a 90 % interval
    drift = round(float(np.quantile(np.abs(drifts), 0.9)) / HALF_OF_90, 4) if drifts else UNKNOWN_DRIFT
    return [*rows, _row(family, {}, None, None) | {"coefficient": "drift", "log_sd": drift}]


def _row(family: str, kernel: dict, version: str | None, logs: np.ndarray | None, gpu: str | None = None) -> dict:
    smooth = None if logs is None else np.clip(logs, logs[1] - STEEPEST, logs[1] + STEEPEST)
    return {
        "family": family, "part": "version", "level": "gpu" if gpu else "implementation", "gpu": gpu, **kernel,
        "engine_version": version, "coefficient": "logs", "unit": "log",
        "array": None if smooth is None else np.float32(smooth).astype(float).tolist(),
        "source": "measured / fitted in the sweeps of each version",
    }  # fmt: skip
