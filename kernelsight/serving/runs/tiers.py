"""KV tiers (host memory, disk, remote store) of deployments: capacity in KV blocks, link times, and block counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces
from kernelsight.number_format import number
from kernelsight.scenario.kv_tiers import TIERS, parse_tiers
from kernelsight.serving.engine.inputs import Tier, Tiers
from kernelsight.serving.engine.records import NO_LIMIT, WRITE_POLICIES

if TYPE_CHECKING:
    from kernelsight.serving.runs.result_tables import Replica

STORE_FABRIC = "infiniband_ndr"  # between GPUs and a remote store
MOVED = ("hit", "read", "written", "evicted")


@produces("kv_tier_settings")
def tier_rows(
    deployments: pa.Table,
    deployment_settings: pa.Table,
    kv_tiers: pa.Table,
    kv_tier_policies: pa.Table,
    kv_tier_devices: pa.Table,
    memory_plan: pa.Table,
    kv_layout: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
) -> list[dict[str, Any]]:
    """The KV tiers of each deployment: capacity in KV blocks, and times of their links.

    ``kv_tiers``: tiers as a table, which replace those of a deployment's flag ``kv_tier``; ``kv_tier_policies``: of
    engines; ``kv_tier_devices``: default rates.
    """
    rows_of_deployment: dict[str, list[dict[str, Any]]] = {}
    for row in kv_tiers.to_pylist():
        rows_of_deployment.setdefault(row["deployment_id"], []).append(row)
    by_engine = {row["engine"]: row for row in kv_tier_policies.to_pylist()}
    default_devices = {row["tier"]: row for row in kv_tier_devices.to_pylist()}
    plans, layouts = ({row["deployment_id"]: row for row in each.to_pylist()} for each in (memory_plan, kv_layout))
    gpu_of = {row["gpu"]: row for row in gpus.to_pylist()}
    port = next(row for row in fabrics.to_pylist() if row["fabric"] == STORE_FABRIC)
    deployment_of = {row["deployment_id"]: row for row in deployments.to_pylist()}
    rows = []
    for setting in deployment_settings.to_pylist():
        key = setting["deployment_id"]
        tiers = rows_of_deployment.get(key) or parse_tiers(deployment_of[key].get("kv_tier") or "none")
        if not tiers or key not in plans:
            continue
        policy = by_engine[setting["engine"]]
        policy = policy | {"write_policy": deployment_of[key].get("kv_write_policy") or policy["write_policy"]}
        tiers = sorted(tiers, key=lambda row: TIERS.index(row["tier"]))
        facts_of_deployment = (default_devices, plans[key], layouts[key], gpu_of[setting["gpu"]], port)
        rows += _of_deployment(setting, tiers, policy, *facts_of_deployment)
    return rows


def _of_deployment(
    setting: Mapping[str, Any],
    tiers: Sequence[Mapping[str, Any]],
    policy: Mapping[str, Any],
    default_devices: Mapping[str, Mapping[str, Any]],
    plan: Mapping[str, Any],
    layout: Mapping[str, Any],
    gpu: Mapping[str, Any],
    port: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the rows of one deployment; times in us a block."""
    # of layers with full attention; each GPU of a stage moves its part of a block over its own PCIe link
    gpu_bytes = layout["full_token_bytes"] / setting["pp"] * plan["block_size"]
    block_bytes = layout["full_token_bytes"] * plan["block_size"] * setting["tp"]
    host = next((row for row in tiers if row["tier"] == "host"), None)
    link_rates = [(host or {}).get(f"{op}_bytes_per_s") or gpu["pcie_bytes_per_s"] for op in ("read", "write")]
    rows = []
    for position, row in enumerate(tiers):
        name, device = row["tier"], default_devices[row["tier"]]
        times_us = []
        for op in ("read", "write"):
            rate = row[f"{op}_bytes_per_s"] or device[f"{op}_bytes_per_s"]
            if rate is None and name == "store":
                rate = port["bytes_per_s"] * port["efficiency"] * setting["tp"] * setting["pp"]
            # host memory is as fast as the PCIe link itself; rates of other tiers are of the whole engine
            times_us.append(0.0 if name == "host" or rate is None else block_bytes / rate * 1e6)
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
                "read_us": times_us[0],
                "write_us": times_us[1],
                "latency_us": latency_us,
                "shared": shared,
                "link_read_us": gpu_bytes / link_rates[0] * 1e6,
                "link_write_us": gpu_bytes / link_rates[1] * 1e6,
                "write_policy": policy["write_policy"],
                "load_ahead": policy["load"] == "ahead",
                "prefetch": policy["prefetch"],
                "assumed": _assumed(row, name, device, gpu, port, policy),
            }
        )
    return rows


def _blocks(row: Mapping[str, Any], block_bytes: float, plan: Mapping[str, Any]) -> int | None:
    """Return the capacity of a tier in KV blocks; None: unlimited."""
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
    """Return a sentence on the assumed rates and policies of a tier."""
    assumptions = []
    if row["read_bytes_per_s"] is None:
        rate = {"host": gpu["pcie_bytes_per_s"], "disk": device["read_bytes_per_s"]}.get(
            name, port["bytes_per_s"] * port["efficiency"]
        )
        source = {"host": "the PCIe rate of the GPU", "disk": device["source"]}.get(
            name, f"one {STORE_FABRIC} port a GPU"
        )
        assumptions.append(f"loads at {number(rate / 1e9)} GB/s ({source}, not measured)")
    loading = {
        "ahead": "a request loads beside the steps of others",
        "with_step": "a step waits for the loads of its prompts",
    }
    assumptions.append(f"blocks are written {policy['write_policy'].replace('_', ' ')}; {loading[policy['load']]}")
    return f"KV tier {name}: {'; '.join(assumptions)}"


def tiers_of(rows: Sequence[Mapping[str, Any]]) -> Tiers:
    """Return the tiers of one deployment as the loop takes them; ``rows``: its rows of ``kv_tier_settings``."""
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
    """Return ``kv_tier_totals``: KV blocks hit, read, written and evicted in each tier of each engine."""
    with_tiers = [replica for replica in replicas if replica.served.tiers is not None]
    sizes = [replica.served.tiers.hit.size for replica in with_tiers]
    owners = np.repeat(np.arange(len(with_tiers)), sizes)

    def repeated(names: list[str]) -> pa.Array:
        return pa.array(names, pa.string()).take(pa.array(owners))

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([*arrays, np.zeros(0, np.int64)])

    return pa.table(
        {
            "scenario_id": repeated([replica.scenario for replica in with_tiers]),
            "deployment_id": repeated([replica.deployment for replica in with_tiers]),
            "replica": pa.array([replica.number for replica in with_tiers], pa.int64()).take(pa.array(owners)),
            "position": joined([np.arange(size) for size in sizes]),
            **{
                f"{name}_blocks": joined([getattr(replica.served.tiers, name) for replica in with_tiers])
                for name in MOVED
            },
        }
    )
