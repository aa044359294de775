"""Many scenarios in one call: only what their summaries need is computed, each load drawn and each knot costed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.sweep.step_costs import put_step_costs

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

# columns of scenarios that change no request; a concurrency does so only by being there
NOT_OF_THE_LOAD = (
    *("scenario_id", "deployment_id", "max_concurrency", "keep_steps", "router", "router_cache_threshold"),
    *("router_balance_abs_threshold", "router_balance_rel_threshold"),
    *("prefill_deployment_id", "prefill_replicas", "decode_replicas", "kv_transfer_fabric"),
    *("goodput_ttft_ms", "goodput_tpot_ms", "goodput_e2el_ms"),
)
_sessions: list[Session] = []


class Partition(NamedTuple):
    """What one worker serves: rows of ``deployments`` and ``scenarios``, and the tables to give its session."""

    deployments: list[dict[str, Any]]
    scenarios: list[dict[str, Any]]
    given: dict[str, pa.Table]
    threads: int | None


def serve_partition(part: Partition) -> pa.Table:
    """Return the ``scenario_summary`` of a partition: the one function that runs here, in processes and under Ray."""
    from kernelsight.session import connect

    if not _sessions:
        _sessions.append(connect())  # a worker reads queries and facts once
    with _sessions[0].fork() as session:
        for name, table in part.given.items():
            session.give(name, table)
        return summarise(session, part)


class SharedLoads(NamedTuple):
    """The ``requests`` of each different load, one after the other, and where those of each scenario stand."""

    requests: pa.Table
    spans: dict[str, tuple[int, int]]


def summarise(session: Session, part: Partition) -> pa.Table:
    """Serve a partition's scenarios, which ``plan_grid`` checked, in a session; return their ``scenario_summary``.

    Deployments that the session has already keep their step costs.
    """
    able = give_scenarios(session, part, checked=True)
    loads = draw_loads(able)
    put_step_costs(session, able, loads, part.threads)
    serve(session, able, loads, part.threads)
    return session.table("scenario_summary")


def give_scenarios(session: Session, part: Partition, *, checked: bool = False) -> pa.Table:
    """Give a partition's deployments and scenarios; return the scenarios whose deployments can run.

    ``checked``: their contracts have seen these rows before.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from kernelsight.dataflow.rows import as_table

    known = {row["deployment_id"] for row in part.deployments}
    there = session.table("deployments")["deployment_id"].to_pylist() if "deployments" in session.available() else []
    if known != set(there):
        session.give("deployments", as_table(session, "deployments", part.deployments), trusted=checked)
    scenarios = as_table(session, "scenarios", part.scenarios)
    session.give("scenarios", scenarios, trusted=checked)
    broken = session.table("deployment_faults")["deployment_id"].combine_chunks()
    settings = session.table("deployment_settings")
    proposed_for = settings.filter(pc.is_in(settings["draft_deployment_id"], broken))["deployment_id"].combine_chunks()
    broken = pa.concat_arrays([broken, proposed_for])
    fails = [pc.is_in(scenarios[name], broken) for name in ("deployment_id", "prefill_deployment_id")]
    return scenarios.filter(pc.invert(pc.or_(*fails)))


def serve(session: Session, scenarios: pa.Table, loads: SharedLoads, threads: int | None = None) -> None:
    """Simulate scenarios and put what their summaries read; no request has a row, no use of step costs is counted."""
    from kernelsight.serving.simulate import read_inputs
    from kernelsight.sweep.serving import summary_tables

    if not scenarios.num_rows:
        for name in ("request_statistics", "itl_histogram", "itl_percentiles", "replica_totals"):
            session.put(name, session.graph.known(name).schema.empty_table())
        return
    shared = {"scenarios": scenarios, "requests": loads.requests}
    if scenarios["prefill_deployment_id"].null_count == scenarios.num_rows:
        shared["kv_transfers"] = session.graph.known("kv_transfers").schema.empty_table()  # a query less
    names = session.graph.node("request_events").inputs
    inputs = {name: shared[name] if name in shared else session.table(name) for name in names}
    for name, rows in summary_tables(read_inputs(*inputs.values(), spans=loads.spans), threads).items():
        session.put(name, rows)


def draw_loads(scenarios: pa.Table) -> SharedLoads:
    """Draw the loads of scenarios; each once, however many deployments it is put on."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from kernelsight.serving.load import draw_requests

    stated = scenarios.drop_columns([name for name in NOT_OF_THE_LOAD if name in scenarios.column_names])
    stated = stated.append_column("closed", pc.is_valid(scenarios["max_concurrency"]))
    numbers: dict[tuple, int] = {}
    rows = zip(*(column.to_pylist() for column in stated.columns), strict=True)
    loads = [numbers.setdefault(row, len(numbers)) for row in rows]
    firsts = np.unique(loads, return_index=True)[1]
    drawn = draw_requests(scenarios.take(pa.array(firsts)))
    edges = np.append(np.flatnonzero(drawn["request_id"].to_numpy() == 0), drawn.num_rows).tolist()
    names = scenarios["scenario_id"].to_pylist()
    return SharedLoads(drawn, {name: (edges[load], edges[load + 1]) for name, load in zip(names, loads, strict=True)})


def draw_alike(scenarios: pa.Table) -> pa.Table:
    """Return the ``requests`` of scenarios, as ``draw_requests`` does, each different load drawn once."""
    import numpy as np
    import pyarrow as pa

    drawn, spans = draw_loads(scenarios)
    rows = np.concatenate([np.arange(*span) for span in spans.values()] or [np.zeros(0, np.int64)])
    sizes = [stop - start for start, stop in spans.values()]
    owners = np.repeat(np.arange(len(spans)), sizes).astype(np.int32)
    names = pa.DictionaryArray.from_arrays(owners, pa.array(spans, pa.string())).cast(pa.string())
    return drawn.take(pa.array(rows)).set_column(0, "scenario_id", names)
