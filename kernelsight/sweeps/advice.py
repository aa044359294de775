"""Advice on settings: every change of one setting by one step, simulated on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces
from kernelsight.errors import unknown
from kernelsight.scenario.alternatives import alternatives
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.scenario.stated_flags import read_flags

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

LATENCIES = ("e2e_mean_ms", "ttft_p99_ms", "itl_p99_ms", "tpot_p99_ms")
FIGURES = (*LATENCIES, "output_throughput_per_gpu")
# settings that change the numerical results
NUMERICS = ("quantization", "kv_cache_dtype")
# columns of deployment_settings whose names differ from the flag's
COLUMNS = {"tensor_parallel_size": "tp", "data_parallel_size": "dp", "quantization": "ffn_format"}
# least gain that is reported
LEAST_GAIN = 0.01


@produces("setting_advice")
def advice_rows(
    advice_questions: pa.Table,
    scenarios: pa.Table,
    scenario_summary: pa.Table,
    deployment_settings: pa.Table,
    *,
    fork: Callable[[], Session],
) -> list[dict[str, Any]]:
    """Simulate each scenario with one setting changed, on the same requests: the changes that help.

    A change helps if it shortens mean E2E latency or the 99th percentile of TTFT, ITL or TPOT, or raises the throughput
    of a GPU, by 1 % or more, without a mean E2E that is longer by as much, or another of them that it harms more.
    Changes without more GPUs come first, of these those of no number format, then by the largest gain. Those that
    cannot run are dropped; the changes of all scenarios are simulated in one call.
    """
    settings_of = {row["deployment_id"]: row for row in deployment_settings.to_pylist()}
    planned = {row["scenario_id"]: row for row in scenarios.to_pylist()}
    before = {row["scenario_id"]: row for row in scenario_summary.to_pylist()}
    changed: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for row in advice_questions.to_pylist():
        name, flags = row["scenario_id"], read_flags(row, "advice_questions", "flags")
        if name not in before:
            raise unknown("scenario", name, before, "The table scenarios lists them.")
        deployed = settings_of[before[name]["deployment_id"]]
        changes = [*alternatives(deployed, flags), *_replicas(deployed, planned[name]), *wider_graphs(deployed)]
        changed += [(name, change, {**flags, **change}) for _, change in changes]
    rows = []
    for (name, change, _), after in zip(changed, _summaries([flags for *_, flags in changed], fork), strict=True):
        if after is not None and (gains := _gains(before[name], after)):
            deployed = settings_of[before[name]["deployment_id"]]
            rows.append(_row(before[name], after, change, _value_before(change, deployed, planned[name])) | gains)
    order = {name: number for number, name in enumerate(advice_questions["scenario_id"].to_pylist())}
    gpus = {name: row["gpus"] for name, row in before.items()}

    def free_first(row: Mapping[str, Any]) -> tuple[int, bool, bool, float]:
        name = row["scenario_id"]
        return order[name], row["gpus"] > gpus[name], row["changes_numerics"], -row["most_gain"]

    rows.sort(key=free_first)
    return rows


def _summaries(rows: Sequence[Mapping[str, Any]], fork: Callable[[], Session]) -> list[dict[str, Any] | None]:
    """Simulate rows of flags and return the summary of each; None: it cannot be planned."""
    with fork() as session:
        plan = plan_rows(session, rows, on_fault="collect", origin="")
        give_plan(session, plan.deployments_of(plan.planned), plan.planned)
        after = {row["scenario_id"]: row for row in session.table("scenario_summary").to_pylist()}
    return [after[scenario["scenario_id"]] if scenario else None for scenario in plan.scenarios]


def _gains(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the gains of a change, as shares; None: it does not help, or fewer requests are served."""
    if not after["completed"] or after["completed"] < before["completed"]:
        return None
    gains = {name: 1.0 - after[name] / before[name] for name in LATENCIES if before[name] and after[name] is not None}
    throughput = after["output_throughput_per_gpu"] / before["output_throughput_per_gpu"] - 1.0
    most_helped, most_gain = max([*gains.items(), ("output_throughput_per_gpu", throughput)], key=lambda gain: gain[1])
    # in an open loop fewer GPUs always have a higher throughput per GPU: with longer latencies that is no gain
    harms_more = (1.0 - min(gains.values())) * min(1.0 - max(gains.values()), 1.0 / (1.0 + throughput)) > 1.0
    if most_gain < LEAST_GAIN or gains["e2e_mean_ms"] < -LEAST_GAIN or harms_more:
        return None
    e2e = gains["e2e_mean_ms"]
    return {"e2e_gain": e2e, "throughput_gain": throughput, "most_helped": most_helped, "most_gain": most_gain}


def _row(
    before: Mapping[str, Any], after: Mapping[str, Any], change: Mapping[str, Any], value_before: Any
) -> dict[str, Any]:
    ((setting, value),) = change.items()
    return {
        "scenario_id": before["scenario_id"],
        "setting": setting,
        "stated": _word(value_before),
        "value": _word(value),
        "gpus": after["gpus"],
        "changes_numerics": setting in NUMERICS,
        **{f"{name}_before": before[name] for name in FIGURES},
        **{f"{name}_after": after[name] for name in FIGURES},
    }


def _value_before(change: Mapping[str, Any], settings: Mapping[str, Any], planned: Mapping[str, Any]) -> Any:
    """Return the value of a setting before its change."""
    (setting,) = change
    if setting == "max_cudagraph_capture_size":
        return settings["graph_max_tokens"]
    if setting == "enforce_eager":
        return settings["graph_max_tokens"] == 0
    return settings.get(COLUMNS.get(setting, setting), planned.get(setting) or 1)


def _replicas(settings: Mapping[str, Any], scenario: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the change to twice the replicas: of the decode pool, of all replicas where they are set, else of dp."""
    name = next((name for name in ("decode_replicas", "replicas") if scenario[name]), None)
    if name is None:
        name = "decode_replicas" if scenario["prefill_deployment_id"] else "data_parallel_size"
    value = 2 * (settings["dp"] if name == "data_parallel_size" else scenario[name] or 1)
    return [(f"{name}={value}", {name: value})]


def wider_graphs(settings: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the change that captures CUDA graphs up to a full batch, where they end below it.

    >>> wider_graphs({"graph_max_tokens": 128, "max_num_seqs": 256, "query_tokens": 1})
    [('max_cudagraph_capture_size=256', {'max_cudagraph_capture_size': 256})]
    """
    full = settings["max_num_seqs"] * settings["query_tokens"]
    if not 0 < settings["graph_max_tokens"] < full:
        return []
    return [(f"max_cudagraph_capture_size={full}", {"max_cudagraph_capture_size": full})]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
