"""Finds the highest steady request rate that keeps the objectives, for every deployment of a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.dataflow.progress import Done, Report
from kernelsight.dataflow.python_nodes import inside, produces, reads, takes
from kernelsight.errors import InvalidInput
from kernelsight.number_format import number
from kernelsight.scenario.corrections import refuse_unused_corrections
from kernelsight.scenario.objectives import COSTS, METRICS, PRICE, Objective, objective_of, objectives_of, with_costs
from kernelsight.scenario.plan import Plan, give_plan, plan_rows
from kernelsight.scenario.stated_flags import object_text
from kernelsight.sweeps.rate_intervals import RATES, Rated, intervals_at, rates_at_ends
from kernelsight.sweeps.rate_questions import RateGrid, question_of
from kernelsight.sweeps.rate_search import Effort, HighestRate, RateSearch
from kernelsight.sweeps.steady import LEAST_REQUESTS, counted_values
from kernelsight.sweeps.trial_cache import trial_cache
from kernelsight.sweeps.trials import Trial, Trials, gap_mean, gap_percentile, give_reach
from kernelsight.sweeps.work_budget import Work

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

FIRST_RATE = 1.0
NOT_IN_GRID = ("request_rate", "max_concurrency", "trace", "ramp_up_strategy", "concurrency_ramp_s")


@reads("step_costs", "deployment_faults", "scenario_summary", "scenario_intervals")
@produces("found_rates", "rate_statistics")
def rate_tables(rate_questions: pa.Table, *, fork: Callable[[], Session], report: Report) -> dict[str, Any]:
    """Search the highest request rate that keeps the objectives of each question, by simulations of several seeds.

    Questions with equal objectives are one grid: their deployments are planned and priced together.
    """
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.rows import as_table

    questions_read = [(row["question_id"], *question_of(row)) for row in rate_questions.to_pylist()]
    grids: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for question_id, flags, grid in questions_read:
        grids.setdefault(repr(grid), []).append((question_id, flags))
    grid_of = {repr(grid): grid for *_, grid in questions_read}
    rows, statistics, done = {}, {}, 0
    for name, members in grids.items():

        def report_count(count: int, before: int = done) -> None:
            report(Done(before + count, len(questions_read), "rates"))

        with fork() as session:
            searched = _searched_rates(session, [flags for _, flags in members], grid_of[name], report_count)
        for (question_id, _), (row, figures) in zip(members, searched, strict=True):
            rows[question_id] = {"question_id": question_id, **row}
            statistics[question_id] = [{"question_id": question_id, **figure} for figure in figures]
        done += len(members)
    names = [question_id for question_id, *_ in questions_read]
    rates = as_table(contracts()["found_rates"], [rows[name] for name in names])
    figures = [row for name in names for row in statistics[name]]
    return {
        "found_rates": with_costs(rates.drop_columns(list(COSTS.values()))),
        "rate_statistics": figures,
    }


def _searched_rates(
    session: Session, rows: Sequence[Mapping[str, Any]], grid: RateGrid, report_count: Callable[[int], None]
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Search the rate of each row of flags; return its row of ``found_rates``, and its rows of ``rate_statistics``."""
    objectives = objectives_of(grid.slo)
    for row_number, row in enumerate(rows, start=1):
        for name in NOT_IN_GRID:
            if row.get(name) is not None:
                raise InvalidInput(f"row {row_number} of the grid: --find-rate varies {name}; remove it.")
    started_rows = [{"num_prompts": LEAST_REQUESTS, **row, "request_rate": FIRST_RATE} for row in rows]
    plan = plan_rows(session, started_rows, grid.goodput)
    trials = open_trials(session, plan)
    earlier_trials = trial_cache(session)
    if grid.correction is not None:
        refuse_unused_corrections(session, grid.corrections_file)
    rates: list[HighestRate | None] = []
    for scenario in plan.scenarios:
        can_run = scenario["scenario_id"] in trials.able
        search = RateSearch(trials, scenario["scenario_id"], objectives, earlier_trials) if can_run else None
        rates.append(search.run(Effort(tolerance=grid.tolerance)) if search else None)
        report_count(len(rates))
    return _rows_at(session, started_rows, grid, plan, rates)


@inside("size_answers", "deployments", "scenarios", "deployment_reach")
@takes("size_questions")
@reads(
    *("deployment_faults", "deployment_settings", "host_settings", "kv_tier_settings", "kv_transfers", "memory_plan"),
    *("load_dependencies", "load_requests", "scenario_loads", "step_costs", "step_shapes"),
)
def open_trials(session: Session, plan: Plan, work: Work | None = None) -> Trials:
    """Give planned deployments to a session, and return the trials that simulate their loads at any rate.

    ``work``: the budget of the trials.
    """
    give_plan(session, list(plan.deployments.values()), plan.planned)
    give_reach(session, plan.planned)
    return Trials(session, work=work)


def _rows_at(
    session: Session,
    started_rows: Sequence[Mapping[str, Any]],
    grid: RateGrid,
    found_plan: Plan,
    rates: Sequence[HighestRate | None],
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Simulate each row once more at its highest rate, for its summary; return it with the results of its search."""
    at_rate = [
        {**row, "request_rate": highest.rate, "num_prompts": highest.requests} if highest and highest.rate else row
        for row, highest in zip(started_rows, rates, strict=True)
    ]
    # rows that differ only in flags that a search replaces, such as num_prompts, may become one scenario
    plan = plan_rows(session, at_rate, grid.goodput, on_fault="collect")
    give_plan(session, list(found_plan.deployments.values()), plan.planned)
    summary = {row["scenario_id"]: row for row in session.table("scenario_summary").to_pylist()}
    measured = {column.name for column in session.graph.known("scenario_summary").columns if column.nullable}
    measured -= {"tier", "measured_share", "not_measured"}
    objectives = objectives_of(grid.slo)
    end_rates = _rates_at_ends(session, found_plan, started_rows, rates, objectives)
    answer_rows = []
    for index, (scenario, highest) in enumerate(zip(plan.scenarios, rates, strict=True)):
        row, rated = summary[scenario["scenario_id"]], bool(highest and highest.rate)
        row = {name: value for name, value in row.items() if rated or name not in measured}
        figures = _steady_values(highest, objectives) if rated else {}
        answer = {
            **row,
            **{name: value for name, value in figures.items() if name in measured},
            "flags": object_text(plan.flags[index]),
            "max_request_rate": highest.rate if highest else None,
            "rate_low": highest.low if highest else None,
            "rate_high": highest.high if highest else None,
            **dict(zip(("rate_if_slow", "rate_if_fast"), end_rates[index], strict=True)),
            "steady": highest.steady if rated else None,
            "num_prompts": plan.flags[index]["num_prompts"],
            "status": row["status"] if highest is None else status_of(highest),
            "meets_slo": rated,
            PRICE: plan.prices[index],
        }
        limits = (
            [{"statistic": objective.column, "most_ms": objective.most_ms} for objective in objectives] if rated else []
        )
        answer_rows.append((answer, [row | {"value_ms": figures[row["statistic"]]} for row in limits]))
    return answer_rows


def _rates_at_ends(
    session: Session,
    plan: Plan,
    started_rows: Sequence[Mapping[str, Any]],
    rates: Sequence[HighestRate | None],
    objectives: Sequence[Objective],
) -> list[tuple[float | None, float | None]]:
    """Return each row's rates if kernels and host are slow, and if they are fast; None where no rate was found."""
    rated = {
        index: Rated.of(row, highest)
        for index, (row, highest) in enumerate(zip(started_rows, rates, strict=True))
        if highest and highest.rate
    }
    at_rates = intervals_at(session, plan, list(rated.values()), [RATES] * len(rated)) if rated else []
    pairs = {
        index: rates_at_ends(intervals, highest.rate, objectives)
        for (index, highest), intervals in zip(rated.items(), at_rates, strict=True)
    }
    return [pairs.get(index, (None, None)) for index in range(len(rates))]


def status_of(rate: HighestRate, unit: str = "requests/s") -> str:
    """Return ``served``, or why no rate keeps the objectives: the nearest miss, and by how much.

    ``unit``: of the rate, requests/s or users.
    """
    if rate.rate is not None:
        return "served"
    if rate.capacity.misses:
        objective, value = rate.capacity.misses
        why = f"{objective} is asked for, and requests alone take {number(value, 3)} ms"
    elif rate.capacity.alone.lost or rate.tried.lost:
        why = "the engine rejects requests of this length"
    elif rate.tried.verdict.pressure <= 1.0:
        why = "latencies grow throughout the run at every rate that was tried"
    else:
        verdict = rate.tried.verdict
        objective = verdict.tightest
        value = verdict.pressure * objective.most_ms
        why = f"{objective} is asked for, and at {number(rate.tried.rate, 3)} {unit} it may be {number(value)} ms"
    return f"no rate keeps the objectives: {why}"


def _steady_values(rate: HighestRate, objectives: Sequence[Objective]) -> dict[str, float | None]:
    """Return latency statistics (ms) over all seeds at the highest rate, and its throughputs."""
    trials = rate.tried.trials
    standard = [
        objective_of(f"{metric}_{name}_ms", 1.0) for metric in METRICS for name in ("mean", "p50", "p90", "p99")
    ]
    values: dict[str, float | None] = {}
    for objective in [*standard, *objectives]:
        values[objective.column] = statistic(trials, objective)
    prompt, output = (float(np.mean([trial.tokens[index] for trial in trials])) for index in (0, 1))
    values["request_throughput"] = rate.rate
    values["output_throughput"] = rate.rate * output
    values["total_throughput"] = rate.rate * (prompt + output)
    return values


def statistic(trials: Sequence[Trial], objective: Objective) -> float | None:
    """Return an objective's statistic over all trials, without warm-up, in ms; None where no request has the metric."""
    if objective.metric == "itl":
        gaps = sum(trial.gaps for trial in trials)
        if not gaps.any():
            return None
        return gap_mean(gaps) if objective.percent is None else gap_percentile(gaps, objective.percent)
    values = np.concatenate([counted_values(trial.latencies[objective.metric]) for trial in trials])
    values = values[~np.isnan(values)]
    if not values.size:
        return None
    return float(values.mean() if objective.percent is None else np.percentile(values, objective.percent))
