"""Searches on made-up spaces: they find the optimum, learn from other GPUs, repeat themselves byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.arrays import OK, space_arrays
from kernelsight.searching.decisions import Best, by_gain, expected_better
from kernelsight.searching.forecasts import Forecast
from kernelsight.searching.history import History, Outcome, empty_history
from kernelsight.searching.replays import replay
from kernelsight.searching.rounds import rounds
from kernelsight.searching.scenarios import DEFAULTS, check
from kernelsight.searching.search_tables import regrets
from kernelsight.searching.targets import target_of, truth_of
from tests.asked import refusals
from tests.searching.made_spaces import made_tables


@pytest.fixture(scope="module")
def arrays():
    tables = made_tables()
    return space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")


def course(arrays, gpu="two", sources=None, **changes):
    target = target_of(arrays, gpu, sources)
    truth = truth_of(arrays, gpu, target.ids)
    scenario = DEFAULTS | {"budget_measurements": 40} | changes
    found = list(rounds(target, scenario, replay(truth, target.ids, scenario["seed"])))
    best = np.concatenate([each.best for each in found])
    return found, regrets(best, np.log(truth.latency_us))


@pytest.mark.parametrize("gpu", ["one", "two", "three"])
def test_a_search_that_learns_from_other_gpus_finds_the_optimum(arrays, gpu):
    _, regret = course(arrays, gpu)
    assert regret[-1] <= 0.02
    assert regret[4] <= 0.2


def test_learning_beats_the_order_of_the_others_and_chance(arrays):
    selective, order, random = (
        np.mean([course(arrays, gpu, policy=policy, seed=3)[1][19] for gpu in ("one", "two", "three")])
        for policy in ("selective", "order", "random")
    )
    assert selective <= order + 0.005
    assert selective < random


@pytest.mark.parametrize("policy", ["random", "order", "greedy", "selective"])
def test_a_search_repeats_itself_and_measures_its_budget(arrays, policy):
    one, regret = course(arrays, policy=policy)
    two, again = course(arrays, policy=policy)
    assert np.array_equal(one[-1].history.rows, two[-1].history.rows)
    assert np.array_equal(one[-1].history.logs, two[-1].history.logs, equal_nan=True)
    assert np.array_equal(regret, again)
    assert len(one[-1].history.rows) == 40


def test_a_long_history_is_fitted_in_part(arrays, monkeypatch):
    monkeypatch.setattr("kernelsight.searching.history.MOST_FITTED", 20)
    found, regret = course(arrays, budget_measurements=60)
    history = found[-1].history
    kept = history.logs[history.fitted]
    assert (len(history.rows), len(kept), regret[-1] <= 0.02) == (60, 20, True)
    assert np.sort(kept)[:10].tolist() == np.sort(history.logs[history.worked])[:10].tolist()


def test_only_the_budget_of_time_is_spent(arrays):
    found, _ = course(arrays, budget_s=30.0)
    costs = [each.history.cost_s.sum() for each in found]
    assert costs[-1] >= 30.0 > costs[-2]


def test_neighbours_are_forecast_four_for_each_that_is_measured(arrays):
    found, _ = course(arrays, proposer="neighbours", batch=8)
    later = [each for each in found if each.number > 1]
    assert {len(each.decisions.rows) for each in later[:-1]} == {8}
    assert all(len(np.setdiff1d(each.forecast.rows, each.history.rows)) >= 16 for each in later[:-1])


def test_a_search_goes_on_after_a_round_in_which_all_failed(arrays):
    target = target_of(arrays, "two")
    truth = truth_of(arrays, "two", target.ids)
    measure = replay(truth, target.ids, 0)
    calls = []

    def failing_first(rows: np.ndarray, runs: np.ndarray) -> Outcome:
        calls.append(len(rows))
        found = measure(rows, runs)
        if len(calls) > 2:
            return found
        return found._replace(status=np.full(len(rows), OK + 1), latency_us=np.full(len(rows), np.nan))

    found = list(rounds(target, DEFAULTS | {"budget_measurements": 30}, failing_first))
    assert found[1].best[-1] == -1
    assert found[-1].best[-1] >= 0


def test_wrong_results_are_never_the_best(arrays):
    target = target_of(arrays, "two")
    truth = truth_of(arrays, "two", target.ids)
    fastest = int(np.nanargmin(truth.latency_us))
    status, latency = truth.status.copy(), truth.latency_us.copy()
    status[fastest], latency[fastest] = 4, np.nan
    wrong = truth._replace(status=status, latency_us=latency)
    found = list(rounds(target, DEFAULTS | {"budget_measurements": 40}, replay(wrong, target.ids, 0)))
    assert fastest in found[-1].history.rows
    assert all(fastest not in each.best for each in found)


def test_without_a_source_that_shares_candidates_the_search_says_so(arrays):
    assert "the search learns from two alone" in target_of(arrays, "two", []).notes[-1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    refusals("searching/test_rounds::test_scenarios_that_cannot_be_searched_are_refused"),
)
def test_scenarios_that_cannot_be_searched_are_refused(change, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        check(DEFAULTS | change)


def small_forecast(values: list[float]) -> tuple[gp.Inputs, History, Forecast]:
    """Return what a process expects of candidates at these parameters; those at 0, 0.1 and 1 were measured."""
    features = np.array([[0.0], [0.1], [1.0], *([value] for value in values)])
    inputs = gp.Inputs(
        np.zeros((len(features), 0)), features, np.zeros(len(features)), np.zeros(len(features)), *gp.words_of(features)
    )
    history = empty_history()._replace(rows=np.arange(3), logs=np.array([0.0, 0.1, 0.3]), noise=np.full(3, 1e-4))
    fit = gp.conditioned(inputs, history.rows, history.logs, history.noise, gp.start(inputs), 0.0)
    rows = np.arange(len(features))
    mean, variance, white = gp.predict(inputs, fit, rows)
    sd = np.sqrt(variance)
    return inputs, history, Forecast("gp", rows, mean, sd, sd, np.ones(len(rows)), "measured", 3, fit, white)


def test_what_a_batch_has_chosen_counts_as_measured():
    """Rows 3 and 4 are one configuration twice: the second says nothing more once the first is in the batch."""
    inputs, history, forecast = small_forecast([0.5, 0.5, 0.9])
    best = Best(0, 0.0)
    alone = [by_gain(forecast, inputs, history, best, 1).rows.tolist()]
    assert alone == [[3]]
    both = by_gain(forecast, inputs, history, best, 3)
    assert both.rows.tolist() == [3, 5, 4]
    assert both.gains[2] < 0.1 * both.gains[0]


def test_a_candidate_counts_as_better_from_two_percent_on():
    _, history, forecast = small_forecast([0.4, 0.6, 0.8])
    sure = forecast._replace(mean=np.log([0.5, 0.5, 0.5, 0.99, 0.98, 0.9]), sd=np.full(6, 1e-9))
    assert expected_better(sure, history, best=0.0) == pytest.approx(1.5)
    assert expected_better(sure._replace(works=np.full(6, 0.5)), history, best=0.0) == pytest.approx(0.75)
