"""Sweeps: grids of scenarios, simulated in partitions, one result row per scenario; resumable, parallel, or on Ray."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from kernelsight.sweeps.executors import Work, run_here, run_in_processes, run_on_ray
from kernelsight.sweeps.partitions import (
    PART_REQUESTS,
    PART_SCENARIOS,
    REQUESTS,
    Partition,
    PartitionServing,
    split,
    total_requests,
)
from kernelsight.sweeps.parts import Parts, digest_of
from kernelsight.sweeps.percentiles import missing_percentiles

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.dataflow.types import Column

PLANNED = ("deployments", "scenarios")
LOAD_NUMBER = "load"
FILES = ("trace", "lengths_from")
GRID_ROW = "grid_row"


class Execution(NamedTuple):
    """How the partitions of a sweep are run and saved.

    ``folder``: of finished partitions, for ``resume``; ``connect`` opens the sessions of other processes; ``report`` is
    called after each partition. ``intervals``: with 90 % intervals, which take three more simulations.
    """

    folder: str | Path | None = None
    resume: bool = False
    workers: int = 1
    executor: str = "local"
    partition_requests: int | None = None
    connect: Callable[[], Session] | None = None
    report: Report | None = None
    intervals: bool = False

    @property
    def is_here(self) -> bool:
        """Whether this process runs all."""
        return self.connect is None or (self.executor == "local" and self.workers == 1)

    @property
    def threads(self) -> int | None:
        """Threads of each task: one where others run beside it."""
        return None if self.is_here else 1


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
    parts = Parts(execution.folder) if execution.folder else None
    percentiles = missing_percentiles(session, slo)
    most = execution.partition_requests or (
        REQUESTS
        if execution.is_here and not parts
        else min(PART_REQUESTS, math.ceil(total_requests(plan) / execution.workers))
    )
    with parts.locked() if parts else contextlib.nullcontext():
        facts: dict[str, Any] = {}
        if parts:
            facts = sweep_facts(session, execution, percentiles) | {"requests_per_partition": most}
            facts |= {"grid_sha256": _grid_digest(plan)}
            facts = parts.begin(facts, resume=execution.resume)
            most = facts["requests_per_partition"]
        partitions = split(plan, most, len(plan.planned) if execution.is_here and not parts else PART_SCENARIOS)
        serve = PartitionServing(
            given_to_workers(session, execution), execution.threads, len(plan.planned) == 1, percentiles,
            execution.intervals,
        )  # fmt: skip
        summary = _serve(session, partitions, serve, parts, facts, execution)
    return with_flags(session, plan, summary, slo)


def given_to_workers(session: Session, execution: Execution) -> dict[str, pa.Table]:
    """Return the tables of a session that its workers lack, in the order in which they are given."""
    names = [] if execution.is_here else session.graph.by_reference(session.given() - set(PLANNED))
    return {name: session.table(name) for name in names}


def _serve(
    session: Session, partitions: list[Partition], serve: PartitionServing, parts: Parts | None, facts: dict[str, Any],
    execution: Execution,
) -> pa.Table:  # fmt: skip
    """Run the unfinished partitions, save each as it ends, and return the rows of all."""
    import pyarrow as pa

    keys = [digest_of([facts, partition.scenarios])[:16] for partition in partitions] if parts else []
    done = parts.finished() if parts else set()
    unfinished = [number for number in range(len(partitions)) if not parts or keys[number] not in done]
    waiting = [partitions[number] for number in unfinished]
    tables = {}
    served = run(session, waiting, Work(serve, execution.connect), execution)
    for position, table in with_progress(served, lambda at: len(waiting[at].scenarios), waiting, execution.report):
        if parts:
            parts.write(keys[unfinished[position]], table)
        else:
            tables[unfinished[position]] = table
    return parts.read(keys) if parts else pa.concat_tables([tables[number] for number in sorted(tables)])


def run(session: Session, tasks: Sequence[Any], work: Work, execution: Execution) -> Iterator[tuple[int, Any]]:
    """Run tasks as an execution says; yield the number and the result of each as it is there."""
    if execution.executor == "ray" and execution.connect:
        return run_on_ray(tasks, work)
    if execution.workers > 1 and len(tasks) > 1 and execution.connect:
        return run_in_processes(tasks, work, execution.workers)
    return run_here(tasks, work, session)


def with_progress(
    served: Iterable[tuple[int, Any]], size_of: Callable[[int], int], tasks: Sequence[Any], report: Report | None
) -> Iterator[tuple[int, Any]]:
    """Pass results on, and report the progress after each; ``size_of``: scenarios of a task, by its number."""
    done = 0
    total = sum(map(size_of, range(len(tasks))))
    for position, result in served:
        yield position, result
        done += size_of(position)
        if report:
            report(Done(done, total, "scenarios"))


def sweep_facts(session: Session, execution: Execution, percentiles: Sequence[str]) -> dict[str, Any]:
    """Return the digests and versions of a sweep's inputs beside its grid; parts are kept only if all are equal."""
    facts = {"percentiles": list(percentiles)} if percentiles else {}
    facts |= {"intervals_version": 1} if execution.intervals else {}
    return facts | run_facts(session, left_out=PLANNED)


def _grid_digest(plan: Plan) -> str:
    rows = sorted(zip((row["scenario_id"] for row in plan.planned), plan.prices, strict=True))
    return digest_of([*rows, *files_digests({row[name] for row in plan.planned for name in FILES if row.get(name)})])


def files_digests(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return the files of traces and texts, and the digest of each."""
    from kernelsight.serving.load.recorded_loads import files_of

    return [(str(file), _digest_of_file(file)) for path in sorted(paths) for file in files_of(path)]


def with_flags(
    session: Session, plan: Plan, summary: pa.Table, slo: Mapping[str, float] | None,
    named: Collection[str] = (), numbers: Iterable[int] | None = None,
) -> pa.Table:  # fmt: skip
    """Join the grid's flags and row numbers, costs and objectives to the summary of each scenario.

    ``named``: flags of the whole grid; ``numbers``: those of the plan's rows in it.
    """
    import pyarrow as pa

    flags = flag_columns(session, plan, named).sort_by("scenario_id")
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
    row_of = {row["scenario_id"]: at for at, row in zip(numbers or itertools.count(1), plan.planned, strict=False)}
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
