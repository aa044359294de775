"""Latencies of each finished request as a table, from the same definitions as the statistics."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving import client_metrics

OBJECTIVES = ("goodput_ttft_ms", "goodput_tpot_ms", "goodput_e2el_ms")


def metrics_of(request_events: pa.Table, scenarios: pa.Table) -> pa.Table:
    """Return ``request_metrics`` of the finished requests that are no warm-ups, in the order of the events."""
    counted = pc.and_(pc.equal(request_events["status"], "finished"), pc.invert(request_events["warmup"]))
    events = request_events if pc.all(counted).as_py() else request_events.filter(counted)
    sent, scheduled, first, finish = (
        events[f"{name}_ns"].to_numpy() for name in ("sent", "scheduled", "first_token", "finish")
    )
    outputs = events["output_tokens"].to_numpy()
    alone = outputs <= 1
    tpot = client_metrics.tpot_ms(first, finish, np.where(alone, 2, outputs))
    ttft, e2e = client_metrics.ttft_ms(sent, first), client_metrics.e2e_ms(sent, finish)
    per_token = pa.array(tpot, mask=alone)
    return pa.table(
        {
            **{name: events[name] for name in ("scenario_id", "request_id", "external_id")},
            **{name: events[name] for name in ("prompt_tokens", "output_tokens")},
            "ttft_ms": ttft,
            "tpot_ms": per_token,
            "itl_ms": per_token,
            "e2e_ms": e2e,
            "queue_ms": client_metrics.queue_ms(sent, scheduled),
            "prefill_ms": client_metrics.prefill_ms(scheduled, first),
            "decode_ms": client_metrics.decode_ms(first, finish),
            "kv_transfer_ms": pc.divide(pc.subtract(events["kv_received_ns"], pa.array(first)).cast(pa.float64()), 1e6),
            **{name: events[name] for name in ("cached_tokens", "preemptions")},
            "requeue_ms": events["requeued_ns"].to_numpy() / 1e6,
            "recompute_ms": events["recomputed_ns"].to_numpy() / 1e6,
            "meets_objectives": _meets(events["scenario_id"], scenarios, ttft, np.where(alone, 0.0, tpot), e2e),
        }
    )


def _meets(names: pa.ChunkedArray, scenarios: pa.Table, *latencies_ms: np.ndarray) -> pa.Array:
    """Return whether each request keeps the objectives of its scenario on TTFT, TPOT and E2E; null: it has none."""
    place = pc.index_in(names, scenarios["scenario_id"].combine_chunks()).to_numpy()
    unstated = np.ones(scenarios.num_rows, dtype=bool)
    keeps = np.ones(place.size, dtype=bool)
    for name, latency_ms in zip(OBJECTIVES, latencies_ms, strict=True):
        if name in scenarios.column_names:
            unstated &= pc.is_null(scenarios[name]).to_numpy(zero_copy_only=False)
            keeps &= latency_ms <= pc.fill_null(scenarios[name], np.inf).to_numpy()[place]
    return pa.array(keeps, mask=unstated[place])
