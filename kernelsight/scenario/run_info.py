"""What a saved run holds, and what it rests on: versions, command, and hashes of facts and coefficients."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

SAVED_TABLES = (
    "gpus",
    "fabrics",
    "models",
    "model_layers",
    "number_formats",
    "quantizations",
    "engine_presets",
    "engine_fusions",
    "host_overheads",
    "eta_coefficients",
    "kernel_implementations",
    "deployments",
    "scenarios",
    "requests",
    "run_info",
    "deployment_settings",
    "memory_plan",
    "host_settings",
    "assumptions",
    "step_shapes",
    "kernel_calls",
    "kernel_latencies",
    "step_costs",
    "step_cost_uses",
    "itl_histogram",
    "replica_totals",
    "serving_windows",
    "kv_transfers",
    "request_events",
    "request_metrics",
    "scenario_summary",
    "kernel_breakdown",
    "cache_over_time",
)


def give_run_info(session: Session, seed: int) -> None:
    """Give ``run_info``: versions, command, and hashes of the facts and coefficients that the run rests on."""
    import pyarrow as pa

    facts = {
        **run_facts(session),
        "command": " ".join(["kernelsight", *sys.argv[1:]]),
        "seed": str(seed),
    }
    session.give("run_info", pa.table({"fact": list(facts), "value": list(facts.values())}))


def run_facts(session: Session) -> dict[str, str]:
    """Return what a run rests on: the program's version, and hashes of contracts, facts and coefficients."""
    from kernelsight import __version__
    from kernelsight.dataflow.locations import folder

    return {
        "program_version": __version__,
        "schema_sha256": _digest(path.read_bytes() for path in sorted(folder("schemas").glob("*.json"))),
        "catalogue_sha256": _digest(_bytes_of(session, name) for name in SAVED_TABLES[:10]),
        "coefficients_sha256": _digest([_bytes_of(session, "eta_coefficients")]),
    }


def _digest(parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _bytes_of(session: Session, name: str) -> bytes:
    import pyarrow as pa

    table = session.table(name).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
