"""What one change of a setting would bring: every alternative one step away, simulated on the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kernelsight.scenario.alternatives import alternatives
from kernelsight.scenario.scenarios import give_plan, plan_rows

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

FIGURES = ("ttft_p99_ms", "tpot_p99_ms", "e2e_mean_ms", "output_throughput_per_gpu")
# settings that change what is computed, not only when
NUMERICS = ("quantization", "kv_cache_dtype")
# names of settings in deployment_settings, where they differ from the flag's
COLUMNS = {"tensor_parallel_size": "tp", "data_parallel_size": "dp", "quantization": "ffn_format"}
# a smaller gain is no advice
LEAST_GAIN = 0.01


def advice(session: Session, flags: Mapping[str, Any]) -> pa.Table:
    """Return the changes of one setting that help a scenario, the best first: rows of ``setting_advice``.

    ``session`` holds the scenario alone, planned from ``flags``. A change helps if it shortens mean E2E latency by 1 %
    or more, or raises the throughput of a GPU by as much without a longer E2E; what cannot run is left out.
    """
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table

    (before,) = session.table("scenario_summary").to_pylist()
    settings = {row["deployment_id"]: row for row in session.table("deployment_settings").to_pylist()}
    own = settings[before["deployment_id"]]
    (planned,) = session.table("scenarios").to_pylist()
    changes = [*alternatives(own, flags), *_replicas(own, planned), *wider_graphs(own)]
    with session.fork() as fork:
        plan = plan_rows(fork, [{**flags, **change} for _, change in changes], on_fault="collect", origin="")
        named = [
            (name, change, scenario["scenario_id"])
            for (name, change), scenario in zip(changes, plan.scenarios, strict=True)
            if scenario is not None
        ]
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        after = {row["scenario_id"]: row for row in fork.table("scenario_summary").to_pylist()}
    rows = []
    for _, change, scenario in named:
        found = after[scenario]
        if not found["completed"] or found["completed"] < before["completed"]:
            continue
        ((setting, value),) = change.items()
        e2e = 1.0 - found["e2e_mean_ms"] / before["e2e_mean_ms"]
        throughput = found["output_throughput_per_gpu"] / before["output_throughput_per_gpu"] - 1.0
        # fewer GPUs serve an open loop at a higher rate a GPU, and longer: no help
        if e2e < LEAST_GAIN and (throughput < LEAST_GAIN or e2e < -LEAST_GAIN):
            continue
        stated = own.get(COLUMNS.get(setting, setting), planned.get(setting) or 1)
        if setting == "max_cudagraph_capture_size":
            stated = own["graph_max_tokens"]
        if setting == "enforce_eager":
            stated = own["graph_max_tokens"] == 0
        rows.append(
            {
                "scenario_id": before["scenario_id"],
                "setting": setting,
                "stated": _word(stated),
                "value": _word(value),
                "e2e_gain": e2e,
                "throughput_gain": throughput,
                "gpus": found["gpus"],
                "changes_numerics": setting in NUMERICS,
                **{f"{name}_before": before[name] for name in FIGURES},
                **{f"{name}_after": found[name] for name in FIGURES},
            }
        )
    rows.sort(key=lambda row: -max(row["e2e_gain"], row["throughput_gain"]))
    return as_table(contracts()["setting_advice"], rows)


def _replicas(own: Mapping[str, Any], scenario: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the change to twice the replicas: of a pool that decodes, of all where several are stated, else dp."""
    name = next((name for name in ("decode_replicas", "replicas") if scenario[name]), None)
    if name is None:
        name = "decode_replicas" if scenario["prefill_deployment_id"] else "data_parallel_size"
    value = 2 * (own["dp"] if name == "data_parallel_size" else scenario[name] or 1)
    return [(f"{name}={value}", {name: value})]


def wider_graphs(own: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the change to CUDA graphs for a full batch, where they end below it; ``own``: of ``deployment_settings``.

    >>> wider_graphs({"graph_max_tokens": 128, "max_num_seqs": 256, "query_tokens": 1})
    [('max_cudagraph_capture_size=256', {'max_cudagraph_capture_size': 256})]
    """
    full = own["max_num_seqs"] * own["query_tokens"]
    if not 0 < own["graph_max_tokens"] < full:
        return []
    return [(f"max_cudagraph_capture_size={full}", {"max_cudagraph_capture_size": full})]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
