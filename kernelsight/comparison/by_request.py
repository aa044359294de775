"""Measured and predicted times of each request side by side, with the parts of its miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.cause_sizes import State
from kernelsight.comparison.compared_log import ComparedLog, rows_of
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.factors import PARAMETERS
from kernelsight.comparison.miss_parts import PARTS, Misses, misses_of
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.replayed_log import base_of, explained_of, joined, table_of
from kernelsight.comparison.residuals import NOTHING
from kernelsight.comparison.sample import drawn_e2e
from kernelsight.dataflow.session import Session


class Explained(NamedTuple):
    """The tables that explain logs."""

    log_replays: pa.Table
    explained_replays: pa.Table
    fitted_parameters: pa.Table
    fitted_causes: pa.Table


def request_table(logs: Sequence[ComparedLog], made: Explained, session: Session) -> pa.Table:
    """Return ``prediction_vs_production``."""
    tables = []
    for log in logs:
        base = base_of(made.log_replays, log.comparison_id)
        explanation = state_of(log, base, made)
        stated = log.question.stated
        drawn = drawn_e2e(session, {**log.question.flags, **stated}, base) if stated else None
        tables.append(_by_request(log, base, misses_of(log.measured, base, explanation, drawn)))
    return joined("prediction_vs_production", tables)


def state_of(log: ComparedLog, base: Replayed, made: Explained) -> State:
    """Return the explanation of a log as its tables state it."""
    comparison_id = log.comparison_id
    values = {row["parameter"]: row["value"] for row in rows_of(made.fitted_parameters, comparison_id).to_pylist()}
    causes = [
        row["cause"] if row["value"] is None else f"{row['cause']}={row['value']}"
        for row in sorted(rows_of(made.fitted_causes, comparison_id).to_pylist(), key=lambda row: row["place"])
    ]
    replayed = explained_of(made.explained_replays, comparison_id, base)
    sizes = np.array([values.get(name, 0.0) for name in PARAMETERS])
    return State(log.question.flags, sizes, tuple(causes), replayed, NOTHING)


def _by_request(log: ComparedLog, base: Replayed, misses: Misses) -> pa.Table:
    at, measured = misses.rows, log.measured

    def real(name: str) -> np.ndarray:
        return measured_by_metric(measured)[name][at]

    def predicted(name: str) -> np.ndarray:
        return predicted_of(base, measured.output_tokens)[name][at]

    columns: dict[str, Callable[[], Any]] = {
        "comparison_id": lambda: pa.repeat(log.comparison_id, at.size),
        **{name: lambda name=name: log.requests[name].take(pa.array(at)) for name in ("log_id", "request_id")},
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
    return table_of("prediction_vs_production", columns)
