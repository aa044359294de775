"""Measured and predicted times of each request side by side, with the parts of its miss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.miss_parts import PARTS, Misses
from kernelsight.comparison.replay import Replayed


def by_request(requests: pa.Table, measured: Measured, base: Replayed, misses: Misses) -> pa.Table:
    """Return ``prediction_vs_production`` of the compared requests.

    ``requests``: rows of ``production_requests`` in the order of ``measured`` and ``base``.
    """
    at = misses.rows

    def real(name: str) -> np.ndarray:
        return measured_by_metric(measured)[name][at]

    def predicted(name: str) -> np.ndarray:
        return predicted_of(base, measured.output_tokens)[name][at]

    # each column is made when its Arrow array is: a million rows are not held twice
    columns: dict[str, Callable[[], Any]] = {
        **{name: lambda name=name: requests[name].take(pa.array(at)) for name in ("log_id", "request_id")},
        "prompt_tokens": lambda: measured.prompt_tokens[at],
        "output_tokens": lambda: measured.output_tokens[at].astype(int),
        **{f"measured_{name}_ms": lambda name=name: real(name) for name in METRICS},
        **{f"predicted_{name}_ms": lambda name=name: predicted(name) for name in METRICS},
        **{f"{name}_miss_ms": lambda name=name: real(name) - predicted(name) for name in METRICS},
        "e2e_miss_ms": lambda: misses.miss_ns / 1e6,
        "measured_queue_ms": lambda: measured.queue_ms[at],
        "predicted_queue_ms": lambda: base.queue_ms[at],
        "measured_cached_tokens": lambda: measured.cached_tokens[at],
        "predicted_cached_tokens": lambda: base.cached_tokens[at],
        **{f"{name}_ms": lambda name=name: misses.parts[name] / 1e6 for name in PARTS},
    }
    contract = contracts()["prediction_vs_production"]
    arrays = {
        column.name: _array(columns[column.name](), column.arrow_type, column.nullable) for column in contract.columns
    }
    return pa.table(arrays, schema=contract.schema)


def _array(values: Any, kind: pa.DataType, nullable: bool) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks().cast(kind)
    if not nullable or values.dtype.kind != "f":
        return pa.array(values, kind)
    return pa.array(np.nan_to_num(values), pa.float64(), mask=~np.isfinite(values)).cast(kind)
