"""Measured and predicted times of each request side by side, with the parts of its miss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.attribution.attribution import PARTS, Misses
from kernelsight.attribution.measured import Measured
from kernelsight.attribution.replay import Replayed
from kernelsight.attribution.scores import METRICS, measured_by_metric, predicted_of
from kernelsight.catalog.tables import contracts


def by_request(requests: pa.Table, measured: Measured, base: Replayed, misses: Misses) -> pa.Table:
    """Return ``prediction_vs_production`` of the compared requests.

    ``requests``: rows of ``production_requests`` in the order of ``measured`` and ``base``.
    """
    at = misses.rows
    columns: dict[str, Any] = {name: requests[name].take(pa.array(at)) for name in ("log_id", "request_id")}
    columns |= {
        "prompt_tokens": measured.prompt_tokens[at],
        "output_tokens": measured.output_tokens[at].astype(int),
    }
    real, predicted = measured_by_metric(measured), predicted_of(base, measured.output_tokens)
    for name in METRICS:
        own, other = real[name][at], predicted[name][at]
        columns |= {f"measured_{name}_ms": own, f"predicted_{name}_ms": other, f"{name}_miss_ms": own - other}
    columns["e2e_miss_ms"] = misses.miss_ns / 1e6
    columns |= {"measured_queue_ms": measured.queue_ms[at], "predicted_queue_ms": base.queue_ms[at]}
    columns |= {
        "measured_cached_tokens": measured.cached_tokens[at],
        "predicted_cached_tokens": base.cached_tokens[at],
    }
    columns |= {f"{name}_ms": misses.parts[name] / 1e6 for name in PARTS}
    contract = contracts()["prediction_vs_production"]
    arrays = {
        column.name: _array(columns[column.name], column.arrow_type, column.nullable) for column in contract.columns
    }
    return pa.table(arrays, schema=contract.schema)


def _array(values: Any, kind: pa.DataType, nullable: bool) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks().cast(kind)
    if not nullable or values.dtype.kind != "f":
        return pa.array(values, kind)
    return pa.array(np.nan_to_num(values), pa.float64(), mask=~np.isfinite(values)).cast(kind)
