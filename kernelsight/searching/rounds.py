"""The loop of a search: rounds of propose, forecast, decide, measure; its state depends on the measurements alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelsight.searching import batches, proposals
from kernelsight.searching import decisions as decide
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.forecasts import LEAST_FITTED, Forecast, forecast, inputs_of
from kernelsight.searching.history import History, Outcome, empty_history, weighted_means, with_round
from kernelsight.searching.targets import Target, misleading, without_sources

# rows of the target, run numbers -> measurements
Measure = Callable[[np.ndarray, np.ndarray], Outcome]
# round, history, rows proposed before -> further rows, and the target that holds new ones; None: it has not grown
Propose = Callable[[int, History, np.ndarray], tuple[np.ndarray, Target | None]]
DRAW = 3
GIVEN = "given"  # name of an external proposer
FAILED_ELSEWHERE_COST = 3.0  # added to the log latency of a candidate that fails on all other GPUs
# a search may stop when fewer unmeasured candidates than STOP_BELOW are expected to be faster than the best by 2 %,
# after STOP_FROM measurements, from which the errors of its forecasts are known
STOP_BELOW, STOP_FROM = 0.1, 40
WITHOUT_SOURCES = 10  # random measurements at the beginning of a search without other GPUs


class Plan(NamedTuple):
    """Target, scenario and views of a search; constant over its rounds, but for ``dropped`` sources."""

    target: Target
    scenario: Mapping[str, Any]
    inputs: gp.Inputs
    views: dict[str, gp.Inputs]
    scores: np.ndarray  # (candidates,): mean log of the other GPUs, higher where they fail
    dropped: tuple[str, ...]


class State(NamedTuple):
    """State of a search between rounds; it depends on the measurements alone."""

    history: History
    settings: dict[str, np.ndarray]  # of the main forecaster and of other views
    tried: np.ndarray  # (candidates,): how often each was a parent
    best: int  # row of the believed best; -1: none
    number: int
    proposed: np.ndarray  # rows that an external proposer gave so far


class Step(NamedTuple):
    """Decisions of a round, before it measures."""

    proposed: int
    forecast: Forecast | None
    inputs: gp.Inputs  # of the forecaster
    decisions: decide.Decisions
    settings: dict[str, np.ndarray]
    tried: np.ndarray
    better: float


class Round(NamedTuple):
    """One round: its forecast, its decisions, and the history after it."""

    number: int
    step: Step
    outcome: Outcome
    history: History  # this round included
    best: np.ndarray  # believed best row after each measurement of the round; -1: none worked
    believed_log: float
    dropped: dict[str, str]  # sources that are not used from now on, and why
    target: Target  # of this round: it may have grown

    @property
    def forecast(self) -> Forecast | None:
        """The forecast that the round decided by; None: its policy needs none."""
        return self.step.forecast

    @property
    def decisions(self) -> decide.Decisions:
        """The candidates that the round measured, with reasons."""
        return self.step.decisions

    @property
    def better(self) -> float:
        """Expected number of candidates faster than the best by 2 %, before the round; nan: not forecast."""
        return self.step.better


def plan_of(target: Target, scenario: Mapping[str, Any], dropped: Collection[str] = ()) -> Plan:
    """Return the plan of a scenario, without the sources that were ``dropped``."""
    if scenario["forecaster"] == "gp":  # without other GPUs, their failures are not known either
        target = without_sources(target, target.sources)._replace(fails=np.zeros(len(target.ids)))
    inputs = inputs_of(target)
    scores = inputs.mean + FAILED_ELSEWHERE_COST * target.fails
    if dropped and target.sources:
        target = without_sources(target, dropped)
        inputs = inputs_of(target)
    return Plan(target, scenario, inputs, batches.views(target, inputs), scores, tuple(sorted(dropped)))


def rounds(
    target: Target, scenario: Mapping[str, Any], measure: Measure, propose: Propose | None = None
) -> Iterator[Round]:
    """Yield the rounds of a search until its budget is spent, no candidate is left, or no gain is expected.

    ``propose``: the external proposer, where the scenario's proposer is ``given``.
    """
    plan = plan_of(target, scenario)
    state = State(empty_history(), {}, np.zeros(len(target.ids), dtype=np.int64), -1, 1, np.zeros(0, dtype=np.int64))
    while True:
        if propose is not None and not spent(scenario, state.history):
            new, grown = propose(state.number, state.history, state.proposed)
            state = state._replace(proposed=np.concatenate([state.proposed, new]))
            if grown is not None:
                target = grown
                plan = plan_of(target, scenario, plan.dropped)
                tried = np.pad(state.tried, (0, len(target.ids) - len(state.tried)))
                state = state._replace(settings={}, tried=tried)  # settings belong to features
        step = next_round(plan, state)
        if step is None:
            return
        chosen, forecast = step.decisions, step.forecast
        runs = np.array([(state.history.rows == row).sum() + 1 for row in chosen.rows])
        outcome = measure(chosen.rows, runs)
        random = np.array([reason == "random" for reason in chosen.reasons])
        history = with_round(
            state.history, state.number, chosen.rows, random, outcome, _expected(forecast, chosen.rows)
        )
        best, log = _believed_best(step.inputs, forecast, state.history, history)
        dropped = misleading(target, history.rows[history.worked], history.logs[history.worked])
        yield Round(state.number, step, outcome, history, best, log, dropped, target)
        if tuple(sorted(dropped)) != plan.dropped and plan.inputs.sources.shape[1] + len(plan.dropped):
            plan = plan_of(target, scenario, dropped)
        state = State(history, step.settings, step.tried, int(best[-1]), state.number + 1, state.proposed)


def spent(scenario: Mapping[str, Any], history: History) -> bool:
    """Return whether the budget of measurements or of time is spent."""
    seconds = scenario["budget_s"]
    if len(history.rows) >= int(scenario["budget_measurements"]):
        return True
    return seconds is not None and float(history.cost_s.sum()) >= seconds


def next_round(plan: Plan, state: State) -> Step | None:
    """Return the decisions of the next round, a pure function of the state; None: the search ends."""
    scenario, history = plan.scenario, state.history
    if spent(scenario, history):
        return None
    count = min(_batch(scenario), int(scenario["budget_measurements"]) - len(history.rows))
    if scenario["policy"] in ("random", "order"):
        chosen, choices = _without_forecast(plan, state, count)
        step = Step(choices, None, plan.inputs, chosen, state.settings, state.tried, np.nan)
        return step if len(chosen.rows) else None
    rows, tried = _proposed(plan, state)
    enough = len(history.worked) >= LEAST_FITTED
    evidence = batches.evidence_by_view(plan.views, history, state.settings) if enough else {batches.ALL: 0.0}
    name = batches.main_view(evidence, state.number)
    inputs = plan.views[name]
    main = forecast(name, plan.target, inputs, history, rows, state.settings.get(name, gp.start(inputs)))
    settings = dict(state.settings)
    if main.fit is not None:
        settings[name] = main.fit.settings
    best = decide.best_of(main, inputs, history)
    better = decide.expected_better(main, history, best.log) if best and main.fit is not None else np.nan
    if done(history, better, scenario["stop_expected_gain"]):
        return None
    chosen = _chosen(plan, state, main, best, evidence, settings, count)
    return Step(len(rows), main, inputs, chosen, settings, tried, better) if len(chosen.rows) else None


def done(history: History, better: float, below: float | None) -> bool:
    """Return whether a search may stop: after STOP_FROM measurements, with ``better`` candidates below ``below``."""
    return below is not None and len(history.rows) >= STOP_FROM and better < below


def _batch(scenario: Mapping[str, Any]) -> int:
    if scenario["proposer"] == "neighbours":
        return proposals.PARENTS * int(scenario["measure_per_parent"])
    return int(scenario["batch"])


def _without_forecast(plan: Plan, state: State, count: int) -> tuple[decide.Decisions, int]:
    """Return the next candidates at random or in order, and the number of candidates they are chosen from."""
    is_given = plan.scenario["proposer"] == GIVEN
    if plan.scenario["policy"] == "random":
        order = decide.generator(plan.scenario, 0, DRAW).permutation(len(plan.target.ids))
        order = order[np.isin(order, state.proposed)] if is_given else order
    else:
        order = state.proposed if is_given else np.argsort(plan.scores, kind="stable")
    rows = order[~np.isin(order, state.history.rows)][:count]
    return decide.Decisions(rows, [plan.scenario["policy"]] * len(rows), np.full(len(rows), np.nan)), len(order)


def _proposed(plan: Plan, state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that a round forecasts, and how often each row was a parent so far."""
    if plan.scenario["proposer"] == GIVEN:
        return np.union1d(state.proposed, state.history.rows), state.tried
    base = proposals.base_pool(plan.target, plan.scenario, plan.scores, state.number)
    if plan.scenario["proposer"] == "pool":
        best = None if state.best < 0 else state.best
        return proposals.pool(plan.target, base, state.history, best), state.tried
    chosen = proposals.parents(state.history, state.tried)
    if not len(chosen):
        return base, state.tried
    draw = decide.generator(plan.scenario, state.number, proposals.NEIGHBOUR_DRAW)
    tried, measured = state.tried.copy(), state.history.rows
    tried[chosen] += 1
    proposed = []
    for parent in chosen:
        neighbour_rows = proposals.neighbours(
            plan.target,
            int(parent),
            int(plan.scenario["samples_per_parent"]),
            np.array([*measured, *proposed], int),
            draw,
        )
        proposed += [int(row) for row in neighbour_rows]
    return np.union1d(np.array(proposed, dtype=np.int64), state.history.rows), tried


def _chosen(
    plan: Plan,
    state: State,
    main: Forecast,
    best: decide.Best | None,
    evidence: Mapping[str, float],
    settings: dict[str, np.ndarray],
    count: int,
) -> decide.Decisions:
    """Return the candidates that a round measures."""
    history, target = state.history, plan.target
    new = main.rows[~np.isin(main.rows, history.rows)]
    if not len(new):
        return decide.Decisions(new, [], np.zeros(0))
    if best is None or main.fit is None or (not target.sources and len(history.rows) < WITHOUT_SOURCES):
        neighbours = plan.scenario["proposer"] == "neighbours"  # that begins at random
        if plan.inputs.sources.shape[1] and not len(history.rows) and not neighbours:
            return decide.first_round(plan.scores, plan.inputs.sources, new, count)
        draw = decide.generator(plan.scenario, state.number, batches.RANDOM_DRAW)
        rows = draw.choice(new, min(count, len(new)), replace=False)
        return decide.Decisions(rows, ["random"] * len(rows), np.full(len(rows), np.nan))
    if plan.scenario["proposer"] == "neighbours":
        return decide.by_mean(main, history.rows, count, best.log)
    if plan.scenario["policy"] == "greedy":
        return decide.by_mean(main, history.rows, count, best.log)
    inputs_of_batch = (plan.target, plan.scenario, state.number, plan.views[main.forecaster], main, history, best)
    return batches.batch(*inputs_of_batch, evidence, plan.views, settings, count)


def _expected(main: Forecast | None, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the forecast mean and unwidened standard deviation of rows; nan where a round did not forecast."""
    if main is None or main.fit is None:
        return np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    indices = np.minimum(np.searchsorted(main.rows, rows), len(main.rows) - 1)
    return main.mean[indices], main.unwidened_sd[indices]


def _believed_best(
    inputs: gp.Inputs, main: Forecast | None, before: History, after: History
) -> tuple[np.ndarray, float]:
    """Return the row believed to be the fastest after each measurement of a round, and the last one's log latency.

    Measurements of the round itself are combined with their forecasts by inverse variance; the process is fitted again
    in the next round.
    """
    expected: dict[int, tuple[float, float]] = {}
    if main is not None and main.fit is not None:
        rows = np.unique(after.rows)
        mean, variance, _ = gp.predict(inputs, main.fit, rows)
        expected = {int(row): (m, v) for row, m, v in zip(rows, mean, variance, strict=True)}
    posterior: dict[int, tuple[float, float]] = {}
    rows, mean, noise = weighted_means(before)
    for row, log, variance in zip(rows, mean, noise, strict=True):
        posterior[int(row)] = expected.get(int(row), (float(log), float(variance)))
    best = []
    for index in range(len(before.rows), len(after.rows)):
        row, log = int(after.rows[index]), after.logs[index]
        if not np.isnan(log):
            prior = posterior.get(row) or expected.get(row)
            if prior is None:
                posterior[row] = (float(log), float(after.noise[index]))
            else:
                weight = prior[1] / (prior[1] + after.noise[index])
                posterior[row] = (prior[0] + weight * (float(log) - prior[0]), prior[1] * (1.0 - weight))
        best.append(min(posterior, key=lambda candidate_row: posterior[candidate_row][0]) if posterior else -1)
    return np.array(best, dtype=np.int64), posterior[best[-1]][0] if best and best[-1] >= 0 else np.nan
