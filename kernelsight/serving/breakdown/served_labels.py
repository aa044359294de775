"""Labels of scenarios: how much of the GPU time that was served is measured, and the data behind each component."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import whole_sums
from kernelsight.kernels.labels import component_rows, label_served
from kernelsight.kernels.string_columns import combinations
from kernelsight.serving.breakdown.kernel_breakdown import launched_pairs


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
