"""The project's graph: its contracts, queries and marked functions, and which of its tables are cached on disk."""

from __future__ import annotations

from functools import cache

from kernelsight.caches.disk_cache import CachePolicy, cached_for_program, has_cache_folder
from kernelsight.catalog import tables as catalog
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
