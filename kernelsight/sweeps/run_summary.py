"""The summary of one scenario as a dict: figures, latencies, kernel breakdown, memory and assumptions.

And a performance cliff that a setting removes: CUDA graphs that end below the batch sizes that the scenario decodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kernelsight.errors import unknown
from kernelsight.number_format import percent
from kernelsight.present.limits_sentence import near_capacity, verdict_of
from kernelsight.scenario.alternatives import graphs_end
from kernelsight.sweeps.assumed_sentences import assumed_of

if TYPE_CHECKING:
    import numpy as np

    from kernelsight.dataflow.session import Session


# least share of decode steps above the largest graph, and least factor by which wider graphs shorten them
LEAST_SHARE, LEAST_FACTOR = 0.1, 1.05


def cliff_of(session: Session, settings: dict[str, Any], scenario_id: str) -> str | None:
    """Return the sentence on a scenario where CUDA graphs end below its batch sizes; None: they do not.

    ``settings``: of the decoding deployment. The factor in the sentence is for a decode step with the mean of these
    batch sizes, whose kernels take the mean time of all decode steps.
    """
    from kernelsight.serving.engine.host import host_of, host_times

    largest = settings["graph_max_tokens"]
    if not largest or settings["num_speculative_tokens"]:
        return None
    deployment_id = settings["deployment_id"]
    tokens, weight = _decode_steps(session, deployment_id, scenario_id)
    steps, large = float(weight.sum()), float(weight[tokens > largest].sum())
    if not large or large < LEAST_SHARE * steps:
        return None
    kernels = [
        row
        for row in session.table("kernel_breakdown").to_pylist()
        if row["scenario_id"] == scenario_id and row["phase"] == "decode" and row["family"] not in ("host", "overlap")
    ]
    calls, total_us = (sum(row[name] for row in kernels) for name in ("calls", "total_us"))
    overheads = {row["deployment_id"]: row for row in session.table("host_settings").to_pylist()}
    batch, gpu_us = round(float((weight * tokens)[tokens > largest].sum()) / large), total_us / steps
    host = host_of(overheads[deployment_id], settings, round(calls / steps))
    now_us, with_graph_us = (
        exposed_us + max(hidden_us, gpu_us)
        for hidden_us, exposed_us, _ in (
            host_times(batch, batch, 0, graph_host) for graph_host in (host, host._replace(graph_max_tokens=batch))
        )
    )
    if now_us < LEAST_FACTOR * with_graph_us:
        return None
    steps_above = f"{percent(large / steps)} of the decode steps exceed"
    return graphs_end(largest, steps_above, batch, "these", now_us / with_graph_us)


def _decode_steps(session: Session, deployment_id: str, scenario_id: str) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and weights of the step shapes between which decode steps of a scenario are interpolated."""
    import pyarrow.compute as pc

    shapes, uses = (
        rows.filter(pc.equal(rows["deployment_id"], deployment_id))
        for rows in (session.table("step_shapes"), session.table("step_cost_uses"))
    )
    shapes = shapes.filter(pc.equal(shapes["part"], "tokens"))
    uses = uses.filter(pc.and_(pc.equal(uses["phase"], "decode"), pc.equal(uses["scenario_id"], scenario_id)))
    shape_index = pc.index_in(uses["step_shape_id"], shapes["step_shape_id"].combine_chunks())
    is_known = pc.is_valid(shape_index)
    tokens = shapes["tokens"].take(shape_index.filter(is_known)).to_numpy()
    return tokens, uses["weight"].filter(is_known).to_numpy()


METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
PERCENTILES = ("mean", "p50", "p90", "p99")
# tables of the simulation itself, computed together so that it runs once
SERVED = ("scenario_summary", "request_statistics", "kernel_breakdown", "cache_over_time", "step_cost_shares")
SERVED += ("scenario_evidence",)
# tables of the summary; intervals and gains simulate the first requests again
TABLES = (*SERVED, "scenario_intervals", "resource_gains")
FIGURES = (
    "front_end_share",
    "queue_share",
    "prefill_share",
    "decode_share",
    "preempted_share",
    "request_throughput",
    "output_throughput",
    "total_throughput",
    "goodput",
    "gpus",
    "output_throughput_per_gpu",
    "output_throughput_per_user",
    "steps",
    "preemptions",
    "draft_tokens",
    "accepted_draft_tokens",
    "prefix_cache_hit_rate",
    "device_hit_rate",
    "kv_cache_tokens",
    "peak_kv_share",
    "gpu_s",
    "host_exposed_s",
    "idle_s",
    "capacity",
    "capacity_low",
    "capacity_high",
    "capacity_limit",
    "load",
)
# figures of energy: name in the summary, column of scenario_summary; each with its interval
ENERGY = {
    "j_per_output_token": "energy_per_output_token_j",
    "j_per_request": "energy_per_request_j",
    "carbon_g_per_million_tokens": "carbon_per_million_tokens_g",
}
SESSIONS_QUERY = """
select
  count(*) as n, count(*) filter (where status = 'finished') as completed,
  sum(round(duration_s * 1e9)::hugeint) filter (where status = 'finished')
    / nullif(count(*) filter (where status = 'finished'), 0) / 1e9 as mean,
  quantile_cont(duration_s, 0.5) filter (where status = 'finished') as p50,
  quantile_cont(duration_s, 0.9) filter (where status = 'finished') as p90,
  quantile_cont(duration_s, 0.99) filter (where status = 'finished') as p99
from session_metrics
"""


class RunSummary(dict[str, Any]):
    """Figures as ``simulate --format json`` nests them, which answers to the columns of ``scenario_summary`` too.

    >>> summary = RunSummary({"ttft_ms": {"p99": 86.1}}, {"ttft_p99_ms": 86.1})
    >>> summary["ttft_ms"]["p99"], summary["ttft_p99_ms"]
    (86.1, 86.1)
    """

    def __init__(self, figures: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
        super().__init__(figures)
        self._columns = columns

    def __missing__(self, name: str) -> Any:
        if name not in self._columns:
            raise unknown("figure", name, {*self, *self._columns}, "A summary has the columns of scenario_summary.")
        return self._columns[name]


def run_summary(session: Session) -> dict[str, Any]:
    """Return the summary of a session's only scenario as a dict, as ``simulate --format json`` prints it."""
    session.compute(*TABLES)
    (row,) = session.table("scenario_summary").to_pylist()
    nested = {f"{metric}_ms": {name: row[f"{metric}_{name}_ms"] for name in PERCENTILES} for metric in METRICS}
    plans, settings_of = (
        {item["deployment_id"]: item for item in session.table(name).to_pylist()}
        for name in ("memory_plan", "deployment_settings")
    )
    plan, settings = plans[row["deployment_id"]], settings_of[row["deployment_id"]]
    intervals = {
        item["metric"]: [item["low"], item["high"]] for item in session.table("scenario_intervals").to_pylist()
    }
    statistics = next(iter(session.table("request_statistics").to_pylist()), {})
    return {
        "scenario_id": row["scenario_id"],
        "model": settings["model"],
        "gpu": settings["gpu"],
        "requests": row["requests"],
        "completed": row["completed"],
        "duration_s": row["duration_s"],
        **nested,
        **{name: row[name] for name in FIGURES},
        "power_w": _with_ends(row, "mean_power_w", ("mean", "low", "high")) | _servers_power(session),
        "energy": {
            end: value
            for name, column in ENERGY.items()
            for end, value in _with_ends(row, column, (name, f"{name}_low", f"{name}_high")).items()
        },
        "interval_90": intervals,
        **verdict_of(
            *(session.table(name).to_pylist() for name in ("resource_gains", "kernel_breakdown")),
            load=row["load"],
            capacity_limit=row["capacity_limit"],
        ),
        "near_capacity": _near_capacity(session),
        "cliff": cliff_of(session, settings, row["scenario_id"]),
        "tier": row["tier"],
        "measured_share": row["measured_share"],
        "not_measured": row["not_measured"],
        "evidence": evidence_rows(session.table("scenario_evidence").to_pylist(), row["deployment_id"], settings_of),
        "mean_kv_share": _mean_kv_share(session.table("cache_over_time").to_pylist()),
        "status": _statuses(statistics),
        "memory": {name: value for name, value in plan.items() if name != "deployment_id"},
        "settings": {**settings, **_sizes(session, settings)},
        "breakdown": session.table("kernel_breakdown").drop_columns(["scenario_id"]).to_pylist(),
        "assumed": assumed_of(session, row, settings_of),
        **_replicas(session, settings_of, statistics),
        **_kv_tiers(session),
        **_sessions(session),
    }


def _sizes(session: Session, settings: dict[str, Any]) -> dict[str, int]:
    """Return the parallel sizes and the number of replicas (of decode replicas, if disaggregated) by their flags."""
    (scenario,) = session.table("scenarios").to_pylist()
    names = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    names |= {"dp": "data_parallel_size", "ep": "expert_parallel_size"}
    replicas = scenario["replicas"] or scenario["decode_replicas"] or 1
    return {flag: settings[name] for name, flag in names.items()} | {"replicas": replicas}


def _with_ends(row: dict[str, Any], column: str, names: tuple[str, str, str]) -> dict[str, float | None]:
    """Return a figure of ``scenario_summary`` and the ends of its interval, under ``names``."""
    return dict(zip(names, (row[column], row[f"{column}_low"], row[f"{column}_high"]), strict=True))


def _servers_power(session: Session) -> dict[str, float | None]:
    """Return the power in W of a server beside its GPUs, per GPU, as given; None: it is in no figure."""
    (host_power_w,) = session.table("scenarios")["host_power_w"].to_pylist()
    return {"host_per_gpu": host_power_w}


def _mean_kv_share(windows: list[dict[str, Any]]) -> float | None:
    """Return the mean used share of the KV cache over all windows; None where there are none."""
    used_s = total_s = 0.0
    for window in windows:
        length_s = window["end_s"] - window["start_s"]
        used_s += window["kv_share_mean"] * length_s
        total_s += length_s
    return used_s / total_s if total_s else None


def _near_capacity(session: Session) -> str | None:
    statistics_at = {row["end"]: row for row in session.table("request_statistics_at_ends").to_pylist()}
    return near_capacity(statistics_at.get("middle"), statistics_at.get("slower steps"))


def _kv_tiers(session: Session) -> dict[str, Any]:
    """Return each KV tier's hits, reads, writes and evictions; an empty list without tiers."""
    columns = ("tier", "hit_tokens", "read_bytes", "written_bytes", "evicted_bytes")
    if not session.table("kv_tier_settings").num_rows:
        return {"kv_tiers": []}
    rows = session.table("kv_tier_usage").sort_by("position").to_pylist()
    return {"kv_tiers": [{name: row[name] for name in columns} for row in rows]}


def _sessions(session: Session) -> dict[str, Any]:
    """Return the number of sessions and their durations in s; an empty dict where no request waits for another."""
    if not session.table("load_dependencies").num_rows:
        return {}
    (row,) = session.query(SESSIONS_QUERY).to_pylist()
    times = {name: row[name] for name in ("mean", "p50", "p90", "p99")}
    return {"sessions": {"n": row["n"], "completed": row["completed"], "duration_s": times}}


def evidence_rows(
    rows: Iterable[Mapping[str, Any]], deployment_id: str, deployments: Collection[str]
) -> list[dict[str, Any]]:
    """Return the evidence of each component of a scenario's steps; for prefill deployments ``pool`` is prefill.

    ``rows``: of ``scenario_evidence``, of the scenario.
    """
    pools = {name: {} if name == deployment_id else {"pool": "prefill"} for name in deployments}
    own = sorted(
        (row for row in rows if row["deployment_id"] in deployments),
        key=lambda row: row["deployment_id"] != deployment_id,
    )
    names = ("component", "tier", "evidence", "measured_share", "gpu_share")
    return [pools[row["deployment_id"]] | {name: row[name] for name in names} for row in own]


def _statuses(statistics: dict[str, Any]) -> dict[str, int]:
    """Return the number of requests by final status, without statuses that did not occur."""
    counts = {"finished": statistics.get("completed", 0)}
    counts |= {name: statistics.get(name, 0) for name in sorted(statistics) if name.startswith("rejected_")}
    return {name: count for name, count in counts.items() if count}


def _replicas(session: Session, settings_of: dict[str, dict[str, Any]], statistics: dict[str, Any]) -> dict[str, Any]:
    """Return the number of replicas, where it is set; with disaggregation the numbers of prefill and decode replicas.

    Disaggregation adds the settings of the prefill deployment, and the mean duration of a KV transfer in ms.
    """
    scenario = session.table("scenarios").to_pylist()[0]
    if scenario["prefill_deployment_id"] is None:
        return {"replicas": scenario["replicas"]} if scenario["replicas"] else {}
    replicas = {name: scenario[name] or 1 for name in ("prefill_replicas", "decode_replicas")}
    transfer_ms = statistics.get("kv_transfer_mean_ms")
    prefill = settings_of[scenario["prefill_deployment_id"]]
    return {"prefill_settings": prefill, **replicas, "kv_transfer_mean_ms": transfer_ms}
