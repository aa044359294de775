"""`kernelsight sweep`: a grid of scenarios in, one result table out; resumable, on one machine or under Ray."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.report.output import note
from kernelsight.scenario.grid import Plan, flag_columns, plan_grid
from kernelsight.scenario.objectives import meets_slo, with_costs
from kernelsight.sweep.partitions import (
    REQUESTS,
    Store,
    digest_of,
    run_here,
    run_in_processes,
    run_on_ray,
    split,
    total_requests,
)
from kernelsight.sweep.summarise import Partition

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session


def sweep(
    session: Session,
    rows: list[Mapping[str, Any]],
    *,
    goodput: Mapping[str, float] | None = None,
    slo: Mapping[str, float] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    workers: int = 1,
    executor: str = "local",
    partition_requests: int | None = None,
) -> pa.Table:
    """Serve every row of flags and return one row a scenario, sorted by scenario_id; the session stays as it was.

    Columns: the flags and ``price_per_gpu_hour`` as the grid states them, those of ``scenario_summary`` (``status`` is
    served, or why the deployment cannot run), the cost of a million output tokens where there are prices, ``meets_slo``
    where ``slo`` states the largest value of summary columns. ``folder`` keeps finished partitions for ``resume``.
    InvalidInput names the row that cannot be used, and tells of a folder that belongs to another sweep.

    >>> from kernelsight.session import connect
    >>> row = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 8, "input_len": 64, "output_len": 8}
    >>> with connect() as session:
    ...     sweep(session, [row | {"max_concurrency": n} for n in (1, 2)])["completed"].to_pylist()
    [8, 8]
    """
    if not rows:
        raise InvalidInput("the grid has no row; give at least one scenario.")
    with session.fork() as fork:
        plan = plan_grid(fork, rows, goodput)
        store = Store(folder) if folder else None
        most = partition_requests or min(REQUESTS, math.ceil(total_requests(plan) / workers))
        if store:
            facts = _facts(fork, plan) | {"requests_per_partition": most}
            most = store.open(facts, resume=resume)["requests_per_partition"]
        given = {name: fork.table(name) for name in fork.given() - {"deployments", "scenarios"}}
        threads = 1 if workers > 1 and executor == "local" else None
        summary = _serve(split(plan, most, given, threads), store, workers, executor)
        return _result(fork, plan, summary, slo)


def _serve(parts: list[Partition], store: Store | None, workers: int, executor: str) -> pa.Table:
    """Run the partitions that are not finished yet, keep each as it ends, and return the rows of all."""
    import pyarrow as pa

    done = store.finished() if store else set()
    left = [number for number in range(len(parts)) if number not in done]
    waiting = [parts[number] for number in left]
    if executor == "ray":
        served: Iterator[tuple[int, pa.Table]] = run_on_ray(waiting)
    elif workers > 1 and len(waiting) > 1:
        served = run_in_processes(waiting, workers)
    else:
        served = run_here(waiting)
    tables = {}
    for position, table in _with_progress(served, waiting):
        if store:
            store.keep(left[position], table)
        else:
            tables[left[position]] = table
    return store.read(range(len(parts))) if store else pa.concat_tables([tables[number] for number in sorted(tables)])


def _with_progress(served: Iterable[tuple[int, pa.Table]], waiting: list[Partition]) -> Iterator[tuple[int, pa.Table]]:
    """Pass results on, and tell on a terminal how many scenarios are served and how long the others may take."""
    started, done = time.monotonic(), 0
    total = sum(len(part.scenarios) for part in waiting)
    shown = sys.stderr.isatty()
    for position, table in served:
        yield position, table
        done += len(waiting[position].scenarios)
        if shown:
            spent = time.monotonic() - started
            text = f"{done:,} of {total:,} scenarios, {done / spent:,.0f} a second"
            print(f"\r\033[K  {text}, {spent / done * (total - done):.0f} s left", end="", file=sys.stderr, flush=True)
    if shown and waiting:
        note("")


def _facts(session: Session, plan: Plan) -> dict[str, Any]:
    """What a sweep rests on; a folder of partitions goes on only where all of it is the same."""
    from kernelsight.scenario.run_info import run_facts

    rows = sorted(zip((row["scenario_id"] for row in plan.scenarios), plan.prices, strict=True))
    paths = {row[name] for row in plan.scenarios for name in ("trace", "lengths_from") if row.get(name)}
    return {
        "grid_sha256": digest_of(
            [*rows, *((path, digest_of(Path(path).read_bytes().hex())) for path in sorted(paths))]
        ),
        **run_facts(session),
    }


def _result(session: Session, plan: Plan, summary: pa.Table, slo: Mapping[str, float] | None) -> pa.Table:
    """Set the grid's flags beside the summary of each scenario."""
    flags = flag_columns(session, plan).sort_by("scenario_id")
    summary = summary.sort_by("scenario_id")
    assert flags["scenario_id"].equals(summary["scenario_id"]), "a scenario is lost or there twice"
    table = summary.select(["scenario_id", "deployment_id"])
    for name in flags.column_names:
        if name not in summary.column_names:
            table = table.append_column(name, flags[name])
    for field in summary.schema:
        if field.name not in table.column_names:
            table = table.append_column(field, summary[field.name])
    table = with_costs(table)
    if slo:
        table = table.append_column("meets_slo", meets_slo(table, slo))
    return table.combine_chunks()


def pareto_front(session: Session, rows: pa.Table) -> pa.Table:
    """Return the ``pareto_front`` of a sweep's rows, of those that keep the objectives where there are any."""
    import pyarrow.compute as pc

    if "meets_slo" in rows.column_names:
        rows = rows.filter(rows["meets_slo"])
    with session.fork() as fork:
        fork.put("scenario_summary", rows.select(fork.graph.known("scenario_summary").column_names))
        front = fork.table("pareto_front")
    chosen = rows.filter(pc.is_in(rows["scenario_id"], front["scenario_id"].combine_chunks()))
    return chosen.sort_by([("output_throughput_per_user", "descending"), ("scenario_id", "ascending")])
