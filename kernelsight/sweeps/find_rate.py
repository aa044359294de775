"""The highest request rate that keeps objectives, for every deployment of a grid: bracketed and bisected together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.scenario.objectives import meets_slo, with_costs
from kernelsight.scenario.scenarios import flag_columns, give_plan, plan_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

FIRST_RATE = 1.0
BRACKET = 8.0
LOWEST_RATE, HIGHEST_RATE = 1e-4, 1e5
NOT_IN_GRID = ("request_rate", "max_concurrency", "trace", "ramp_up_strategy")


class Search(NamedTuple):
    """What is known of one row: the highest rate that kept the objectives, the lowest that did not."""

    kept: float = 0.0
    broken: float = math.inf

    def next_rate(self, tolerance: float) -> float | None:
        """Return the rate to try now, requests/s; None where the search is over."""
        if self.kept == 0.0 and math.isinf(self.broken):
            return FIRST_RATE
        if math.isinf(self.broken):
            return self.kept * BRACKET if self.kept < HIGHEST_RATE else None
        if self.kept == 0.0:
            return self.broken / BRACKET if self.broken > LOWEST_RATE else None
        return math.sqrt(self.kept * self.broken) if self.broken > self.kept * (1.0 + tolerance) else None

    def learn(self, rate: float, keeps: bool) -> Search:
        """Return the search after one more rate was tried."""
        return self._replace(kept=rate) if keeps else self._replace(broken=rate)


def find_rates(
    session: Session,
    rows: list[Mapping[str, Any]],
    slo: Mapping[str, float],
    *,
    goodput: Mapping[str, float] | None = None,
    tolerance: float = 0.01,
) -> pa.Table:
    """Return each row's flags, ``max_request_rate`` (requests/s) and what ``scenario_summary`` says at that rate.

    The rate keeps every objective of ``slo`` (largest values of summary columns), and one higher by ``tolerance`` was
    seen not to. It is null where no rate from 0.0001 on keeps them, or the deployment cannot run, as ``status`` tells;
    at or above 100,000 the search ends. Latency that grows with the rate is taken for granted. Each round serves all
    rows in one call. InvalidInput: rows that state a rate, a concurrency or a trace, and what ``sweep`` refuses.

    >>> from kernelsight.session import connect
    >>> row = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 64, "input_len": 256, "output_len": 8}
    >>> with connect() as session:
    ...     found = find_rates(session, [row], {"ttft_p99_ms": 200.0}).to_pylist()[0]
    >>> found["meets_slo"], found["ttft_p99_ms"] <= 200.0
    (True, True)
    """
    import pyarrow as pa

    for number, row in enumerate(rows, start=1):
        for name in NOT_IN_GRID:
            if row.get(name) is not None:
                raise InvalidInput(f"row {number} of the grid: --find-rate varies {name}; remove it.")
    searches = [Search() for _ in rows]
    best: dict[int, pa.Table] = {}
    with session.fork() as fork:
        plan = plan_rows(fork, [{**row, "request_rate": FIRST_RATE} for row in rows], goodput)
        deployments = list(plan.deployments.values())
        give_plan(fork, deployments, plan.planned)
        # rates change arrivals, not lengths: how far the loads reach, and so all step costs, stay as they are
        fork.give("deployment_reach", fork.table("deployment_reach"), trusted=True)
        rates = dict.fromkeys(range(len(rows)), FIRST_RATE)
        while rates:
            numbers = list(rates)
            tried = [{**rows[number], "request_rate": rates[number]} for number in numbers]
            table = _serve(fork, tried, goodput, deployments)
            for number, keeps, position in zip(
                numbers, meets_slo(table, slo).to_pylist(), range(table.num_rows), strict=True
            ):
                searches[number] = searches[number].learn(rates[number], keeps)
                if keeps or number not in best:
                    best[number] = table.slice(position, 1)
            able = [number for number in numbers if best[number]["requests"][0].as_py()]
            later = {number: searches[number].next_rate(tolerance) for number in able}
            rates = {number: rate for number, rate in later.items() if rate is not None}
        tried = [{**row, "request_rate": search.kept or FIRST_RATE} for row, search in zip(rows, searches, strict=True)]
        flags = flag_columns(fork, plan_rows(fork, tried, goodput))
        measured = [column.name for column in fork.graph.known("scenario_summary").columns if column.nullable]
        return _result(pa.concat_tables([best[number] for number in range(len(rows))]), flags, searches, measured)


def _serve(
    session: Session, rows: list[dict[str, Any]], goodput: Mapping[str, float] | None, deployments: list[dict[str, Any]]
) -> pa.Table:
    """Serve rows; their summaries, in their order. All deployments stay given, with their step costs."""
    plan = plan_rows(session, rows, goodput)
    give_plan(session, deployments, plan.planned)
    summary = session.table("scenario_summary")
    place = {name: position for position, name in enumerate(summary["scenario_id"].to_pylist())}
    return summary.take([place[row["scenario_id"]] for row in plan.planned])


def _result(summary: pa.Table, flags: pa.Table, searches: list[Search], measured: list[str]) -> pa.Table:
    """Set flags, rates and summaries side by side; the columns ``measured`` of rows without a rate are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.array([search.kept or None for search in searches], pa.float64())
    lost = pc.and_(pc.is_null(found), pc.equal(summary["status"], "served"))
    changed = {name: pc.if_else(pc.is_valid(found), summary[name], None) for name in measured}
    changed["status"] = pc.if_else(lost, "no rate keeps the objectives", summary["status"])
    stated = {name: flags[name] for name in flags.column_names if name not in summary.column_names}
    rows = {name: summary[name] for name in ("scenario_id", "deployment_id")}
    rows |= {**stated, "request_rate": found}
    rows |= {name: changed.get(name, summary[name]) for name in summary.column_names if name not in rows}
    table = pa.table(rows).rename_columns({"request_rate": "max_request_rate"})
    return with_costs(table).append_column("meets_slo", pc.is_valid(found)).combine_chunks()
