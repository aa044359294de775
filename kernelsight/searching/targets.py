"""The target of a search: the candidates of one GPU, with other GPUs' log latencies of them as sources.

External forecasts, from a file or a language model (``kernel_forecasts``), are one more source; their weight is learned
from the measurements, as that of a GPU is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput, unknown
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.arrays import OK, UNMEASURED, Measured, SpaceArrays
from kernelsight.searching.space_files import SpaceTables

# rows of kernel_candidates and kernel_measurements, a scenario -> kernel_forecasts
Forecaster = Callable[[pa.Table, pa.Table, Mapping[str, Any]], pa.Table]


def with_forecasts(target: Target, forecasts: pa.Table) -> Target:
    """Return the target with forecasts as further sources, one per forecaster.

    ``forecasts``: candidate_id, latency_us, and forecaster if there are several; with a column round, its last round.
    Missing candidates are imputed by the mean of the other GPUs, corrected by a model of the forecasts' difference.
    """
    rows = forecasts
    if "forecaster" not in rows.column_names:
        rows = rows.append_column("forecaster", pa.array(["forecasts"] * len(rows)))
    index_of = {str(name): index for index, name in enumerate(target.ids)}
    gpus = target.logs.mean(1) if target.sources else np.zeros(len(target.ids))
    for name in sorted(set(rows["forecaster"].to_pylist())):
        of_forecaster = rows.filter(pc.equal(rows["forecaster"], name))
        if "round" in of_forecaster.column_names and len(of_forecaster):
            of_forecaster = of_forecaster.filter(pc.equal(of_forecaster["round"], pc.max(of_forecaster["round"])))
        logs = np.full(len(target.ids), np.nan)
        for row in of_forecaster.select(["candidate_id", "latency_us"]).to_pylist():
            if row["candidate_id"] in index_of:
                logs[index_of[row["candidate_id"]]] = np.log(row["latency_us"])
        forecast_count = int((~np.isnan(logs)).sum())
        if forecast_count < LEAST_SHARED:
            note = f"{name} forecast {forecast_count} of these candidates, fewer than {LEAST_SHARED}: not used"
            target = target._replace(notes=(*target.notes, note))
            continue
        median = float(np.nanmedian(logs))
        difference = logs - gpus
        level = float(np.nanmedian(difference))
        column = gpus + filled((difference - level)[:, None], target.features)[:, 0]
        target = target._replace(
            sources=(*target.sources, name),
            logs=np.column_stack([target.logs, column + level - median]),
            medians=np.append(target.medians, median),
            # other GPUs count from the start, forecasts only once measurements agree
            weights=np.append(target.weights, 0.0 if len(target.sources) else 1.0),
        )
    return target


def model_forecasts(
    target: Target, tables: SpaceTables, scenario: Mapping[str, Any], forecaster: Forecaster, most: int
) -> pa.Table:
    """Return a language model's forecasts of up to ``most`` candidates, the most promising by other GPUs.

    Without other GPUs the candidates are evenly spaced. The anchor's time is that of a source GPU, so that nothing of
    the target is used before it is measured; the target's own only where the file has no other. InvalidInput: no
    candidate was measured on any of them.
    """
    order = np.argsort(target.logs.mean(1), kind="stable") if target.sources else _evenly_spaced(len(target.ids), most)
    rows = np.sort(order[:most])
    measured = tables.kernel_measurements.filter(pc.equal(tables.kernel_measurements["space"], target.space))
    anchor_gpu = next(
        (name for name in (*target.sources, target.gpu) if pc.any(pc.equal(measured["gpu"], name)).as_py()), None
    )
    if anchor_gpu is None:
        raise InvalidInput(
            f"no candidate of {target.space!r} was measured on any GPU; a language model forecasts speed-ups over a "
            "measured one, so give a file with one."
        )
    in_space = tables.kernel_candidates.filter(pc.equal(tables.kernel_candidates["space"], target.space))
    names = {str(target.ids[row]) for row in rows} | ({scenario["anchor"]} - {None})
    candidates = in_space.filter(pc.is_in(in_space["candidate_id"], pa.array(sorted(names))))
    return forecaster(candidates, measured, {**scenario, "measured_on": anchor_gpu})


def _evenly_spaced(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


# beginnings of GPU names by maker: the maker's name, its brands, and its model numbers
_PATTERNS = {
    "amd": re.compile(r"(amd|radeon|instinct|mi\d|gfx\d|rx\d|w[5-9]\d{3}|wx\d|vega|navi)"),
    "intel": re.compile(r"(intel|arc[ab]\d|gaudi|pontevecchio|max1\d{3})"),
    "nvidia": re.compile(
        r"(nvidia|geforce|quadro|tesla|titan|rtx|gtx|gt\d|gb\d|gh\d|[abhltvpkm]\d{1,4}|dgx|grid|jetson|orin|thor)"
    ),
}
OTHER_MAKER = 0.15

# least candidates of the target that a source must have measured
LEAST_SHARED = 10
# quantile at which a source's logs are clipped: how slow the slowest candidates are does not matter
SLOWEST = 0.98
# most measurements of a source from which its gaps are imputed
FILLED_FROM = 300
# a source is dropped when it is OTHER_UNITS times slower or faster, after FEW measurements, or orders candidates the
# other way round, after MANY
OTHER_UNITS, FEW, MANY = 100, 5, 20


class Target(NamedTuple):
    """The candidates of a search, and the prior knowledge of them; rows are candidates."""

    space: str
    gpu: str
    ids: np.ndarray
    features: np.ndarray
    regimes: np.ndarray
    levels: np.ndarray
    sources: tuple[str, ...]
    logs: np.ndarray  # (rows, sources) log latency less its median; gaps are imputed
    medians: np.ndarray  # (sources,), log us
    weights: np.ndarray  # (sources,), prior weights; sum 1
    fails: np.ndarray  # (rows,), weighted share of the sources on which the candidate fails
    notes: tuple[str, ...]


def target_of(arrays: SpaceArrays, gpu: str, sources: Sequence[str] | None = None) -> Target:
    """Return the target of a search of one GPU: the candidates that it may measure, with the logs of ``sources``.

    ``sources``: names of other GPUs; None: all others. InvalidInput: the GPU is its own source; UnknownName: no such
    source.
    """
    all_others = [name for name in arrays.gpus if name != gpu]
    if sources is None:
        sources = all_others
    for name in sources:
        if name == gpu:
            raise InvalidInput(f"GPU {gpu!r} is searched for, so it cannot be a source; name other GPUs of the space.")
        if name not in arrays.gpus:
            raise unknown(
                "source GPU",
                name,
                all_others,
                f"Space {arrays.space!r} was measured on {', '.join(all_others) or 'no GPU'}.",
            )
    rows, notes = _measurable(arrays, gpu)
    used, columns, fails = [], [], []
    for name in sources:
        measured = arrays.gpus[name]
        shared = int((measured.status[rows] == OK).sum())
        if shared < LEAST_SHARED:
            notes.append(f"source {name} measured {shared} of these candidates, fewer than {LEAST_SHARED}: not used")
            continue
        used.append(name)
        columns.append(np.log(measured.latency_us[rows]))
        fails.append(measured.status[rows] > OK)
    if not used:
        notes.append(f"no other GPU measured {LEAST_SHARED} of these candidates: the search learns from {gpu} alone")
    matrix = arrays.features.matrix[rows]
    logs = np.column_stack(columns) if used else np.zeros((len(rows), 0))
    medians = np.nanmedian(logs, axis=0) if used else np.zeros(0)
    failed = maker_weights(gpu, used) @ np.array(fails) if used else np.zeros(len(rows))
    complete = filled(logs - medians, matrix)
    if used:  # a candidate that fails on a source is not imputed as fast there
        complete = np.where(np.array(fails).T, np.maximum(complete, 0.0), complete)
    return Target(
        *(arrays.space, gpu, arrays.ids[rows], matrix, arrays.features.regimes[rows], arrays.features.levels[rows]),
        *(tuple(used), complete, medians, maker_weights(gpu, used), failed, tuple(notes)),
    )


def _measurable(arrays: SpaceArrays, gpu: str) -> tuple[np.ndarray, list[str]]:
    """Return the rows that can be measured: all, or in a replay those with a measurement; and a note on the others."""
    all_rows = np.arange(len(arrays.ids))
    if gpu not in arrays.gpus:
        return all_rows, []
    is_measured = arrays.gpus[gpu].status != UNMEASURED
    missing = int((~is_measured).sum())
    note = [f"{missing:,} candidates have no measurement on {gpu} and cannot be replayed: left out"] if missing else []
    return all_rows[is_measured], note


def filled(logs: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Impute the gaps in centred logs (rows, sources): by the other sources, or of a sparse source by a model of it."""
    complete = logs.copy()
    for source in range(logs.shape[1]):
        gaps = np.isnan(logs[:, source])
        if gaps.mean() > 0.5:  # a sparse source
            complete[gaps, source] = _modelled(logs[:, source], matrix)[gaps]
    with np.errstate(invalid="ignore"):
        counted = (~np.isnan(complete)).sum(1)
        mean = np.nansum(complete, axis=1) / np.maximum(counted, 1)
    slow = np.nanquantile(complete, SLOWEST, axis=0) if complete.shape[1] else np.zeros(0)
    mean = np.where(counted > 0, mean, slow.max(initial=0.0))
    complete = np.where(np.isnan(complete), mean[:, None], complete)
    return np.minimum(complete, slow)


def _modelled(logs: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the logs of a sparse source, expected by a Gaussian process over its features where not measured."""
    measured = np.flatnonzero(~np.isnan(logs))
    rows = measured[np.unique(np.linspace(0, len(measured) - 1, FILLED_FROM).astype(int))]
    no_sources = np.zeros((len(logs), 0))
    ones = np.ones((len(logs), 1))
    inputs = gp.Inputs(no_sources, matrix, np.zeros(len(logs), int), np.zeros(len(logs)), ones, np.zeros(1, int))
    settings, noise = gp.start(inputs), np.full(len(rows), 1e-4)
    for _ in range(4):
        fit = gp.fit(inputs, rows, logs[rows], noise, settings)
        settings = fit.settings
    mean = np.concatenate([gp.predict(inputs, fit, block)[0] for block in np.array_split(np.arange(len(logs)), 8)])
    mean[measured] = logs[measured]
    return mean


def misleading(target: Target, rows: np.ndarray, logs: np.ndarray) -> dict[str, str]:
    """Return the sources that the GPU's own measurements contradict, each with the reason.

    ``rows``, ``logs``: the measured candidates, and their finite log latencies.
    """
    reasons = {}
    for source, name in enumerate(target.sources):
        source_logs = target.logs[rows, source]
        if len(rows) >= FEW and abs(np.median(logs - source_logs - target.medians[source])) > np.log(OTHER_UNITS):
            reasons[name] = f"its times differ by a factor above {OTHER_UNITS}: other units?"
        elif len(rows) >= MANY and _rank_correlation(source_logs, logs) < 0.0:
            reasons[name] = "its order contradicts what was measured: rank correlation below 0"
    return reasons


def _rank_correlation(left: np.ndarray, right: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float) for values in (left, right)]
    return float(np.corrcoef(*ranks)[0, 1])


def without_sources(target: Target, dropped: Collection[str]) -> Target:
    """Return the target without the ``dropped`` sources; the weights of the others are normalised again."""
    kept_sources = [source for source, name in enumerate(target.sources) if name not in dropped]
    names = tuple(target.sources[source] for source in kept_sources)
    weight = target.weights[kept_sources]
    weight = weight / weight.sum() if weight.sum() > 0 else np.full(len(kept_sources), 1.0 / max(len(kept_sources), 1))
    return target._replace(
        sources=names, logs=target.logs[:, kept_sources], medians=target.medians[kept_sources], weights=weight
    )


def truth_of(arrays: SpaceArrays, gpu: str, ids: np.ndarray) -> Measured:
    """Return the recorded measurements of a target's candidates, in their order."""
    rows = np.searchsorted(arrays.ids, ids)
    return Measured(*(column[rows] for column in arrays.gpus[gpu]))


def maker(name: str) -> str | None:
    """Guess the maker of a GPU by its name; None where it is not known.

    >>> maker("MI250X"), maker("NVIDIA RTX A4000"), maker("W6600"), maker("a100_sxm"), maker("device 7")
    ('amd', 'nvidia', 'amd', 'nvidia', None)
    """
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(key)), None)


def maker_weights(gpu: str, sources: Sequence[str]) -> np.ndarray:
    """Return the prior weights of source GPUs, which sum to 1: less for another maker's.

    >>> maker_weights("A100", ["A4000", "MI250X"]).round(2).tolist()
    [0.87, 0.13]
    """
    gpu_maker = maker(gpu)
    weight = np.array(
        [1.0 if gpu_maker is None or maker(name) in (gpu_maker, None) else OTHER_MAKER for name in sources]
    )
    return weight / weight.sum() if len(weight) else weight
