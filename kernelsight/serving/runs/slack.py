"""Limits with slack: max_num_seqs and KV cache of a scenario's engines where its requests never reach them.

More of such a limit would change nothing, so that its gain is 0 without a simulation.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.engine.batch import units_held
from kernelsight.serving.engine.limits import is_plain, limits_of
from kernelsight.serving.runs.interval_ends import FirstRequests, deployments_served
from kernelsight.serving.runs.shared_prefixes import shares_prefixes
from kernelsight.serving.runs.simulation_inputs import SimulationInputs

# scheduling policies may keep as many KV units free as all requests hold when they end
KEPT_FREE = 2


def never_reached(first: FirstRequests) -> dict[str, set[str]]:
    """Return the scenarios that never reach the limit, by resource: "seats" (max_num_seqs) and "KV cache"."""
    inputs = first.inputs
    peaks = _peaks(first.middle.totals())
    unreached: dict[str, set[str]] = {"seats": set(), "KV cache": set()}
    for row in inputs.scenarios:
        name, keys = row["scenario_id"], deployments_served(inputs, row)
        if name not in inputs.spans:
            continue
        start, stop = inputs.spans[name]
        if all(stop - start < inputs.deployments[key]["max_num_seqs"] for key in keys):
            unreached["seats"].add(name)
        tokens = inputs.columns["prompt_tokens"][start:stop] + inputs.columns["output_tokens"][start:stop]
        largest = int(tokens.max(initial=0))
        if all(_kv_cache_suffices(inputs, row, key, largest, peaks.get((name, key))) for key in keys):
            unreached["KV cache"].add(name)
    return unreached


def _peaks(totals: pa.Table) -> dict[tuple[str, str], int]:
    """Return the most KV units in use on one engine, by (scenario, deployment)."""
    peaks: dict[tuple[str, str], int] = {}
    columns = (totals[name].to_pylist() for name in ("scenario_id", "deployment_id", "peak_kv_units"))
    for scenario, deployment, units in zip(*columns, strict=True):
        peaks[scenario, deployment] = max(peaks.get((scenario, deployment), 0), units)
    return peaks


def _kv_cache_suffices(
    inputs: SimulationInputs, scenario: dict[str, Any], key: str, tokens: int, peak_units: int | None
) -> bool:
    """Whether no request waited for KV units or was preempted; ``tokens``: of the longest request at its end.

    Either all requests fit together, or one more whole request fits beside the most units that were in use.
    """
    deployment, (start, stop) = inputs.deployments[key], inputs.spans[scenario["scenario_id"]]
    limits = limits_of(deployment, inputs.plans[key], 0)
    # a scored router and KV tiers look at the share of the KV cache that is in use
    if scenario["router"] == "scored" or inputs.tiers.get(key):
        return False
    # drafts that are rejected hold KV units within their step
    request_units = units_held.py_func(tokens + limits.drafts + 1, limits)
    if KEPT_FREE * (stop - start) * request_units <= limits.capacity_units:
        return True
    if peak_units is None or limits.drafts or not is_plain(limits):
        return False
    has_hashes = pc.is_valid(inputs.requests["hash_ids"].slice(start, stop - start))
    shares = shares_prefixes(deployment, inputs.plans[key]) and pc.any(has_hashes).as_py()
    return not shares and peak_units + request_units < limits.capacity_units
