"""Labels of scenarios, and sentences on their assumptions, those with the largest share of the time first.

A label says how much of the GPU time that was served is measured, and the data behind each component.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import whole_sums
from kernelsight.kernels.labels import component_rows, label_served
from kernelsight.kernels.portability import danger_sentences, in_danger
from kernelsight.kernels.string_columns import combinations
from kernelsight.number_format import percent
from kernelsight.serving.breakdown.kernel_breakdown import launched_pairs

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


@produces("scenario_tiers")
def tiers_of(replica_totals: pa.Table, deployment_tiers: pa.Table) -> list[dict[str, Any]]:
    """Label of each scenario's kernel latencies: how much of the GPU time that was served is measured."""
    tier_of = dict(zip(*(deployment_tiers[name].to_pylist() for name in ("deployment_id", "tier")), strict=True))
    names = pc.unique(replica_totals["scenario_id"])
    number = pc.index_in(replica_totals["scenario_id"], names).to_numpy().astype(np.int64)
    columns = [pc.fill_null(replica_totals[name], 0).to_numpy() for name in ("measured_ns", "gpu_ns")]
    times = [whole_sums(values, number, len(names)) for values in columns]
    served: dict[int, set[str]] = {}
    for scenario, deployment in zip(number.tolist(), replica_totals["deployment_id"].to_pylist(), strict=True):
        served.setdefault(scenario, set()).add(tier_of[deployment])
    rows = []
    for scenario, (name, measured, spent) in enumerate(zip(names.to_pylist(), *times, strict=True)):
        if spent:
            label = label_served(min(float(measured) / float(spent), 1.0), served[scenario])
            rows.append({"scenario_id": name, **label._asdict()})
    return rows


@produces("scenario_evidence")
def evidence_of(
    step_cost_uses: pa.Table, knot_evidence: pa.Table, host_evidence: pa.Table, assumed_families: pa.Table
) -> list[dict[str, Any]]:
    """Data behind each component of the steps that a scenario ran: the kernels of every knot, weighted by its uses."""
    host_of = {row.pop("deployment_id"): {**row, "component": "host"} for row in host_evidence.to_pylist()}
    assumed, rows = set(assumed_families["family"].to_pylist()), []
    for own, spent in kernels_served(step_cost_uses, knot_evidence):
        rows += [{**own, **row} for row in (*component_rows(spent, assumed), host_of[own["deployment_id"]])]
    return rows


def kernels_served(step_cost_uses: pa.Table, knot_evidence: pa.Table) -> list[tuple[dict[str, Any], list[dict]]]:
    """Return for each scenario and deployment, family, tier, evidence and gpu_us of what it ran."""
    owners, owner = combinations(step_cost_uses, ["scenario_id", "deployment_id"])
    words, word = combinations(knot_evidence, ["family", "tier", "evidence"])
    keys = pc.unique(knot_evidence["deployment_id"])
    ids = [table["step_shape_id"].to_numpy() for table in (step_cost_uses, knot_evidence)]
    size = max(int(shape_id.max(initial=0)) for shape_id in ids) + 1
    used, known = (
        pc.fill_null(pc.index_in(table["deployment_id"], keys), len(keys)).to_numpy().astype(np.int64) * size + shape_id
        for table, shape_id in zip((step_cost_uses, knot_evidence), ids, strict=True)
    )
    order = np.argsort(known, kind="stable")
    weight, knot_us = step_cost_uses["weight"].to_numpy(), knot_evidence["gpu_us"].to_numpy()
    times = np.zeros(len(owners) * len(words))
    for use, place in launched_pairs(used, known[order]):
        row = order[place]
        times += np.bincount(owner[use] * len(words) + word[row], weight[use] * knot_us[row], times.size)
    times = times.reshape(len(owners), len(words))
    return [
        (own, [{**words[code], "gpu_us": own_times[code]} for code in np.flatnonzero(own_times > 0.0).tolist()])
        for own, own_times in zip(owners, times, strict=True)
    ]


def assumed_of(session: Session, row: Mapping[str, Any], settings_of: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sentences on the assumptions of a session's only scenario; ``row``: of ``scenario_summary``.

    Where the share of the steps' time that depends on one is known, it is in the sentence, the largest first.
    """
    shares = _shares(session, row)
    share_of = {item["sentence"]: shares.get(item["subject"], 0.0) for item in session.table("assumptions").to_pylist()}
    sentences = [
        f"{percent(share, 1)} of the time: {sentence}" if share else sentence
        for sentence, share in sorted(share_of.items(), key=lambda item: -item[1])
    ]
    uses = (session.table(name) for name in ("step_cost_uses", "knot_evidence"))
    served = [row for _, kernels in kernels_served(*uses) for row in kernels]
    sentences = danger_sentences(in_danger(served, lambda: session.table("eta_portability"))) + sentences
    transfers = [item["assumed"] for item in session.table("kv_transfers").to_pylist()]
    transfers += [item["assumed"] for item in session.table("kv_tier_settings").to_pylist()]
    without_effect = [
        *_routing(session, settings_of),
        *_priorities(session, settings_of),
        *_burstiness(session),
        *_shorter_trace(session),
    ]
    return list(dict.fromkeys([*_adapters(session, settings_of), *sentences, *transfers, *without_effect]))


def _shares(session: Session, row: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of all steps' time that depends on each assumed subject."""
    gpu_s, host_s = row["gpu_s"] or 0.0, row["host_exposed_s"] or 0.0
    if not gpu_s:
        return {}
    tiers = {item["deployment_id"]: item["assumed_families"] for item in session.table("deployment_tiers").to_pylist()}
    assumed_families = (tiers[row["deployment_id"]] or "").split(", ")
    kernels = session.table("kernel_breakdown").select(["family", "share"]).to_pylist()
    share = sum(item["share"] for item in kernels if item["family"] in assumed_families)
    return {"kernel constants": share * gpu_s / (gpu_s + host_s), "host overhead": host_s / (gpu_s + host_s)}


def _routing(session: Session, settings_of: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sentences on independent replicas, and on a prefix-aware router without prefixes to route by."""
    scenario = session.table("scenarios").to_pylist()[0]
    front = scenario["prefill_deployment_id"] or scenario["deployment_id"]
    engines = settings_of[front]["dp"] * (scenario["prefill_replicas"] or scenario["replicas"] or 1)
    if engines == 1 and scenario["router"] not in (None, "round_robin") and (scenario["decode_replicas"] or 1) == 1:
        return [f"router {scenario['router']} has no effect: one replica serves all requests"]
    sentences = [f"the {scenario['replicas']} replicas step independently"] if scenario["replicas"] else []
    if engines > 1 and scenario["router"] == "scored":
        return [
            *sentences,
            "the router sees cache, KV use and queue of each replica at once; llm-d scrapes them at intervals",
        ]
    if scenario["router"] != "prefix_aware" or engines == 1:
        return sentences
    plan = next(row for row in session.table("memory_plan").to_pylist() if row["deployment_id"] == front)
    requests = session.table("requests")
    if requests["hash_ids"].null_count == requests.num_rows:
        why = "the requests have no block hashes"
    elif not settings_of[front]["enable_prefix_caching"]:
        why = "prefix caching is off"
    elif plan["full_units"] == 0 or plan["sequence_units"] > 0:
        why = f"prefixes of {settings_of[front]['model']} cannot be shared"
    else:
        return sentences
    return [*sentences, f"{why}: the prefix-aware router sends each request to the least loaded replica"]


def _priorities(session: Session, settings_of: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sentence on priority levels where no engine schedules by priority."""
    (scenario,) = session.table("scenarios").to_pylist()
    levels = scenario["num_priorities"] or 1
    if levels == 1 or any(
        deployment_settings["scheduling_policy"] == "priority" for deployment_settings in settings_of.values()
    ):
        return []
    return [f"the {levels:,} priority levels have no effect: the scheduling policy is fcfs, not priority"]


def _adapters(session: Session, settings_of: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sentence on adapters that the load names: that no engine serves them, or that some are on disk."""
    highest = pc.max(session.table("requests")["adapter"]).as_py()
    if highest is None:
        return []
    places = max(settings["adapter_places"] for settings in settings_of.values())
    if places == 0:
        count = f"{highest + 1:,} adapter{'s' if highest else ''}"
        return [f"requests name {count}, but enable_lora is not stated: the model answers all of them without adapters"]
    if places > highest:
        return []
    return [f"{highest + 1:,} adapters, of which host memory keeps {places:,}: others are read from disk in the step"]


def _burstiness(session: Session) -> list[str]:
    """Return the sentence on burstiness where requests do not arrive at a rate."""
    (scenario,) = session.table("scenarios").to_pylist()
    rates = (scenario[name] for name in ("request_rate", "ramp_up_strategy"))
    if scenario["burstiness"] == 1.0 or any(rate is not None and rate != math.inf for rate in rates):
        return []
    return ["burstiness has no effect: requests do not arrive at a rate"]


def _shorter_trace(session: Session) -> list[str]:
    """Return the sentence on a trace with fewer requests than asked for."""
    (scenario,) = session.table("scenarios").to_pylist()
    requests = session.table("requests")
    count = requests.num_rows - (pc.sum(requests["warmup"]).as_py() or 0)
    if scenario["trace"] is None or count >= (scenario["num_prompts"] or 0):
        return []
    return [
        f"the trace has {count:,} requests, fewer than num_prompts {scenario['num_prompts']:,}: all are served once"
    ]
