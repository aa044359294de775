"""The project's graph: its contracts, queries and marked functions, and which of its tables are cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pyarrow as pa

from kernelsight.caches.disk_cache import CachePolicy, cached_for_program, has_cache_folder
from kernelsight.catalog import tables as catalog
from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.graph import Graph
from kernelsight.dataflow.locations import folder
from kernelsight.kernels.families import LOWERED

# tables cached on disk: they follow from deployments, and take longer to compute than to read
CACHED = (
    *("deployment_settings", "deployment_faults", "sharded_layers", "layer_weights", "memory_plan", "assumptions"),
    *("host_settings", "kv_layout", "gpu_formats", "step_shapes", "launch_signatures", "step_costs", "step_totals"),
    *("knot_corrections", "kernel_calls", "kernel_latencies", "host_evidence", "knot_evidence", "step_cost_shares"),
    *("gpu_power", "gpu_engines", "assumed_families", "deployment_presets", "memory_defaults"),
)
# inputs of cached tables that count by their rows, not by what they were computed from
BY_CONTENT = ("knot_bounds", "deployment_families")
# given tables that change with each replay of a log: nothing computed from them is cached
UNCACHED_INPUTS = ("corrections",)


@cache
def project_graph() -> Graph:
    """Return the project's graph of nodes; with the cache on disk, it is read once for each version of the sources."""
    graph = Graph(catalog.contracts(), folder("sql"), "kernelsight", {"family": LOWERED})
    if has_cache_folder():
        graph.know(cached_for_program(catalog.program(), "nodes", graph.nodes))
    return graph


def cache_policy() -> CachePolicy:
    """Return which tables of the project's graph are cached on disk, and by what."""
    return CachePolicy(CACHED, BY_CONTENT, catalog.program, UNCACHED_INPUTS)


def embedded_facts() -> dict[str, Callable[[], pa.Table]]:
    """Return, by table, the functions that read the shipped tables: catalogue, models and fitted kernel model."""
    readers: dict[str, Callable[[], pa.Table]] = {name: partial(catalog.facts, name) for name in catalog.fact_names()}
    readers |= {name: partial(_model_facts, name) for name in ("models", "model_layers")}
    return {**readers, "eta_coefficients": _shipped_pack}


@cache
def _models() -> dict[str, pa.Table]:
    from kernelsight.models.config import load_catalogue

    tables = {}
    for name, rows in zip(("models", "model_layers"), load_catalogue(), strict=True):
        contract = catalog.contracts()[name]
        tables[name] = conform(catalog.from_rows(rows, contract), contract, origin="models.jsonl")
    return tables


@cache
def _model_facts(name: str) -> pa.Table:
    return cached_for_program(catalog.program(), f"facts {name}", lambda: _models()[name])


@cache
def _shipped_pack() -> pa.Table:
    from kernelsight.kernels.pack import default_pack

    return cached_for_program(catalog.program(), "pack", default_pack)
