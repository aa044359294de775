"""A language model as one more view of a search: its forecasts stand beside what other GPUs measured.

The Gaussian process of that view learns the weight of the column; the search believes the view only where it explains
the measurements far better than the others do, so a useless model changes little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput
from kernelsight.searching.llm import Forecaster
from kernelsight.searching.space_files import SpaceTables
from kernelsight.searching.targets import Target

VIEW = "llm"


def with_forecasts(
    target: Target, tables: SpaceTables, scenario: Mapping[str, Any], forecaster: Forecaster, most: int
) -> Target:
    """Return the target with the language model's forecasts of its candidates as a view.

    At most ``most`` candidates are asked about, the most promising by other GPUs (evenly spaced ones where there are
    none). The anchor's time is that of a source GPU, so that nothing of the target is known before it is measured; of
    the target itself only where the file holds no other. InvalidInput: the anchor was measured nowhere.
    """
    order = np.argsort(target.logs.mean(1), kind="stable") if target.sources else _spread(len(target.ids), most)
    rows = np.sort(order[:most])
    measured = tables.kernel_measurements.filter(pc.equal(tables.kernel_measurements["space"], target.space))
    place = next(
        (name for name in (*target.sources, target.gpu) if pc.any(pc.equal(measured["gpu"], name)).as_py()), None
    )
    if place is None:
        raise InvalidInput(
            f"no candidate of {target.space!r} was measured on any GPU; a language model forecasts speed-ups over a "
            "measured one, so give a file with one."
        )
    own = tables.kernel_candidates.filter(pc.equal(tables.kernel_candidates["space"], target.space))
    asked = {str(target.ids[row]) for row in rows} | ({scenario["anchor"]} - {None})
    candidates = own.filter(pc.is_in(own["candidate_id"], pa.array(sorted(asked))))
    found = forecaster(candidates, measured, {**scenario, "measured_on": place})
    return target._replace(beside=((VIEW, column_of(target, found)),))


def _spread(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def column_of(target: Target, forecasts: pa.Table) -> np.ndarray:
    """Return (candidates,): log latency by the forecasts less its median; gaps have the mean of the other GPUs."""
    known = dict(zip(forecasts["candidate_id"].to_pylist(), forecasts["latency_us"].to_pylist(), strict=True))
    logs = np.log(np.array([known.get(str(name), np.nan) for name in target.ids]))
    if np.isnan(logs).all():
        return np.zeros(len(logs))
    logs = logs - np.nanmedian(logs)
    mean = target.logs.mean(1) if target.sources else np.zeros(len(logs))
    there = ~np.isnan(logs)
    return np.where(there, logs, mean + np.median(logs[there] - mean[there]))
