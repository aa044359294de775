"""Summary of each scenario, as a benchmark client prints it, from sums over its requests and replicas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import rows_by_key, sorted_by, whole_sums

LATENCIES = ("mean", "p50", "p90", "p99")
PERCENTILES = (50, 90, 99)
PARTS = ("front_end", "queue", "prefill", "decode")  # of the time of a request
ENERGY = (
    *("mean_power_w", "mean_power_w_low", "mean_power_w_high"),
    *("energy_per_output_token_j", "energy_per_output_token_j_low", "energy_per_output_token_j_high"),
    *("energy_per_request_j", "energy_per_request_j_low", "energy_per_request_j_high"),
    *("carbon_per_million_tokens_g", "carbon_per_million_tokens_g_low", "carbon_per_million_tokens_g_high"),
)
CAPACITY = ("capacity", "capacity_low", "capacity_high", "capacity_limit", "load")
Columns = dict[str, pa.Array | pa.ChunkedArray]


# status of a scenario whose deployment runs, and whose requests are all rejected
NONE_SERVED = "no request was served: each is longer than the model, the KV cache or a step of the engine allows"


@produces("scenario_summary")
def summary_of(
    scenarios: pa.Table,
    deployment_settings: pa.Table,
    deployment_faults: pa.Table,
    memory_plan: pa.Table,
    deployment_tiers: pa.Table,
    scenario_tiers: pa.Table,
    request_statistics: pa.Table,
    itl_histogram: pa.Table,
    itl_percentiles: pa.Table,
    replica_totals: pa.Table,
    scenario_capacity: pa.Table,
    scenario_energy: pa.Table,
) -> pa.Table:
    """Summary of each scenario as printed by a benchmark client, and the time use of its replicas."""
    planned = pc.is_in(scenarios["deployment_id"], memory_plan["deployment_id"].combine_chunks())
    scenarios = sorted_by(scenarios.filter(planned), "scenario_id")
    names = scenarios["scenario_id"].combine_chunks()
    statistics = rows_by_key(request_statistics, "scenario_id", names)
    replicas = _replicas(names, replica_totals, memory_plan)
    columns = {"scenario_id": names, "deployment_id": scenarios["deployment_id"]}
    columns |= {name: pc.fill_null(statistics[name], 0) for name in ("requests", "completed")}
    columns["status"] = _statuses(scenarios, deployment_settings, deployment_faults)
    none_served = pc.and_(pc.equal(columns["status"], "served"), pc.equal(columns["completed"], 0))
    columns["status"] = pc.if_else(none_served, NONE_SERVED, columns["status"])
    columns["duration_s"] = statistics["duration_s"]
    columns |= {
        f"{metric}_{name}_ms": statistics[f"{metric}_{name}_ms"] for metric in ("ttft", "tpot") for name in LATENCIES
    }
    columns |= _inter_token_latencies(names, itl_histogram, itl_percentiles, replicas["itl_sum_ns"])
    columns |= {f"e2e_{name}_ms": statistics[f"e2e_{name}_ms"] for name in LATENCIES}
    columns |= _parts(statistics) | _rates(statistics, _gpus(scenarios, deployment_settings))
    columns |= {name: replicas[name].cast(pa.int64()) for name in ("steps", "preemptions")}
    drafts = _nonzero(replicas["draft_tokens"])
    columns["draft_tokens"] = drafts.cast(pa.int64())
    columns["accepted_draft_tokens"] = pc.if_else(
        pc.is_valid(drafts), replicas["accepted_draft_tokens"].cast(pa.int64()), None
    )
    columns |= _hit_rates(statistics)
    plans = rows_by_key(memory_plan, "deployment_id", scenarios["deployment_id"].combine_chunks())
    columns["kv_cache_tokens"] = plans["kv_cache_tokens"]
    columns["peak_kv_share"] = replicas["peak_kv_share"]
    for name, spent in (("gpu_s", "gpu_ns"), ("host_exposed_s", "host_ns"), ("idle_s", "idle_ns")):
        columns[name] = pc.divide(replicas[spent], 1e9)
    energy, capacity = (rows_by_key(each, "scenario_id", names) for each in (scenario_energy, scenario_capacity))
    columns |= {name: energy[name] for name in ENERGY} | {name: capacity[name] for name in CAPACITY}
    tiers = rows_by_key(deployment_tiers, "deployment_id", scenarios["deployment_id"].combine_chunks())
    labels = rows_by_key(scenario_tiers, "scenario_id", names)
    columns |= {name: labels[name] for name in ("tier", "measured_share")}
    return pa.table(columns | {"not_measured": tiers["not_measured"]})


def _float(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return values.cast(pa.float64(), safe=False)


def _nonzero(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return numbers with null for 0: a quotient by 0 is unknown."""
    return pc.if_else(pc.equal(values, 0), None, values)


def _replicas(names: pa.Array, totals: pa.Table, memory_plan: pa.Table) -> Columns:
    """Return sums over the replicas of each scenario, null without any, and the share of the fullest KV cache."""
    group = pc.index_in(totals["scenario_id"], names)
    is_known = pc.and_(
        pc.is_valid(group), pc.is_in(totals["deployment_id"], memory_plan["deployment_id"].combine_chunks())
    )
    if not pc.all(is_known).as_py():
        totals, group = totals.filter(is_known), group.filter(is_known)
    number = group.to_numpy().astype(np.int64)
    none_served = np.bincount(number, minlength=len(names)) == 0
    columns: Columns = {}
    for name in (
        *("steps", "preemptions", "gpu_ns", "host_ns", "idle_ns", "itl_sum_ns"),
        *("draft_tokens", "accepted_draft_tokens"),
    ):
        columns[name] = pa.array(whole_sums(totals[name].to_numpy(), number, len(names)), mask=none_served)
    units = rows_by_key(memory_plan, "deployment_id", totals["deployment_id"])["capacity_units"]
    capacity = pc.fill_null(_nonzero(_float(units)), np.nan).to_numpy()
    fullest = np.full(len(names), -1.0)
    np.fmax.at(fullest, number, totals["peak_kv_units"].to_numpy() / capacity)
    return columns | {"peak_kv_share": pa.array(fullest, mask=fullest < 0.0)}


def _statuses(scenarios: pa.Table, settings: pa.Table, faults: pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return "served", or why the deployments of a scenario, or their draft models, cannot run."""
    if not faults.num_rows:
        return pa.repeat("served", scenarios.num_rows)
    faults_of: dict[str, set[tuple[str, str]]] = {}
    for row in faults.to_pylist():
        faults_of.setdefault(row["deployment_id"], set()).add((row["fault"], row["sentence"]))
    drafts = dict(zip(*(settings[name].to_pylist() for name in ("deployment_id", "draft_deployment_id")), strict=True))
    sentences = []
    for deployment_ids in zip(
        *(scenarios[name].to_pylist() for name in ("deployment_id", "prefill_deployment_id")), strict=True
    ):
        drafted = [name for name in deployment_ids if name in drafts]
        broken = sorted(set().union(*(faults_of.get(name, ()) for key in drafted for name in (key, drafts[key]))))
        sentences.append("; ".join(sentence for _, sentence in broken) or "served")
    return pa.array(sentences, pa.string())


def _gpus(scenarios: pa.Table, settings: pa.Table) -> pa.Array:
    """Return the number of GPUs of all replicas; with P/D disaggregation prefill and decode replicas."""

    def engines(deployments: pa.ChunkedArray, *replicas: str) -> pa.Array:
        settings_of_each = rows_by_key(settings, "deployment_id", deployments.combine_chunks())
        count = pc.coalesce(*(scenarios[name] for name in replicas), 1)
        gpus = pc.multiply(
            pc.multiply(settings_of_each["tp"], settings_of_each["pp"]), pc.multiply(settings_of_each["dp"], count)
        )
        return pc.fill_null(gpus, 0)

    decode = engines(scenarios["deployment_id"], "decode_replicas", "replicas")
    return pc.add(decode, engines(scenarios["prefill_deployment_id"], "prefill_replicas"))


def _inter_token_latencies(names: pa.Array, histogram: pa.Table, percentiles: pa.Table, sum_ns: pa.Array) -> Columns:
    """Return mean and percentiles of inter-token latencies (ITL), ms."""
    group = pc.index_in(histogram["scenario_id"], names)
    histogram, group = histogram.filter(pc.is_valid(group)), pc.drop_null(group)
    count = whole_sums(histogram["gaps"].to_numpy(), group.to_numpy().astype(np.int64), len(names))
    columns = {"itl_mean_ms": pc.divide(pc.divide(sum_ns, pa.array(count, mask=count == 0)), 1e6)}
    for percent in PERCENTILES:
        at_percent = percentiles.filter(pc.equal(percentiles["percentile"], percent))
        columns[f"itl_p{percent}_ms"] = rows_by_key(at_percent, "scenario_id", names)["itl_ms"]
    return columns


def _parts(statistics: pa.Table) -> Columns:
    """Return queue and front-end times, ms, and the share of each part of the time of requests."""
    spent_ns = {name: _float(statistics[f"{name}_ns"]) for name in (*PARTS, "preempted")}
    completed = _nonzero(_float(statistics["completed"]))
    whole_ns = spent_ns["front_end"]
    for name in PARTS[1:]:
        whole_ns = pc.add(whole_ns, spent_ns[name])
    whole_ns = _nonzero(whole_ns)
    return {
        "queue_mean_ms": pc.divide(pc.divide(spent_ns["queue"], completed), 1e6),
        **{f"queue_{name}_ms": statistics[f"queue_{name}_ms"] for name in LATENCIES[1:]},
        "front_end_mean_ms": pc.divide(pc.divide(spent_ns["front_end"], completed), 1e6),
        **{f"{name}_share": pc.divide(spent, whole_ns) for name, spent in spent_ns.items()},
    }


def _rates(statistics: pa.Table, gpus: pa.Array) -> Columns:
    """Return throughput in requests/s and tokens/s: in all, per GPU and per user; and goodput."""
    duration_s = _nonzero(statistics["duration_s"])
    outputs = _float(statistics["output_tokens"])
    output_throughput = pc.divide(outputs, duration_s)
    return {
        "request_throughput": pc.divide(_nonzero(_float(statistics["completed"])), duration_s),
        "output_throughput": output_throughput,
        "total_throughput": pc.divide(
            _float(pc.add(statistics["prompt_tokens"], statistics["output_tokens"])), duration_s
        ),
        "goodput": pc.divide(_float(statistics["good"]), duration_s),
        "gpus": gpus,
        "output_throughput_per_gpu": pc.divide(output_throughput, _float(gpus)),
        "output_throughput_per_user": pc.divide(1000.0, statistics["tpot_mean_ms"]),
    }


def _hit_rates(statistics: pa.Table) -> Columns:
    """Return the hit rates of prefix caches: cached / looked-up prompt tokens, with and without KV tiers."""
    looked_up, cached = _float(_nonzero(statistics["asked_tokens"])), statistics["cached_tokens"]
    on_device = pc.subtract(cached, statistics["tier_tokens"])
    return {
        "prefix_cache_hit_rate": pc.divide(_float(cached), looked_up),
        "device_hit_rate": pc.divide(_float(on_device), looked_up),
    }
