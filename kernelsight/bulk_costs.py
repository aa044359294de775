"""Step costs of many deployments: those knots alone that their loads reach, and of each kernel nothing but its time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kernelsight.serving.knots import Reach

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from kernelsight.session import Session

# families that only such layers launch: their queries are not asked where there are none, planning takes 10 ms each
ONLY_OF = {
    "batched_gemm": {"mla", "sparse"},
    "mla_prefill": {"mla"},
    "mla_decode": {"mla"},
    "sparse_attention": {"sparse"},
    "linear_attention": {"linear"},
}
# what each session's step costs were made for
_made_for: WeakKeyDictionary[Session, tuple[pa.Table, dict[str, Reach]]] = WeakKeyDictionary()


def put_step_costs(session: Session, scenarios: pa.Table, requests: pa.Table) -> None:
    """Put ``step_shapes`` and ``step_costs`` for loads into a session, unless what it has is enough for them.

    A step costs what it costs on the tables that the session would compute, bit for bit. Tables of latencies that were
    given are read as they are.
    """
    if {"step_shapes", "step_costs", "kernel_latencies", *_families(session).values()} & session.given():
        session.table("step_costs")
        return
    deployments, reach = session.table("deployments"), reaches(scenarios, requests)
    before = _made_for.get(session)
    if before and before[0] is deployments:
        known = before[1]
        reach = {key: _larger(reach.get(key), known.get(key)) for key in {**known, **reach}}
        if reach == known:
            return
    from kernelsight.serving.knots import knot_shapes

    names = ("deployment_settings", "deployment_faults", "kv_layout", "models", "kernel_implementations")
    session.put("step_shapes", knot_shapes(*map(session.table, names), reach))
    session.put("step_costs", cost_rows(session))
    _made_for[session] = deployments, reach


def reaches(scenarios: pa.Table, requests: pa.Table) -> dict[str, Reach]:
    """Return by deployment how far its loads reach; ``requests`` has those of a scenario one after the other."""
    import numpy as np
    import pyarrow.compute as pc

    if not requests.num_rows:
        return {}
    runs = pc.run_end_encode(requests["scenario_id"].combine_chunks())
    ends = runs.run_ends.to_numpy()
    starts = np.concatenate([[0], ends[:-1]])
    tokens = requests["prompt_tokens"].to_numpy() + requests["output_tokens"].to_numpy()
    counts = zip((ends - starts).tolist(), np.maximum.reduceat(tokens, starts).tolist(), strict=True)
    loads = dict(zip(runs.values.to_pylist(), counts, strict=True))
    found: dict[str, Reach] = {}
    names = ("scenario_id", "max_concurrency", "deployment_id", "prefill_deployment_id")
    for scenario, concurrency, *deployments in zip(*(scenarios[name].to_pylist() for name in names), strict=True):
        for deployment in deployments:
            if scenario in loads and deployment is not None:
                count, most = loads[scenario]
                found[deployment] = _larger(Reach(min(count, concurrency or count), most), found.get(deployment))
    return found


def _larger(one: Reach | None, other: Reach | None) -> Reach:
    return Reach(*map(max, one or other, other or one))  # type: ignore[arg-type]


def _families(session: Session) -> dict[str, str]:
    """Families whose kernels add up to step costs, and their tables of latencies."""
    node = session.graph.node("kernel_latencies")
    return {name.removesuffix("_latencies"): name for name in node.inputs} if node else {}


def cost_rows(session: Session) -> pa.Table:
    """Return the ``step_costs`` of the session's ``step_shapes``: what its query says, without a table of kernels."""
    import numpy as np
    import pyarrow as pa

    from kernelsight.roofline.latency import answers, columns_read

    shapes = session.table("step_shapes")
    names = shapes["deployment_id"].combine_chunks().dictionary_encode()
    first = np.concatenate([[0], np.cumsum(np.bincount(names.indices.to_numpy(), minlength=len(names.dictionary)))])
    picoseconds, launches = np.zeros(shapes.num_rows), np.zeros(shapes.num_rows)
    # what is not done by the layers, which pipeline stages share
    own = {"embedding": np.zeros(shapes.num_rows), "p2p": np.zeros(shapes.num_rows)}
    prices = [
        session.table(name)
        for name in ("deployment_settings", "gpus", "fabrics", "eta_coefficients", "kernel_implementations")
    ]
    kinds = set(session.table("sharded_layers")["attention"].to_pylist())
    for family in _families(session):
        table = f"{family}_calls"
        if not kinds & ONLY_OF.get(family, kinds) and table not in session.given():
            continue
        wanted = columns_read(family, session.graph.known(table).column_names)
        calls = session.select(table, {*wanted, "step_shape_id", "count"})
        if not calls.num_rows:
            continue
        time_us = answers(family, calls, *prices).latency_us
        place = pa.compute.index_in(calls["deployment_id"], names.dictionary).to_numpy()
        rows, count = first[place] + calls["step_shape_id"].to_numpy(), calls["count"].to_numpy()
        # whole numbers below 2^53: exact in any order
        spent = np.bincount(rows, _whole(time_us * 1e6) * count, shapes.num_rows)
        picoseconds += spent
        if family in own:
            own[family] += spent
        launches += np.bincount(rows, count, shapes.num_rows)
    there = np.flatnonzero(launches)
    kept = shapes.select(["deployment_id", "part", "step_shape_id", "x", "y"]).take(pa.array(there))
    kept = kept.append_column("gpu_us", pa.array(picoseconds[there] / 1e6))
    kept = kept.append_column("launches", pa.array(launches[there].astype(np.int64)))
    kept = kept.append_column("embedding_us", pa.array(own["embedding"][there] / 1e6))
    return kept.append_column("transfer_us", pa.array(own["p2p"][there] / 1e6))


def _whole(values: np.ndarray) -> np.ndarray:
    """Round to the nearest whole number, halves up, as SQL does."""
    import numpy as np

    return np.floor(values + 0.5)
