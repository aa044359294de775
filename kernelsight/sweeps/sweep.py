"""Sweeps: grids of scenarios, simulated in partitions, one result row per scenario; resumable, parallel, or on Ray."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.dataflow.progress import Done, Report
from kernelsight.errors import InvalidInput, trace_unusable
from kernelsight.files.bounded_files import read_bytes
from kernelsight.files.budget import WHOLE
from kernelsight.scenario.objectives import meets_slo, with_costs
from kernelsight.scenario.plan import Plan, flag_columns, plan_rows
from kernelsight.scenario.run_info import run_facts
from kernelsight.scenario.scenario_rows import LOAD_DEFAULTS
from kernelsight.sweeps.partitions import (
    REQUESTS,
    Partition,
    Store,
    digest_of,
    run_here,
    run_in_processes,
    run_on_ray,
    split,
    total_requests,
)
from kernelsight.sweeps.percentiles import missing_percentiles

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.dataflow.types import Column

PLANNED = ("deployments", "scenarios")
LOAD_NUMBER = "load"
GRID_ROW = "grid_row"


class Execution(NamedTuple):
    """How the partitions of a sweep are run and saved.

    ``folder``: of finished partitions, for ``resume``; ``connect`` opens the sessions of other processes; ``report`` is
    called after each partition. ``intervals``: with 90 % intervals, which take three more simulations.
    """

    folder: Path | None = None
    resume: bool = False
    workers: int = 1
    executor: str = "local"
    partition_requests: int | None = None
    connect: Callable[[], Session] | None = None
    report: Report | None = None
    intervals: bool = False


def sweep(
    session: Session,
    rows: Sequence[Mapping[str, Any]],
    *,
    goodput: Mapping[str, float] | None = None,
    slo: Mapping[str, float] | None = None,
    execution: Execution | None = None,
) -> pa.Table:
    """Simulate every row of flags in a fork, and return one row per scenario, sorted by scenario_id.

    See ``serve_plan`` for the columns. InvalidInput names the row that cannot be used.
    """
    with session.fork() as fork:
        return serve_plan(fork, plan_sweep(fork, rows, goodput), slo=slo, execution=execution)


def plan_sweep(session: Session, rows: Sequence[Mapping[str, Any]], goodput: Mapping[str, float] | None = None) -> Plan:
    """Plan the rows of a grid; models that rows name by path are added to the session's tables."""
    if not rows:
        raise InvalidInput("the grid has no rows; give at least one scenario.")
    return plan_rows(session, rows, goodput)


def serve_plan(
    session: Session, plan: Plan, *, slo: Mapping[str, float] | None = None, execution: Execution | None = None
) -> pa.Table:
    """Simulate a plan's scenarios in partitions and return one row each, sorted by scenario_id.

    Columns: the flags and ``price_per_gpu_hour`` of the grid, those of ``scenario_summary`` (``status`` is served, or
    why the deployment cannot run), the cost per million output tokens where there are prices, and with ``slo`` (largest
    values of latency statistics) ``meets_slo`` and percentiles that the summary lacks. InvalidInput: a folder that
    belongs to another sweep.
    """
    execution = execution or Execution()
    store = Store(execution.folder) if execution.folder else None
    percentiles = missing_percentiles(session, slo)
    most = execution.partition_requests or min(REQUESTS, math.ceil(total_requests(plan) / execution.workers))
    with store.locked() if store else contextlib.nullcontext():
        if store:
            facts = _facts(session, plan) | {"requests_per_partition": most}
            facts |= {"percentiles": list(percentiles)} if percentiles else {}
            facts |= {"intervals_version": 1} if execution.intervals else {}
            most = store.open(facts, resume=execution.resume)["requests_per_partition"]
        summary = _serve(session, plan, most, store, execution, percentiles)
    return _with_flags(session, plan, summary, slo)


def _serve(
    session: Session, plan: Plan, most: int, store: Store | None, execution: Execution, percentiles: tuple[str, ...]
) -> pa.Table:
    """Run the unfinished partitions, save each as it ends, and return the rows of all."""
    import pyarrow as pa

    in_process = execution.executor == "local" and execution.workers == 1
    names = [] if in_process else session.graph.by_reference(session.given() - set(PLANNED))
    given = {name: session.table(name) for name in names}
    threads = 1 if execution.executor == "local" and execution.workers > 1 else None
    partitions = split(plan, most, given, threads, percentiles, execution.intervals)
    done = store.finished() if store else set()
    unfinished = [number for number in range(len(partitions)) if number not in done]
    waiting = [partitions[number] for number in unfinished]
    tables = {}
    for position, table in _with_progress(_run(session, waiting, execution), waiting, execution.report):
        if store:
            store.keep(unfinished[position], table)
        else:
            tables[unfinished[position]] = table
    return (
        store.read(range(len(partitions))) if store else pa.concat_tables([tables[number] for number in sorted(tables)])
    )


def _run(session: Session, waiting: list[Partition], execution: Execution) -> Iterator[tuple[int, pa.Table]]:
    if execution.executor == "ray" and execution.connect:
        return run_on_ray(waiting, execution.connect)
    if execution.workers > 1 and len(waiting) > 1 and execution.connect:
        return run_in_processes(waiting, execution.workers, execution.connect)
    return run_here(waiting, session)


def _with_progress(
    served: Iterable[tuple[int, pa.Table]], waiting: list[Partition], report: Report | None
) -> Iterator[tuple[int, pa.Table]]:
    """Pass results on, and report the progress after each."""
    done = 0
    total = sum(len(partition.scenarios) for partition in waiting)
    for position, table in served:
        yield position, table
        done += len(waiting[position].scenarios)
        if report:
            report(Done(done, total, "scenarios"))


def _facts(session: Session, plan: Plan) -> dict[str, Any]:
    """Return the digests and versions of a sweep's inputs; a folder of partitions is resumed only if all are equal."""
    from kernelsight.serving.load.recorded_loads import files_of

    rows = sorted(zip((row["scenario_id"] for row in plan.planned), plan.prices, strict=True))
    paths = {row[name] for row in plan.planned for name in ("trace", "lengths_from") if row.get(name)}
    return {
        "grid_sha256": digest_of(
            [
                *rows,
                *((str(file), _digest_of_file(file)) for path in sorted(paths) for file in files_of(path)),
            ]
        ),
        **run_facts(session, left_out=PLANNED),
    }


def _with_flags(session: Session, plan: Plan, summary: pa.Table, slo: Mapping[str, float] | None) -> pa.Table:
    """Join the grid's flags and row numbers, costs and objectives to the summary of each scenario."""
    import pyarrow as pa

    flags = flag_columns(session, plan).sort_by("scenario_id")
    summary = summary.sort_by("scenario_id")
    assert flags["scenario_id"].equals(summary["scenario_id"]), "a scenario is lost or there twice"
    table = summary.select(["scenario_id", "deployment_id"])
    for name in flags.column_names:
        if name not in summary.column_names:
            table = table.append_column(flags.schema.field(name), flags[name])
    for field in summary.schema:
        if field.name not in table.column_names:
            table = table.append_column(field, summary[field.name])
    table = with_costs(table)
    if slo:
        table = table.append_column("meets_slo", meets_slo(table, slo))
    row_of = {row["scenario_id"]: number for number, row in enumerate(plan.planned, start=1)}
    table = table.append_column(GRID_ROW, pa.array([row_of[name] for name in table["scenario_id"].to_pylist()]))
    return table.combine_chunks()


def pareto_front(session: Session, rows: pa.Table, table: str = "pareto_front") -> pa.Table:
    """Return the rows of a sweep on the Pareto front, with objectives among those that keep them.

    Each load has a separate front, whose rows are together. ``table``: "energy_front" for the front of energy.
    """
    import pyarrow as pa

    if "meets_slo" in rows.column_names:
        rows = rows.filter(rows["meets_slo"])
    with session.fork() as fork:
        fork.give("scenario_summary", rows.select(fork.graph.known("scenario_summary").column_names), trusted=True)
        fork.give("scenarios", _scenarios_of(rows, fork.graph.known("scenarios").columns), trusted=True)
        front = fork.table(table)
    row_of = {name: position for position, name in enumerate(rows["scenario_id"].to_pylist())}
    # an empty list needs a type
    chosen = rows.take(pa.array([row_of[name] for name in front["scenario_id"].to_pylist()], pa.int64()))
    # the column is the number of the load in a front, the share of the capacity in a summary
    return chosen.drop_columns([LOAD_NUMBER]).append_column(LOAD_NUMBER, front[LOAD_NUMBER])


def _scenarios_of(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return rows of ``scenarios`` from a sweep's rows; a column that they lack has the load's default."""
    import pyarrow as pa

    def values(column: Column) -> pa.Array | pa.ChunkedArray:
        if column.name in rows.column_names:
            return rows[column.name]
        return pa.repeat(pa.scalar(LOAD_DEFAULTS.get(column.name), column.arrow_type), rows.num_rows)

    return pa.table({column.name: values(column) for column in columns})


def _digest_of_file(file: Path) -> str:
    def refuse(problem: str) -> InvalidInput:
        return trace_unusable(file, f"the file {problem}", "Give the path to a readable trace file.")

    return digest_of(read_bytes(file, refuse, WHOLE).hex())
