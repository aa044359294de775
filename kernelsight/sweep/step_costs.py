"""Step costs of many deployments: those knots alone that their loads reach, and of each kernel nothing but its time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kernelsight.scenario.plan import and_drafts
from kernelsight.serving.knots import Reach

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.sweep.summarise import SharedLoads

# what each session's step costs were made for
_made_for: WeakKeyDictionary[Session, tuple[pa.Table, dict[str, Reach]]] = WeakKeyDictionary()


def put_step_costs(session: Session, scenarios: pa.Table, loads: SharedLoads, threads: int | None = None) -> None:
    """Put ``step_shapes`` and ``step_costs`` for loads into a session, unless what it has is enough for them.

    A step costs what it costs on the tables that the session would compute, bit for bit. Tables of calls or latencies
    that were given are read as they are.
    """
    from kernelsight.sweep.knot_costs import families

    made = {name for family, table in families(session).items() for name in (table, f"{family}_calls")}
    if {"step_shapes", "step_tokens", "step_costs", "kernel_latencies", *made} & session.given():
        session.table("step_costs")
        return
    deployments = session.table("deployments")
    reach = reaches(scenarios, loads, deployments.to_pylist())
    before = _made_for.get(session)
    if before and before[0] is deployments:
        known = before[1]
        reach = {key: _larger(reach.get(key), known.get(key)) for key in {**known, **reach}}
        if reach == known:
            return
    from kernelsight.serving.knots import knot_shapes

    names = ("deployment_settings", "deployment_faults", "kv_layout", "models", "kernel_implementations")
    session.put("step_shapes", knot_shapes(*map(session.table, names), reach))
    session.put("step_costs", cost_rows(session, threads))
    _made_for[session] = deployments, reach


def reaches(scenarios: pa.Table, loads: SharedLoads, rows: Iterable[dict[str, Any]]) -> dict[str, Reach]:
    """Return by deployment how far its loads reach; a model that proposes tokens has those of the engines it is in."""
    import numpy as np

    spans = {span: None for span in loads.spans.values() if span[0] < span[1]}
    tokens = loads.requests["prompt_tokens"].to_numpy() + loads.requests["output_tokens"].to_numpy()
    known = {(start, stop): (stop - start, int(np.max(tokens[start:stop]))) for start, stop in spans}
    found: dict[str, Reach] = {}
    by_id = {row["deployment_id"]: row for row in rows}
    names = ("scenario_id", "max_concurrency", "deployment_id", "prefill_deployment_id")
    for scenario, concurrency, *deployments in zip(*(scenarios[name].to_pylist() for name in names), strict=True):
        for deployment in and_drafts(filter(None, deployments), by_id):
            if (span := loads.spans.get(scenario)) in known:
                count, most = known[span]
                found[deployment] = _larger(Reach(min(count, concurrency or count), most), found.get(deployment))
    return found


def _larger(one: Reach | None, other: Reach | None) -> Reach:
    return Reach(*map(max, one or other, other or one))  # type: ignore[arg-type]


def cost_rows(session: Session, threads: int | None = None) -> pa.Table:
    """Return the ``step_costs`` of the session's ``step_shapes``: what its query says, without a table of kernels."""
    import numpy as np
    import pyarrow as pa

    from kernelsight.sweep.knot_costs import knot_costs

    costs = list(knot_costs(session, threads).values())
    picoseconds, launches, embedding, transfer = (
        np.concatenate([one[field] for one in costs] or [np.zeros(0)]) for field in range(4)
    )
    there = np.flatnonzero(launches)
    kept = session.table("step_shapes").select(["deployment_id", "part", "step_shape_id", "x", "y"])
    kept = kept if there.size == launches.size else kept.take(pa.array(there))
    kept = kept.append_column("gpu_us", pa.array(picoseconds[there] / 1e6))
    kept = kept.append_column("launches", pa.array(launches[there].astype(np.int64)))
    kept = kept.append_column("embedding_us", pa.array(embedding[there] / 1e6))
    return kept.append_column("transfer_us", pa.array(transfer[there] / 1e6))
