"""Table ``prediction_vs_production``: measured and predicted latencies of each request, and the parts of its miss.

Measured minus predicted E2E is exactly the sum of the parts, in whole nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.cause_sizes import GROUPS, State
from kernelsight.comparison.compared_log import ComparedLog, compared_logs, rows_of
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.factors import PARAMETERS
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import KERNELS, Replayed
from kernelsight.comparison.replayed_log import base_of, explained_of, joined, table_of
from kernelsight.comparison.residuals import NOTHING
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session

PARTS = (
    *("client", "workload", "front_end", "queue", "prefill_gemm", "prefill_attention", "decode_gemm"),
    *("decode_attention", "moe", "communication", "host", "preemption", "unexplained"),
)


class Misses(NamedTuple):
    """E2E misses of requests, and their parts by name, in whole nanoseconds; ``rows``: index of each request."""

    rows: np.ndarray
    miss_ns: np.ndarray
    parts: Mapping[str, np.ndarray]


def misses_of(measured: Measured, base: Replayed, explanation: State, drawn_ns: np.ndarray | None = None) -> Misses:
    """Return the misses of all requests that were measured and served, and their parts.

    A cause's part is its own time in the steps of each request, plus a proportional share of the queueing and larger
    batches that follow: parts of causes add up to the difference between the replays with and without all causes.
    The effect of a setting is ``queue``: it decides when requests are scheduled. ``drawn_ns``: E2E of the load as it
    was described, by request; the replay of the log's own load less that is ``workload``.
    """
    after = explanation.replayed
    rows = np.flatnonzero(measured.ok & base.served & after.served & np.isfinite(measured.e2e_ms))
    measured_ns = np.rint(measured.e2e_ms[rows] * 1e6).astype(np.int64)
    predicted_ns, explained_ns = ((replayed.finish_ns - replayed.sent_ns)[rows] for replayed in (base, after))
    parts_ns = {name: np.zeros(rows.size, np.int64) for name in PARTS}
    described_ns = predicted_ns
    if drawn_ns is not None:
        described_ns = drawn_ns[rows]
        parts_ns["workload"] = predicted_ns - described_ns
    direct = _direct(explanation, rows, measured.from_server)
    indirect = explained_ns - predicted_ns - sum(direct.values(), np.zeros(rows.size, np.int64))
    sizes = {name: abs(int(values.sum())) for name, values in direct.items()}
    total = sum(sizes.values())
    if total and all(cause in GROUPS for cause in explanation.causes):
        for name, size in sizes.items():
            direct[name] = direct[name] + np.rint(indirect * (size / total)).astype(np.int64)
    else:
        parts_ns["queue"] += indirect
    for name, values in direct.items():
        parts_ns[name] += values
    if np.isfinite(measured.queue_ms[rows]).any():
        queue_ms = np.where(np.isfinite(measured.queue_ms[rows]), measured.queue_ms[rows], after.queue_ms[rows])
        parts_ns["queue"] += np.rint((queue_ms - after.queue_ms[rows]) * 1e6).astype(np.int64)
    miss_ns = measured_ns - described_ns
    parts_ns["unexplained"] = miss_ns - sum(values for name, values in parts_ns.items() if name != "unexplained")
    return Misses(rows, miss_ns, parts_ns)


def _direct(explanation: State, rows: np.ndarray, from_server: bool) -> dict[str, np.ndarray]:
    """Return the time that each cause adds to a request and its steps, ns, shape [rows], by part."""
    direct: dict[str, np.ndarray] = {}
    for name, value in zip(PARAMETERS, explanation.values, strict=True):
        if not value:
            continue
        if name in KERNELS:
            nanoseconds = explanation.replayed.part(name)[rows] * (1.0 - np.exp(-value))
        elif name == "host":
            nanoseconds = explanation.replayed.steps.sum(axis=0)[rows] * value * 1e6
        else:
            # time before the server's clock starts belongs to the client or the network
            name, nanoseconds = "front_end" if from_server else "client", np.full(rows.size, value * 1e6)
        direct[name] = np.rint(nanoseconds).astype(np.int64)
    return direct


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
