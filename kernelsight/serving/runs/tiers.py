"""KV tiers of deployments: their sizes in KV blocks and the times of their links, and what they moved, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kernelsight.number_format import number
from kernelsight.scenario.kv_tiers import TIERS, parse_tiers
from kernelsight.serving.engine.inputs import Tier, Tiers
from kernelsight.serving.engine.records import NO_LIMIT, WRITE_POLICIES

if TYPE_CHECKING:
    from kernelsight.serving.runs.result_tables import Replica

STORE_FABRIC = "infiniband_ndr"
MOVED = ("hit", "read", "written", "evicted")


def tier_rows(
    deployments: pa.Table,
    settings: pa.Table,
    kv_tiers: pa.Table,
    policies: pa.Table,
    devices: pa.Table,
    facts: Mapping[str, pa.Table],
) -> list[dict[str, Any]]:
    """Return rows of ``kv_tier_settings``.

    ``kv_tiers``: rows that were given, which replace those of a deployment's own ``kv_tier``; ``policies``,
    ``devices``: what engines do, and usual links; ``facts``: memory_plan, kv_layout, gpus and fabrics.
    """
    rows_of_deployment: dict[str, list[dict[str, Any]]] = {}
    for row in kv_tiers.to_pylist():
        rows_of_deployment.setdefault(row["deployment_id"], []).append(row)
    by_engine = {row["engine"]: row for row in policies.to_pylist()}
    usual = {row["tier"]: row for row in devices.to_pylist()}
    plans, layouts = (
        {row["deployment_id"]: row for row in facts[name].to_pylist()} for name in ("memory_plan", "kv_layout")
    )
    gpus = {row["gpu"]: row for row in facts["gpus"].to_pylist()}
    port = next(row for row in facts["fabrics"].to_pylist() if row["fabric"] == STORE_FABRIC)
    deployment_of = {row["deployment_id"]: row for row in deployments.to_pylist()}
    rows = []
    for setting in settings.to_pylist():
        key = setting["deployment_id"]
        stated_tiers = rows_of_deployment.get(key) or parse_tiers(deployment_of[key].get("kv_tier") or "none")
        if not stated_tiers or key not in plans:
            continue
        policy = by_engine[setting["engine"]]
        policy = policy | {"write_policy": deployment_of[key].get("kv_write_policy") or policy["write_policy"]}
        parts = (policy, usual, plans[key], layouts[key], gpus[setting["gpu"]], port)
        rows += _of_deployment(setting, sorted(stated_tiers, key=lambda row: TIERS.index(row["tier"])), *parts)
    return rows


def _of_deployment(
    setting: Mapping[str, Any],
    stated_tiers: Sequence[Mapping[str, Any]],
    policy: Mapping[str, Any],
    usual: Mapping[str, Mapping[str, Any]],
    plan: Mapping[str, Any],
    layout: Mapping[str, Any],
    gpu: Mapping[str, Any],
    port: Mapping[str, Any],
) -> list[dict[str, Any]]:
    # of layers that cache every token: each GPU of a stage moves its own part over its own link
    a_gpu = layout["full_token_bytes"] / setting["pp"] * plan["block_size"]
    block_bytes = layout["full_token_bytes"] * plan["block_size"] * setting["tp"]
    host = next((row for row in stated_tiers if row["tier"] == "host"), None)
    links = [(host or {}).get(f"{way}_bytes_per_s") or gpu["pcie_bytes_per_s"] for way in ("read", "write")]
    rows = []
    for position, row in enumerate(stated_tiers):
        name, device = row["tier"], usual[row["tier"]]
        rates = []
        for way in ("read", "write"):
            rate = row[f"{way}_bytes_per_s"] or device[f"{way}_bytes_per_s"]
            if rate is None and name == "store":
                rate = port["bytes_per_s"] * port["efficiency"] * setting["tp"] * setting["pp"]
            # host memory is behind the link itself; other rates are those of the whole engine
            rates.append(0.0 if name == "host" or rate is None else block_bytes / rate * 1e6)
        latency_us = row["latency_us"]
        if latency_us is None:
            latency_us = port["latency_us"] if name == "store" else device["latency_us"]
        shared = device["shared"] if row["shared"] is None else row["shared"]
        rows.append(
            {
                "deployment_id": setting["deployment_id"],
                "position": position,
                "tier": name,
                "block_bytes": block_bytes,
                "blocks": _blocks(row, block_bytes, plan),
                "read_us": rates[0],
                "write_us": rates[1],
                "latency_us": latency_us,
                "shared": shared,
                "link_read_us": a_gpu / links[0] * 1e6,
                "link_write_us": a_gpu / links[1] * 1e6,
                "write_policy": policy["write_policy"],
                "load_ahead": policy["load"] == "ahead",
                "prefetch": policy["prefetch"],
                "assumed": _assumed(row, name, device, gpu, port, policy),
            }
        )
    return rows


def _blocks(row: Mapping[str, Any], block_bytes: float, plan: Mapping[str, Any]) -> int | None:
    """Return the capacity in KV blocks; None: no limit."""
    if row.get("capacity_factor") is not None:
        return int(row["capacity_factor"] * plan["capacity_units"] / max(plan["full_units"], 1))
    if row["capacity_bytes"] is None:
        return None
    return int(row["capacity_bytes"] // block_bytes) if block_bytes else 0


def _assumed(
    row: Mapping[str, Any],
    name: str,
    device: Mapping[str, Any],
    gpu: Mapping[str, Any],
    port: Mapping[str, Any],
    policy: Mapping[str, Any],
) -> str:
    """Return what the times of a tier rest on where they are not stated."""
    said = []
    if row["read_bytes_per_s"] is None:
        rate = {"host": gpu["pcie_bytes_per_s"], "disk": device["read_bytes_per_s"]}.get(
            name, port["bytes_per_s"] * port["efficiency"]
        )
        source = {"host": "the PCIe rate of the GPU", "disk": device["source"]}.get(
            name, f"one {STORE_FABRIC} port a GPU"
        )
        said.append(f"loads at {number(rate / 1e9)} GB/s ({source}, not measured)")
    ways = {
        "ahead": "a request loads beside the steps of others",
        "with_step": "a step waits for the loads of its prompts",
    }
    said.append(f"blocks are written {policy['write_policy'].replace('_', ' ')}; {ways[policy['load']]}")
    return f"KV tier {name}: {'; '.join(said)}"


def tiers_of(rows: Sequence[Mapping[str, Any]]) -> Tiers:
    """Return the tiers of one deployment as the loop takes them; ``rows``: of ``kv_tier_settings``."""
    if not rows:
        return Tiers()
    first = rows[0]
    tiers = tuple(
        Tier(
            NO_LIMIT if row["blocks"] is None else row["blocks"],
            row["read_us"],
            row["write_us"],
            row["latency_us"],
            row["shared"],
        )
        for row in rows
    )
    policy = WRITE_POLICIES.index(first["write_policy"])
    return Tiers(tiers, policy, first["load_ahead"], first["prefetch"], first["link_read_us"], first["link_write_us"])


def moved_rows(replicas: list[Replica]) -> pa.Table:
    """Return ``kv_tier_totals``: KV blocks that each tier of each engine gave, took and lost."""
    there = [one for one in replicas if one.served.tiers is not None]
    sizes = [one.served.tiers.hit.size for one in there]
    owners = np.repeat(np.arange(len(there)), sizes)

    def named(names: list[str]) -> pa.Array:
        return pa.array(names, pa.string()).take(pa.array(owners))

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([*parts, np.zeros(0, np.int64)])

    return pa.table(
        {
            "scenario_id": named([one.scenario for one in there]),
            "deployment_id": named([one.deployment for one in there]),
            "replica": pa.array([one.number for one in there], pa.int64()).take(pa.array(owners)),
            "position": joined([np.arange(size) for size in sizes]),
            **{f"{name}_blocks": joined([getattr(one.served.tiers, name) for one in there]) for name in MOVED},
        }
    )
