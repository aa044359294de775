"""External forecasts, from a file or a language model, as one more source of a search beside other GPUs.

They are given as a table ``kernel_forecasts``. Their weight is learned from the measurements, as that of a GPU is.
Beside other GPUs a round uses them only where they have far more evidence; forecasts that contradict the measurements
are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput
from kernelsight.searching.space_files import SpaceTables
from kernelsight.searching.targets import LEAST_SHARED, Target, filled

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
