"""Largest batch and longest request of each deployment's loads: labels count the step shapes up to these bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.scenario.scenario_rows import with_drafts
from kernelsight.serving.costs.knots import Reach
from kernelsight.serving.load.requests import spans_of_loads

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader


@reads("scenarios", "scenario_loads", "load_requests")
@produces("deployment_reach")
def reach_of_loads(deployments: pa.Table, *, read: Reader) -> pa.Table:
    """Largest batch and longest request of the loads of each deployment; unbounded without scenarios."""
    if read.is_available("scenarios"):
        return reach_of(*(read(name, read.columns_of(name)) for name in read.tables), deployments)
    unset = pa.nulls(deployments.num_rows, pa.int64())
    return pa.table({"deployment_id": deployments["deployment_id"], "requests": unset, "tokens": unset})


def reach_of(scenarios: pa.Table, scenario_loads: pa.Table, load_requests: pa.Table, deployments: pa.Table) -> pa.Table:
    """Return ``deployment_reach``, the largest over its scenarios; a draft model's is that of its target models."""
    load_of = dict(zip(*(scenario_loads[name].to_pylist() for name in ("scenario_id", "load_id")), strict=True))
    loads = _load_reaches(load_requests)
    by_id = {row["deployment_id"]: row for row in deployments.to_pylist()}
    reaches: dict[str, Reach] = {}
    names = ("scenario_id", "max_concurrency", "deployment_id", "prefill_deployment_id")
    columns = (_column(scenarios, name) for name in names)
    for scenario, concurrency, *serving in zip(*columns, strict=True):
        load = loads.get(load_of[scenario])
        if load is None:
            continue
        reach_of_load = Reach(min(load.requests, concurrency or load.requests), load.tokens)
        for deployment in with_drafts(filter(None, serving), by_id):
            reach_before = reaches.get(deployment, reach_of_load)
            reaches[deployment] = Reach(
                max(reach_before.requests, reach_of_load.requests), max(reach_before.tokens, reach_of_load.tokens)
            )
    return pa.table(
        {
            "deployment_id": pa.array(reaches, pa.string()),
            "requests": pa.array([reach.requests for reach in reaches.values()], pa.int64()),
            "tokens": pa.array([reach.tokens for reach in reaches.values()], pa.int64()),
        }
    )


def _load_reaches(load_requests: pa.Table) -> Mapping[str, Reach]:
    """Return, by load, its number of requests and the tokens of its longest one."""
    tokens = load_requests["prompt_tokens"].to_numpy() + load_requests["output_tokens"].to_numpy()
    spans = spans_of_loads(load_requests)
    return {load: Reach(stop - start, int(np.max(tokens[start:stop]))) for load, (start, stop) in spans.items()}


def _column(table: pa.Table, name: str) -> list:
    """Return the values of a column, None where the table lacks it."""
    return table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
