"""TTFT, TPOT, ITL, E2E latency and their parts of each finished request, defined as vLLM's benchmark client does.

Sessions are requests connected by dependencies, such as turns of a conversation.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.scenario.scenario_rows import deployments_of
from kernelsight.serving.engine import client_metrics
from kernelsight.serving.engine.host import front_end_of
from kernelsight.serving.engine.inputs import Waits
from kernelsight.serving.engine.session_records import first_of_session
from kernelsight.serving.load.dependencies import Dependencies, generations
from kernelsight.serving.load.requests import spans_of


@produces("session_requests")
def sessions_of_requests(requests: pa.Table, request_dependencies: pa.Table) -> pa.Table:
    """Sessions: requests connected by dependencies, such as the turns of a conversation.

    A request that neither waits for another nor is waited for is a session of its own.
    """
    names, ids, sessions, turns = [], [], [], []
    spans = spans_of(requests["scenario_id"])
    request_ids = requests["request_id"].to_numpy()
    dependency_columns = [request_dependencies[name].to_numpy() for name in ("request_id", "after", "think_s")]
    for scenario, (start, stop) in spans_of(request_dependencies["scenario_id"]).items():
        ids_of_scenario = request_ids[slice(*spans[scenario])]
        order = np.argsort(ids_of_scenario)
        request, after = (
            order[np.searchsorted(ids_of_scenario, column[start:stop], sorter=order)]
            for column in dependency_columns[:2]
        )
        waits = Waits(request, after, dependency_columns[2][start:stop])
        names += [scenario] * ids_of_scenario.size
        ids.append(ids_of_scenario)
        sessions.append(ids_of_scenario[first_of_session(waits, ids_of_scenario.size)])
        turns.append(generations(Dependencies(*waits), ids_of_scenario.size))
    columns = (np.concatenate([*values, np.zeros(0, np.int64)]) for values in (ids, sessions, turns))
    return pa.table([pa.array(names, pa.string()), *columns], names=["scenario_id", "request_id", "session", "turn"])


OBJECTIVES = ("goodput_ttft_ms", "goodput_tpot_ms", "goodput_e2el_ms")


@produces("request_metrics")
def metrics_of(
    request_events: pa.Table, scenarios: pa.Table, host_settings: pa.Table, deployment_settings: pa.Table
) -> pa.Table:
    """Latencies of each finished request, as benchmark clients define them; without warm-ups.

    ``host_settings``, ``deployment_settings``: for the front-end time of each scenario's engines.
    """
    counted = pc.and_(pc.equal(request_events["status"], "finished"), pc.invert(request_events["warmup"]))
    events = request_events if pc.all(counted).as_py() else request_events.filter(counted)
    sent, scheduled, first, finish = (
        events[f"{name}_ns"].to_numpy() for name in ("sent", "scheduled", "first_token", "finish")
    )
    outputs = events["output_tokens"].to_numpy()
    front_end = _front_end_ns(events, scenarios, host_settings, deployment_settings)
    single_token = outputs <= 1
    tpot = client_metrics.tpot_ms(first, finish, np.where(single_token, 2, outputs))
    ttft, e2e = client_metrics.ttft_ms(sent, first), client_metrics.e2e_ms(sent, finish)
    per_token = pa.array(tpot, mask=single_token)
    return pa.table(
        {
            **{name: events[name] for name in ("scenario_id", "request_id", "external_id")},
            **{name: events[name] for name in ("prompt_tokens", "output_tokens")},
            "ttft_ms": ttft,
            "tpot_ms": per_token,
            "itl_ms": per_token,
            "e2e_ms": e2e,
            "front_end_ms": front_end / 1e6,
            "queue_ms": client_metrics.queue_ms(sent, scheduled, front_end),
            "prefill_ms": client_metrics.prefill_ms(scheduled, first),
            "decode_ms": client_metrics.decode_ms(first, finish),
            "kv_transfer_ms": pc.divide(pc.subtract(events["kv_received_ns"], pa.array(first)).cast(pa.float64()), 1e6),
            **{name: events[name] for name in ("cached_tokens", "tier_tokens")},
            "kv_load_ms": events["kv_load_ns"].to_numpy() / 1e6,
            "preemptions": events["preemptions"],
            "requeue_ms": events["requeued_ns"].to_numpy() / 1e6,
            "recompute_ms": events["recomputed_ns"].to_numpy() / 1e6,
            "meets_objectives": _meets(events["scenario_id"], scenarios, ttft, np.where(single_token, 0.0, tpot), e2e),
        }
    )


def _front_end_ns(events: pa.Table, scenarios: pa.Table, host_settings: pa.Table, settings: pa.Table) -> np.ndarray:
    """Return the time of each request in the front end (HTTP, tokenizer) of the first engine it reaches, whole ns."""
    hosts, deployments = (
        {row["deployment_id"]: row for row in table.to_pylist()} for table in (host_settings, settings)
    )
    fronts = [deployments_of(row)[-1] for row in scenarios.to_pylist()]
    times = np.array([front_end_of(hosts[key], deployments[key]) for key in fronts]).reshape(-1, 2)
    scenario_row = pc.index_in(events["scenario_id"], scenarios["scenario_id"].combine_chunks()).to_numpy()
    request_us, per_prompt_token_us = times[scenario_row].T
    whole_ns = np.rint((request_us + per_prompt_token_us * events["prompt_tokens"].to_numpy()) * 1e3)
    waited_ns = events["scheduled_ns"].to_numpy() - events["sent_ns"].to_numpy()
    return np.minimum(whole_ns.astype(np.int64), waited_ns)


def _meets(names: pa.ChunkedArray, scenarios: pa.Table, *latencies_ms: np.ndarray) -> pa.Array:
    """Return whether each request meets its scenario's objectives on TTFT, TPOT and E2E latency; null: none are set."""
    scenario_row = pc.index_in(names, scenarios["scenario_id"].combine_chunks()).to_numpy()
    without_objectives = np.ones(scenarios.num_rows, dtype=bool)
    meets = np.ones(scenario_row.size, dtype=bool)
    for name, latency_ms in zip(OBJECTIVES, latencies_ms, strict=True):
        if name in scenarios.column_names:
            without_objectives &= pc.is_null(scenarios[name]).to_numpy(zero_copy_only=False)
            meets &= latency_ms <= pc.fill_null(scenarios[name], np.inf).to_numpy()[scenario_row]
    return pa.array(meets, mask=without_objectives[scenario_row])
