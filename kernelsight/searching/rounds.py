"""The rounds of a search: propose, forecast, decide, measure, learn; a fold over measurements, which can resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelsight.searching import decisions as decide
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching import proposals
from kernelsight.searching.forecasts import Forecast, forecast, inputs_of
from kernelsight.searching.history import History, Outcome, believed, extended, nothing
from kernelsight.searching.targets import Target

# rows of the target, runs of each -> what was found
Measure = Callable[[np.ndarray, np.ndarray], Outcome]
DRAW, RANDOM_DRAW = 3, 4
FAILED_ELSEWHERE_COST = 3.0  # of the log latency, where all other GPUs fail
# a search has done when fewer unmeasured candidates than this are expected to be faster than the best by 2 %
STOP_BELOW = 0.3
MOST_MEASURED = 400  # a larger history is not fitted
WITHOUT_SOURCES = 10  # random measurements that a search without other GPUs begins with


class Round(NamedTuple):
    """One round: what was forecast, what was decided, and what is known after it."""

    number: int
    proposed: int
    forecast: Forecast | None
    decisions: decide.Decisions
    outcome: Outcome
    history: History  # this round included
    best: np.ndarray  # believed best row after each measurement of the round; -1: none worked
    believed_log: float
    better: float  # expected number of faster candidates before the round; nan: not forecast


class Plan(NamedTuple):
    """What does not change during a search."""

    target: Target
    scenario: Mapping[str, Any]
    inputs: gp.Inputs
    scores: np.ndarray  # of the other GPUs: mean log, worse where they fail
    base: np.ndarray


class State(NamedTuple):
    """What a search carries from round to round; follows from the measurements alone."""

    history: History
    settings: np.ndarray
    tried: np.ndarray
    best: int
    number: int


def plan_of(target: Target, scenario: Mapping[str, Any]) -> tuple[Plan, State]:
    """Return the plan of a scenario, and its state before the first round."""
    inputs = inputs_of(target, scenario["forecaster"] != "gp")
    scores = inputs.mean + FAILED_ELSEWHERE_COST * target.fails
    base = proposals.base_pool(target, scenario, scores)
    state = State(nothing(), gp.start(inputs), np.zeros(len(target.ids), dtype=np.int64), -1, 1)
    return Plan(target, scenario, inputs, scores, base), state


def rounds(target: Target, scenario: Mapping[str, Any], measure: Measure) -> Iterator[Round]:
    """Yield the rounds of a search until its budget is spent, nothing is left, or it stops by itself."""
    plan, state = plan_of(target, scenario)
    while True:
        made = next_round(plan, state)
        if made is None:
            return
        proposed, found, chosen, settings, tried, better = made
        runs = np.array([(state.history.rows == row).sum() + 1 for row in chosen.rows])
        outcome = measure(chosen.rows, runs)
        random = np.array([reason == "random" for reason in chosen.reasons])
        history = extended(state.history, state.number, chosen.rows, random, outcome)
        best, log = _track(plan, found, state.history, history)
        yield Round(state.number, proposed, found, chosen, outcome, history, best, log, better)
        state = State(history, settings, tried, int(best[-1]), state.number + 1)


def next_round(
    plan: Plan, state: State
) -> tuple[int, Forecast | None, decide.Decisions, np.ndarray, np.ndarray, float] | None:
    """Return what the next round proposes, forecasts and decides, and what follows of it; None: the search ends."""
    scenario, history = plan.scenario, state.history
    left = min(int(scenario["budget_measurements"]), MOST_MEASURED) - len(history.rows)
    spent = float(history.cost_s.sum())
    if left <= 0 or (scenario["budget_s"] is not None and spent >= scenario["budget_s"]):
        return None
    count = min(int(scenario["batch"]), left)
    if scenario["policy"] in ("random", "order"):
        chosen = _without_forecast(plan, history, count)
        return (len(plan.target.ids), None, chosen, state.settings, state.tried, np.nan) if len(chosen.rows) else None
    rows, tried = _proposed(plan, state)
    found = forecast(scenario["forecaster"], plan.target, plan.inputs, history, rows, state.settings)
    settings = state.settings if found.fit is None else found.fit.settings
    best = decide.best_of(found, plan.inputs, history)
    better = decide.expected_better(found, history, best.log) if best and found.fit is not None else np.nan
    if scenario["stop_expected_gain"] is not None and better < scenario["stop_expected_gain"]:
        return None
    chosen = _chosen(plan, state, found, best, count)
    return (len(rows), found, chosen, settings, tried, better) if len(chosen.rows) else None


def _without_forecast(plan: Plan, history: History, count: int) -> decide.Decisions:
    if plan.scenario["policy"] == "random":
        order = decide.generator(plan.scenario, 0, DRAW).permutation(len(plan.target.ids))
    else:
        order = np.argsort(plan.scores, kind="stable")
    rows = order[len(history.rows) : len(history.rows) + count]
    return decide.Decisions(rows, [plan.scenario["policy"]] * len(rows), np.full(len(rows), np.nan))


def _proposed(plan: Plan, state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that a round forecasts, and how often each row was a parent so far."""
    if plan.scenario["proposer"] == "pool":
        return proposals.pool(
            plan.target, plan.base, state.history, None if state.best < 0 else state.best
        ), state.tried
    chosen = proposals.parents(state.history, state.tried)
    if not len(chosen):
        return plan.base, state.tried
    draw = decide.generator(plan.scenario, state.number, proposals.NEIGHBOUR_DRAW)
    tried, taken = state.tried.copy(), state.history.rows
    tried[chosen] += 1
    found = []
    for parent in chosen:
        more = proposals.neighbours(
            plan.target, int(parent), int(plan.scenario["samples_per_parent"]), np.array([*taken, *found], int), draw
        )
        found += [int(row) for row in more]
    return np.union1d(np.array(found, dtype=np.int64), state.history.rows), tried


def _chosen(plan: Plan, state: State, found: Forecast, best: decide.Best | None, count: int) -> decide.Decisions:
    """Return the candidates that a round measures."""
    history, target = state.history, plan.target
    new = found.rows[~np.isin(found.rows, history.rows)]
    if not len(new):
        return decide.Decisions(new, [], np.zeros(0))
    if best is None or found.fit is None or (not target.sources and len(history.rows) < WITHOUT_SOURCES):
        if plan.inputs.sources.shape[1] and not len(history.rows):
            return decide.first_round(plan.scores, plan.inputs.sources, new, count)
        draw = decide.generator(plan.scenario, state.number, RANDOM_DRAW)
        rows = draw.choice(new, min(count, len(new)), replace=False)
        return decide.Decisions(rows, ["random"] * len(rows), np.full(len(rows), np.nan))
    if plan.scenario["proposer"] == "neighbours":
        return decide.by_mean(
            found, history.rows, min(count, proposals.PARENTS * plan.scenario["measure_per_parent"]), best.log
        )
    if plan.scenario["policy"] == "greedy":
        return decide.by_mean(found, history.rows, count, best.log)
    chosen = decide.by_gain(found, plan.inputs, history, best, count)
    if len(chosen.rows) < count:  # nothing is expected to gain: the fastest of the rest
        rest = decide.by_mean(found, np.union1d(history.rows, chosen.rows), count - len(chosen.rows), best.log)
        chosen = decide.joined(chosen, rest)
    again = decide.repeats(found, plan.inputs, history, best)
    if len(chosen.rows) and again.gains[0] > chosen.gains[-1]:
        return decide.Decisions(
            np.append(chosen.rows[:-1], again.rows),
            [*chosen.reasons[:-1], "repeat"],
            np.append(chosen.gains[:-1], again.gains),
        )
    return chosen


def _track(plan: Plan, found: Forecast | None, before: History, after: History) -> tuple[np.ndarray, float]:
    """Return the row believed to be the fastest after each measurement of a round, and its believed log latency.

    What was measured in the round itself is weighed against its forecast by their variances; the process is fitted
    again in the next round.
    """
    expected: dict[int, tuple[float, float]] = {}
    if found is not None and found.fit is not None:
        rows = np.unique(after.rows)
        mean, variance, _ = gp.predict(plan.inputs, found.fit, rows)
        expected = {int(row): (m, v) for row, m, v in zip(rows, mean, variance, strict=True)}
    held: dict[int, tuple[float, float]] = {}
    rows, mean, noise = believed(before)
    for row, log, variance in zip(rows, mean, noise, strict=True):
        held[int(row)] = expected.get(int(row), (float(log), float(variance)))
    best = []
    for place in range(len(before.rows), len(after.rows)):
        row, log = int(after.rows[place]), after.logs[place]
        if not np.isnan(log):
            prior = held.get(row) or expected.get(row)
            if prior is None:
                held[row] = (float(log), float(after.noise[place]))
            else:
                weight = prior[1] / (prior[1] + after.noise[place])
                held[row] = (prior[0] + weight * (float(log) - prior[0]), prior[1] * (1.0 - weight))
        best.append(min(held, key=lambda each: held[each][0]) if held else -1)
    return np.array(best, dtype=np.int64), held[best[-1]][0] if best and best[-1] >= 0 else np.nan
