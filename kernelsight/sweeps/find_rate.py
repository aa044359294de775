"""The highest steady request rate that keeps objectives, for every deployment of a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.errors import InvalidInput
from kernelsight.scenario.corrections import give_corrections, refuse_unused_corrections
from kernelsight.scenario.objectives import METRICS, Objective, objective_of, objectives_of, with_costs
from kernelsight.scenario.scenarios import Plan, flag_columns, give_plan, plan_rows
from kernelsight.sweeps.kept_trials import kept_trials
from kernelsight.sweeps.rate_ends import RATES, Rated, intervals_at, rates_at_ends
from kernelsight.sweeps.rate_search import FULL, Effort, Found, RateSearch
from kernelsight.sweeps.steady import LEAST_REQUESTS, counted
from kernelsight.sweeps.trials import Trial, Trials, gap_mean, gap_percentile, give_reach
from kernelsight.sweeps.work import Work

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

FIRST_RATE = 1.0
NOT_IN_GRID = ("request_rate", "max_concurrency", "trace", "ramp_up_strategy")


def find_rates(
    session: Session,
    rows: list[Mapping[str, Any]],
    slo: Mapping[str, float],
    *,
    goodput: Mapping[str, float] | None = None,
    tolerance: float = FULL.tolerance,
    correction: str | Path | pa.Table | None = None,
    report: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """Return each row's flags, its highest steady rate (requests/s), and what ``scenario_summary`` says at that rate.

    ``max_request_rate``: at it, a run of ten times ``num_prompts`` keeps every objective of ``slo`` (largest values
    of latency statistics) with 95 % confidence; null where no rate does, or the deployment cannot run, as ``status``
    says. ``rate_low``, ``rate_high``: where 90 % of single runs have their highest rate; ``rate_if_slow``,
    ``rate_if_fast``: the rate with kernels and host at either end of their 90 % intervals; 0: none down to
    0.3 of the rate. ``steady``: a horizon of 20
    mean end-to-end times, without drift. ``num_prompts`` becomes what a run of one seed took, at least 1,000 after its
    warm-up. Latencies are those of all seeds, without warm-up; other columns are those of the row's own seed.
    ``correction``: corrections that ``compare`` fitted, a file or a table. ``report`` is called with the rows that are
    done, and all. InvalidInput: rows that state a rate, a concurrency or a trace, and what ``sweep`` refuses.

    >>> from kernelsight.session import connect
    >>> row = {"model": "qwen3-0.6b", "gpu": "l4", "input_len": 256, "output_len": 8}
    >>> with connect() as session:
    ...     found = find_rates(session, [row], {"ttft_p95_ms": 200.0}).to_pylist()[0]
    >>> found["steady"], found["ttft_p95_ms"] <= 200.0, found["rate_low"] <= found["max_request_rate"]
    (True, True, True)
    """
    objectives = objectives_of(slo)
    for number, row in enumerate(rows, start=1):
        for name in NOT_IN_GRID:
            if row.get(name) is not None:
                raise InvalidInput(f"row {number} of the grid: --find-rate varies {name}; remove it.")
    with session.fork() as fork:
        stated = [{"num_prompts": LEAST_REQUESTS, **row, "request_rate": FIRST_RATE} for row in rows]
        plan = plan_rows(fork, stated, goodput)
        if correction is not None:
            give_corrections(fork, correction)
        trials = open_trials(fork, plan)
        kept = kept_trials(fork)
        if correction is not None:
            refuse_unused_corrections(fork, correction)
        found: list[Found | None] = []
        for scenario in plan.scenarios:
            able = scenario["scenario_id"] in trials.able
            effort = Effort(tolerance=tolerance)
            search = RateSearch(trials, scenario["scenario_id"], objectives, kept) if able else None
            found.append(search.run(effort) if search else None)
            if report:
                report(len(found), len(plan.scenarios))
        return _rows_at(fork, stated, goodput, plan, found, objectives)


def open_trials(session: Session, plan: Plan, work: Work | None = None) -> Trials:
    """Give a plan to a session, and return what serves its loads at any rate; ``work``: what may be simulated."""
    give_plan(session, list(plan.deployments.values()), plan.planned)
    give_reach(session, plan.planned)
    return Trials(session, work=work)


def _rows_at(
    session: Session,
    stated: Sequence[Mapping[str, Any]],
    goodput: Mapping[str, float] | None,
    first: Plan,
    found: Sequence[Found | None],
    objectives: Sequence[Objective],
) -> pa.Table:
    """Serve each row once more at its rate for its summary, and set what was found beside it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at_rate = [
        {**row, "request_rate": one.rate, "num_prompts": one.requests} if one and one.rate else row
        for row, one in zip(stated, found, strict=True)
    ]
    # rows that differ in what a search replaces alone, such as num_prompts, may end at one scenario
    plan = plan_rows(session, at_rate, goodput, on_fault="collect")
    give_plan(session, list(first.deployments.values()), plan.planned)
    summary = session.table("scenario_summary")
    place = {name: position for position, name in enumerate(summary["scenario_id"].to_pylist())}
    summary = summary.take([place[row["scenario_id"]] for row in plan.scenarios])
    has_rate = pa.array([bool(one and one.rate) for one in found])
    measured = {column.name for column in session.graph.known("scenario_summary").columns if column.nullable}
    measured -= {"tier", "not_measured"}
    columns = {
        name: pc.if_else(has_rate, summary[name], None) if name in measured else summary[name]
        for name in summary.column_names
    }
    ends = _ends(session, first, stated, found, objectives)
    steady = [_steady_values(one, objectives) if one and one.rate else {} for one in found]
    for name in dict.fromkeys(name for values in steady for name in values):
        columns[name] = pa.array([values.get(name) for values in steady], pa.float64())
    texts = zip(summary["status"].to_pylist(), found, strict=True)
    columns["status"] = pa.array([text if one is None else status_of(one) for text, one in texts])
    flags = flag_columns(session, plan)
    rows = {name: columns[name] for name in ("scenario_id", "deployment_id")}
    rows |= {name: flags[name] for name in flags.column_names if name not in summary.column_names}
    rows["request_rate"] = pa.array([one.rate if one else None for one in found], pa.float64())
    for name in ("low", "high"):
        rows[f"rate_{name}"] = pa.array([getattr(one, name) if one else None for one in found], pa.float64())
    for place, name in enumerate(("rate_if_slow", "rate_if_fast")):
        rows[name] = pa.array([pair[place] for pair in ends], pa.float64())
    rows["steady"] = pa.array([one.steady if one and one.rate else None for one in found], pa.bool_())
    rows |= {name: values for name, values in columns.items() if name not in rows}
    names = {"request_rate": "max_request_rate"}
    table = pa.table(rows).rename_columns([names.get(name, name) for name in rows])
    return with_costs(table).append_column("meets_slo", has_rate).combine_chunks()


def _ends(
    session: Session,
    plan: Plan,
    stated: Sequence[Mapping[str, Any]],
    found: Sequence[Found | None],
    objectives: Sequence[Objective],
) -> list[tuple[float | None, float | None]]:
    """Return the rates of each row if kernels and host are slow, or fast; None where no rate was found."""
    rated = {
        place: Rated(row, one) for place, (row, one) in enumerate(zip(stated, found, strict=True)) if one and one.rate
    }
    at_rates = intervals_at(session, plan, list(rated.values()), [RATES] * len(rated)) if rated else []
    pairs = {
        place: rates_at_ends(own, one.found.rate, objectives)
        for (place, one), own in zip(rated.items(), at_rates, strict=True)
    }
    return [pairs.get(place, (None, None)) for place in range(len(found))]


def status_of(found: Found) -> str:
    """Return ``served``, or why no rate keeps the objectives: the nearest miss, and by how much.

    >>> from kernelsight.sweeps.capacity import Capacity
    >>> missed = Capacity(None, 0.0, (objective_of("ttft_p99_ms", 50.0), 81.25))
    >>> status_of(Found(None, None, None, True, 0, None, None, missed))
    'no rate keeps the objectives: TTFT p99 of 50 ms is asked for, and requests alone take 81.2 ms'
    """
    if found.rate is not None:
        return "served"
    if found.capacity.misses:
        objective, value = found.capacity.misses
        why = f"{objective} is asked for, and requests alone take {value:.3g} ms"
    elif found.capacity.alone.lost or found.tried.lost:
        why = "the engine rejects requests of this length"
    elif found.tried.verdict.pressure <= 1.0:
        why = "latencies grow throughout the run at every rate that was tried"
    else:
        verdict = found.tried.verdict
        objective = verdict.tightest
        value = verdict.pressure * objective.most_ms
        why = f"{objective} is asked for, and at {found.tried.rate:.3g} requests/s it may be {value:.4g} ms"
    return f"no rate keeps the objectives: {why}"


def _steady_values(found: Found, objectives: Sequence[Objective]) -> dict[str, float | None]:
    """Return latency statistics of all seeds at the found rate, and the throughputs that it makes."""
    trials = found.tried.trials
    known = [objective_of(f"{metric}_{name}_ms", 1.0) for metric in METRICS for name in ("mean", "p50", "p90", "p99")]
    values: dict[str, float | None] = {}
    for objective in [*known, *objectives]:
        values[objective.column] = statistic(trials, objective)
    prompt, output = (float(np.mean([trial.tokens[place] for trial in trials])) for place in (0, 1))
    values["request_throughput"] = found.rate
    values["output_throughput"] = found.rate * output
    values["total_throughput"] = found.rate * (prompt + output)
    return values


def statistic(trials: Sequence[Trial], objective: Objective) -> float | None:
    """Return the statistic of an objective over all trials without warm-up, milliseconds; None without a value."""
    if objective.metric == "itl":
        gaps = sum(trial.gaps for trial in trials)
        if not gaps.any():
            return None
        return gap_mean(gaps) if objective.percent is None else gap_percentile(gaps, objective.percent)
    values = np.concatenate([counted(trial.latencies[objective.metric]) for trial in trials])
    values = values[~np.isnan(values)]
    if not values.size:
        return None
    return float(values.mean() if objective.percent is None else np.percentile(values, objective.percent))
