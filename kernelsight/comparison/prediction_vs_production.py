"""Table ``prediction_vs_production``: measured and predicted latencies of each request, and the parts of its miss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.comparison.cause_sizes import State
from kernelsight.comparison.compared_log import ComparedLog, compared_logs, rows_of
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.factors import PARAMETERS
from kernelsight.comparison.miss_parts import PARTS, Misses, misses_of
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.replayed_log import base_of, explained_of, joined, table_of
from kernelsight.comparison.residuals import NOTHING
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session


@reads("request_metrics")
@produces("prediction_vs_production")
def request_table(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    log_replays: pa.Table,
    explained_replays: pa.Table,
    fitted_parameters: pa.Table,
    fitted_causes: pa.Table,
    *,
    fork: Callable[[], Session],
) -> pa.Table:
    """Measured and predicted latencies of each request, and the parts of its miss."""
    tables = []
    with fork() as session:
        for log in compared_logs(comparisons, log_settings, compared_requests):
            base = base_of(log_replays, log.comparison_id)
            explanation = _state_of(log, base, explained_replays, fitted_parameters, fitted_causes)
            described_load = log.question.stated
            drawn = drawn_e2e(session, {**log.question.flags, **described_load}, base) if described_load else None
            tables.append(_by_request(log, base, misses_of(log.measured, base, explanation, drawn)))
    return joined("prediction_vs_production", tables)


def drawn_e2e(session: Session, flags: Mapping[str, Any], base: Replayed) -> np.ndarray:
    """Return the E2E of the described load for each request, ns: the quantile at the request's rank in ``base``.

    ``flags``: deployment and load as described, which are simulated.
    """
    run = session.simulate(**flags)
    drawn_ns = np.sort(run.table("request_metrics")["e2e_ms"].to_numpy()) * 1e6
    predicted_ms = np.where(base.served, base.e2e_ms, np.inf)
    rank = (np.argsort(np.argsort(predicted_ms)) + 0.5) / max(int(base.served.sum()), 1)
    return np.rint(np.quantile(drawn_ns, np.clip(rank, 0.0, 1.0))).astype(np.int64)


def _state_of(log: ComparedLog, base: Replayed, replays: pa.Table, parameters: pa.Table, causes: pa.Table) -> State:
    """Return the explanation of a log, rebuilt from its tables; residuals are not stored and stay empty."""
    comparison_id = log.comparison_id
    values = {row["parameter"]: row["value"] for row in rows_of(parameters, comparison_id).to_pylist()}
    named = [
        row["cause"] if row["value"] is None else f"{row['cause']}={row['value']}"
        for row in sorted(rows_of(causes, comparison_id).to_pylist(), key=lambda row: row["place"])
    ]
    replayed = explained_of(replays, comparison_id, base)
    sizes = np.array([values.get(name, 0.0) for name in PARAMETERS])
    return State(log.question.flags, sizes, tuple(named), replayed, NOTHING)


def _by_request(log: ComparedLog, base: Replayed, misses: Misses) -> pa.Table:
    """Return the rows of ``prediction_vs_production`` of one log."""
    rows, measured = misses.rows, log.measured

    def measured_ms(name: str) -> np.ndarray:
        return measured_by_metric(measured)[name][rows]

    def predicted_ms(name: str) -> np.ndarray:
        return predicted_of(base, measured.output_tokens)[name][rows]

    columns: dict[str, Callable[[], Any]] = {
        "comparison_id": lambda: pa.repeat(log.comparison_id, rows.size),
        **{name: lambda name=name: log.requests[name].take(pa.array(rows)) for name in ("log_id", "request_id")},
        "prompt_tokens": lambda: measured.prompt_tokens[rows],
        "output_tokens": lambda: measured.output_tokens[rows].astype(int),
        **{f"measured_{name}_ms": lambda name=name: measured_ms(name) for name in METRICS},
        **{f"predicted_{name}_ms": lambda name=name: predicted_ms(name) for name in METRICS},
        **{f"{name}_miss_ms": lambda name=name: measured_ms(name) - predicted_ms(name) for name in METRICS},
        "e2e_miss_ms": lambda: misses.miss_ns / 1e6,
        "measured_queue_ms": lambda: measured.queue_ms[rows],
        "predicted_queue_ms": lambda: base.queue_ms[rows],
        "measured_cached_tokens": lambda: measured.cached_tokens[rows],
        "predicted_cached_tokens": lambda: base.cached_tokens[rows],
        **{f"{name}_ms": lambda name=name: misses.parts[name] / 1e6 for name in PARTS},
    }
    return table_of("prediction_vs_production", columns)
