"""Fits what each engine version changes: medians of measured / fitted by kernel, GPU and version of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.fitting.expressions import predict_family
from kernelsight.fitting.measured import correct, has_correction
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.engine_versions import HALF_OF_90, KNOTS_US, version_key
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_constants import rows_of_part

KERNEL = ["engine", "implementation", "dtype"]
# SQL condition on a sweep's rows
RELEASES = "and regexp_full_match(engine_version, 'v?[0-9.]+(post[0-9]+|rc[0-9]+)?')"
# latencies that belong to each knot: up to the next edge
EDGES_US = (22.0, 110.0)
# rows at which a GPU's own median counts as much as what versions have in common on all GPUs
SHRINKING_ROWS = 30.0
# a version's factor cannot turn the order of two latencies: least and most change from one knot to the next
STEEPEST = 1.0
# drift of a family whose kernels were measured in one version alone
UNKNOWN_DRIFT = 0.1


def version_rows(
    sweeps: Sequence[Path], family: str, gpus: Sequence[str], pack: pa.Table, tables: Sequence[pa.Table]
) -> list[dict]:
    """Return ``eta_coefficients`` rows of part version: each GPU's, those that GPUs have in common, and the drift.

    ``pack``: the fit to all versions of the family; ``tables``: kernel_implementations, gpus, fabrics. Builds that are
    no release have no place in the order of versions, and are left out.
    """
    return rows_of_medians(family, medians(residuals(sweeps, family, gpus, pack, tables)))


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
    """Return by kernel, GPU and version the median residual at each knot, and the number of rows.

    A knot without rows has the median of the nearest one with some.
    """
    if rows.is_empty():
        return rows
    lows, highs = (0.0, *EDGES_US), (*EDGES_US, np.inf)
    spans = [pl.col("fitted_us").is_between(low, high, closed="left") for low, high in zip(lows, highs, strict=True)]
    at_knots = [pl.col("residual").filter(span).median().alias(f"knot_{n}") for n, span in enumerate(spans)]
    by = [*KERNEL, "gpu", "engine_version"]
    found = rows.group_by(by).agg(pl.len().alias("rows"), *at_knots).sort(by)
    names = [f"knot_{n}" for n in range(len(KNOTS_US))]
    first, middle, last = (pl.col(name) for name in names)
    return found.with_columns(
        pl.coalesce(first, middle, last).alias(names[0]),
        pl.coalesce(middle, first, last).alias(names[1]),
        pl.coalesce(last, middle, first).alias(names[2]),
    )


def rows_of_medians(family: str, found: pl.DataFrame) -> list[dict]:
    """Return the rows of :func:`version_rows` that follow from :func:`medians`."""
    rows: list[dict] = []
    moves: list[float] = []
    if found.is_empty():
        return rows
    for kernel, cells in found.group_by(KERNEL, maintain_order=True):
        words = dict(zip(KERNEL, kernel, strict=True))
        values = cells.select(pl.selectors.starts_with("knot_")).to_numpy()
        versions, gpus, counts = (cells[name].to_list() for name in ("engine_version", "gpu", "rows"))
        common = _common(versions, gpus, values)
        # what GPUs have in common, at the level of each
        level = {gpu: _level(gpu, gpus, versions, values, common) for gpu in gpus}
        own = []
        for version, gpu, count, value in zip(versions, gpus, counts, values, strict=True):
            share = count / (count + SHRINKING_ROWS)
            several = gpus.count(gpu) > 1
            own.append(
                _smooth(share * value + (1.0 - share) * (level[gpu] + common[version])) if several else 0.0 * value
            )
            rows.append(_row(family, words, version, own[-1], gpu=gpu))
        rows += [_row(family, words, version, _smooth(logs)) for version, logs in common.items()]
        moves += _moves(versions, gpus, own)
    # nine of ten moves lie within a 90 % interval
    drift = float(np.quantile(np.abs(moves), 0.9)) / HALF_OF_90 if moves else UNKNOWN_DRIFT
    row = _row(family, {}, None, None) | {"coefficient": "drift", "log_sd": round(drift, 4)}
    return [*rows, row]


def _common(versions: list[str], gpus: list[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """Return a version's logs beside those of other versions on the same GPUs, by least squares, (knots,) each."""
    names, places = sorted(set(versions), key=lambda name: (version_key(name), name)), sorted(set(gpus))
    design = np.zeros((len(versions) + 1, len(names) + len(places)))
    for row, (version, gpu) in enumerate(zip(versions, gpus, strict=True)):
        design[row, names.index(version)] = design[row, len(names) + places.index(gpu)] = 1.0
    design[-1, : len(names)] = 1.0  # the mean of versions is 0
    solved, *_ = np.linalg.lstsq(design, np.vstack([values, np.zeros(values.shape[1])]), rcond=None)
    return dict(zip(names, solved[: len(names)], strict=True))


def _level(gpu: str, gpus: list[str], versions: list[str], values: np.ndarray, common: dict) -> np.ndarray:
    return np.mean([values[n] - common[versions[n]] for n, name in enumerate(gpus) if name == gpu], axis=0)


def _moves(versions: list[str], gpus: list[str], logs: list[np.ndarray]) -> list[float]:
    """Return the moves of logs, at the middle knot, from each version of a GPU to the next."""
    moves = []
    for gpu in sorted(set(gpus)):
        own = sorted((version_key(versions[n]), versions[n], n) for n, name in enumerate(gpus) if name == gpu)
        moves += [float(logs[b][1] - logs[a][1]) for (*_, a), (*_, b) in zip(own, own[1:], strict=False)]
    return moves


def _smooth(logs: np.ndarray) -> np.ndarray:
    """Return logs that change by at most STEEPEST from the middle knot to its neighbours."""
    return np.clip(logs, logs[1] - STEEPEST, logs[1] + STEEPEST)


def _row(family: str, kernel: dict, version: str | None, logs: np.ndarray | None, gpu: str | None = None) -> dict:
    array = None if logs is None else np.float32(logs).astype(float).tolist()
    return {
        "family": family, "part": "version", "level": "gpu" if gpu else "implementation", "gpu": gpu, **kernel,
        "engine_version": version, "coefficient": "logs", "array": array, "unit": "log",
        "source": "measured / fitted in the sweeps of each version",
    }  # fmt: skip
