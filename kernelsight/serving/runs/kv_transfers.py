"""Times to transfer the KV cache of a prompt from a prefill to a decode replica (P/D disaggregation)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import sorted_by
from kernelsight.number_format import number
from kernelsight.serving.runs.simulation_inputs import by_key

FABRIC = "infiniband_ndr"  # of scenarios without kv_transfer_fabric


@produces("kv_transfers")
def transfer_rows(
    scenarios: pa.Table, deployment_settings: pa.Table, kv_layout: pa.Table, fabrics: pa.Table
) -> list[dict[str, Any]]:
    """Time to transfer a prompt's KV cache from a prefill to a decode replica: bytes per GPU over one port each."""
    sent = sorted_by(scenarios.filter(pc.is_valid(scenarios["prefill_deployment_id"])), "scenario_id")
    if not sent.num_rows:
        return []
    deployments, layouts = by_key(deployment_settings, "deployment_id"), by_key(kv_layout, "deployment_id")
    ports, transfer_of_key, rows = by_key(fabrics, "fabric"), {}, []
    names = ("scenario_id", "deployment_id", "prefill_deployment_id", "kv_transfer_fabric")
    for scenario, *sides, fabric in zip(*(sent[name].to_pylist() for name in names), strict=True):
        key = (*sides, fabric or FABRIC)
        if key not in transfer_of_key:
            transfer_of_key[key] = _transfer([_sent_by(deployments[side], layouts) for side in sides], ports[key[-1]])
        rows.append({"scenario_id": scenario, **transfer_of_key[key]})
    return rows


def _sent_by(settings: Mapping[str, Any], layouts: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the bytes that a GPU of the prefill or of the decode side holds; a draft model is on one stage."""
    layout, draft = layouts[settings["deployment_id"]], layouts.get(settings["draft_deployment_id"])
    bytes_of = {
        name: layout[name] / settings["pp"] + (draft[name] if draft else 0)
        for name in ("full_token_bytes", "window_token_bytes", "sequence_bytes")
    }
    return bytes_of | {"window_tokens": max(layout["window_tokens"], draft["window_tokens"] if draft else 0)}


def _transfer(sides: list[dict[str, float]], port: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of a transfer; pipeline stages and tensor-parallel ranks send in parallel.

    ``sides``: the bytes of a GPU of each side; the GPU with the most bytes, on either side, determines the time.
    """
    largest = {name: max(side[name] for side in sides) for name in sides[0]}
    rate = port["bytes_per_s"] * port["efficiency"]
    return {
        "fabric": port["fabric"],
        "token_us": largest["full_token_bytes"] / rate * 1e6,
        "window_token_us": largest["window_token_bytes"] / rate * 1e6,
        "window_tokens": largest["window_tokens"],
        "sequence_us": largest["sequence_bytes"] / rate * 1e6,
        "latency_us": port["latency_us"],
        "assumed": (
            "each KV cache is sent in one piece after its prefill, one prompt at a time, over one "
            f"{port['fabric']} port per GPU at {number(rate / 1e9)} GB/s and {number(port['latency_us'])} us latency, "
            "without using memory in transit; the prefill replica returns the first token, and the decode replica adds "
            "no host time per request"
        ),
    }
