"""Which limits of a scenario's engines its requests never reach, so that more of these would change nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.engine.batch import units_held
from kernelsight.serving.engine.limits import is_plain, limits_of
from kernelsight.serving.runs.interval_ends import First, deployments_served
from kernelsight.serving.runs.world import World, shares_prefixes

# KV units that policies may keep free, as multiples of what all requests hold in the end
KEPT_FREE = 2


def never_reached(first: First) -> dict[str, set[str]]:
    """Return by resource, seats and KV cache, the scenarios that have some of it left at every moment."""
    world = first.world
    peaks = _peaks(first.middle.totals())
    found: dict[str, set[str]] = {"seats": set(), "KV cache": set()}
    for row in world.scenarios:
        name, keys = row["scenario_id"], deployments_served(world, row)
        if name not in world.spans:
            continue
        start, stop = world.spans[name]
        if all(stop - start < world.deployments[key]["max_num_seqs"] for key in keys):
            found["seats"].add(name)
        tokens = world.columns["prompt_tokens"][start:stop] + world.columns["output_tokens"][start:stop]
        largest = int(tokens.max(initial=0))
        if all(_has_room(world, row, key, largest, peaks.get((name, key))) for key in keys):
            found["KV cache"].add(name)
    return found


def _peaks(totals: pa.Table) -> dict[tuple[str, str], int]:
    """Return the KV units of the fullest engine, by scenario and deployment."""
    peaks: dict[tuple[str, str], int] = {}
    columns = (totals[name].to_pylist() for name in ("scenario_id", "deployment_id", "peak_kv_units"))
    for scenario, deployment, units in zip(*columns, strict=True):
        peaks[scenario, deployment] = max(peaks.get((scenario, deployment), 0), units)
    return peaks


def _has_room(world: World, scenario: dict[str, Any], key: str, tokens: int, peak_units: int | None) -> bool:
    """Whether no admission waited for KV units, and none was evicted; ``tokens``: of the longest request in the end.

    Either all requests together fit, or what was in use at most leaves room for one more whole request.
    """
    deployment, (start, stop) = world.deployments[key], world.spans[scenario["scenario_id"]]
    limits = limits_of(deployment, world.plans[key], 0)
    if scenario["router"] == "scored" or world.tiers.get(key):  # which look at the share that is in use
        return False
    # a step of drafts goes beyond what is kept of it
    whole = units_held.py_func(tokens + limits.drafts + 1, limits)
    if KEPT_FREE * (stop - start) * whole <= limits.capacity_units:
        return True
    if peak_units is None or limits.drafts or not is_plain(limits):
        return False
    hashed = pc.is_valid(world.requests["hash_ids"].slice(start, stop - start))
    shared = shares_prefixes(deployment, world.plans[key]) and pc.any(hashed).as_py()
    return not shared and peak_units + whole < limits.capacity_units
