"""Labels of scenarios: how much of the GPU time that was served is measured, and the data behind each component."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.sums import whole_sums
from kernelsight.kernels.labels import component_rows, label_served
from kernelsight.kernels.pack_contents import assumed_families
from kernelsight.kernels.string_columns import combinations
from kernelsight.serving.breakdown.kernel_breakdown import launched_pairs


def tiers_of(totals: pa.Table, deployment_tiers: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of ``scenario_tiers`` of the scenarios with GPU time in ``replica_totals``, in their order."""
    tier_of = dict(zip(*(deployment_tiers[name].to_pylist() for name in ("deployment_id", "tier")), strict=True))
    names = pc.unique(totals["scenario_id"])
    number = pc.index_in(totals["scenario_id"], names).to_numpy().astype(np.int64)
    columns = [pc.fill_null(totals[name], 0).to_numpy() for name in ("measured_ns", "gpu_ns")]
    times = [whole_sums(values, number, len(names)) for values in columns]
    served: dict[int, set[str]] = {}
    for scenario, deployment in zip(number.tolist(), totals["deployment_id"].to_pylist(), strict=True):
        served.setdefault(scenario, set()).add(tier_of[deployment])
    rows = []
    for scenario, (name, measured, spent) in enumerate(zip(names.to_pylist(), *times, strict=True)):
        if spent:
            label = label_served(min(float(measured) / float(spent), 1.0), served[scenario])
            rows.append({"scenario_id": name, **label._asdict()})
    return rows


def evidence_of(uses: pa.Table, knots: pa.Table, hosts: pa.Table, coefficients: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of ``scenario_evidence``.

    ``uses``: ``step_cost_uses``; ``knots``: ``knot_evidence``; ``hosts``: ``host_evidence``.
    """
    owners, owner = combinations(uses, ["scenario_id", "deployment_id"])
    words, word = combinations(knots, ["family", "tier", "evidence"])
    keys = pc.unique(knots["deployment_id"])
    ids = [table["step_shape_id"].to_numpy() for table in (uses, knots)]
    size = max(int(shape_id.max(initial=0)) for shape_id in ids) + 1
    used, known = (
        pc.fill_null(pc.index_in(table["deployment_id"], keys), len(keys)).to_numpy().astype(np.int64) * size + shape_id
        for table, shape_id in zip((uses, knots), ids, strict=True)
    )
    order = np.argsort(known, kind="stable")
    weight, knot_us, times = uses["weight"].to_numpy(), knots["gpu_us"].to_numpy(), np.zeros(len(owners) * len(words))
    for use, place in launched_pairs(used, known[order]):
        row = order[place]
        times += np.bincount(owner[use] * len(words) + word[row], weight[use] * knot_us[row], times.size)
    times = times.reshape(len(owners), len(words))
    host_of = {row.pop("deployment_id"): {**row, "component": "host"} for row in hosts.to_pylist()}
    assumed, rows = assumed_families(coefficients), []
    for own, own_times in zip(owners, times, strict=True):
        spent = [{**words[code], "gpu_us": own_times[code]} for code in np.flatnonzero(own_times > 0.0).tolist()]
        rows += [{**own, **row} for row in (*component_rows(spent, assumed), host_of[own["deployment_id"]])]
    return rows
