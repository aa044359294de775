"""Kernel Tuner's strategies as policies: the order they measure in, repeatable, scored as ours; refused without it."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import pytest

from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.laboratory.searches.evaluate import evaluate
from kernelsight.laboratory.searches.tuner_strategies import USUAL, best_rows, best_so_far, expanded, measured_order
from kernelsight.searching.arrays import OK, space_arrays
from kernelsight.searching.replays import replay
from kernelsight.searching.targets import target_of, truth_of
from tests.searching.made_spaces import made_tables


@pytest.fixture(scope="module")
def made():
    pytest.importorskip("kernel_tuner")
    tables = made_tables()
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")
    target = target_of(arrays, "two")
    return arrays, truth_of(arrays, "two", target.ids), target.ids


def test_a_strategy_is_refused_where_kernel_tuner_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "kernel_tuner", None)
    monkeypatch.setitem(sys.modules, "kernel_tuner.interface", None)
    with pytest.raises(InvalidInput, match=r"needs Kernel Tuner, which is not installed; run pip .* '\.\[tuner\]'"):
        evaluate(made_tables(), "all", ["tuner:bayes_opt"], seeds=1)


def test_one_word_stands_for_the_usual_strategies():
    assert expanded(["tuner:diff_evo", "random", "tuner"]) == [
        *("tuner:diff_evo", "random"),
        *(f"tuner:{name}" for name in USUAL if name != "diff_evo"),
    ]


def test_the_best_so_far_is_the_lowest_latency_that_worked():
    assert best_so_far(np.array([5, 3, 8, 1]), np.array([np.nan, 4.0, 6.0, 2.0])).tolist() == [-1, 3, 3, 1]


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.whole
def test_a_strategy_measures_different_candidates_within_its_budget_and_repeats_itself(made, name):
    arrays, truth, ids = made
    parameters = [json.loads(text) for text in arrays.parameters]
    states = random.getstate(), np.random.get_state()[1].tolist()
    rows, latency_us = measured_order(name, parameters, truth, ids, 3, 40)
    again, _ = measured_order(name, parameters, truth, ids, 3, 40)
    assert rows.tolist() == again.tolist()
    assert 0 < len(rows) == len(set(rows.tolist())) <= 40
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    measured = replay(truth, ids, 3)(rows, np.ones(len(rows), dtype=int)).latency_us
    assert np.array_equal(latency_us, measured, equal_nan=True)
    assert np.isnan(latency_us).tolist() == (truth.status[rows] != OK).tolist()
    assert np.array_equal(best_rows(f"tuner:{name}", arrays, truth, ids, 3, 40), best_so_far(rows, latency_us))


def test_strategies_are_rows_of_the_report(made):
    found = evaluate(made_tables(), ["two"], ["random", "tuner:genetic_algorithm"], seeds=2, budget=60)
    row = found["policies"][1]
    assert (row["policy"], row["runs"], len(row["regret_curve"])) == ("tuner:genetic_algorithm", 2, 60)
    assert row["regret_curve"][-1] < row["regret_curve"][0]
    assert "without_nearest" not in found
    with pytest.raises(UnknownName, match="unknown strategy of Kernel Tuner 'bayes_op'. Did you mean bayes_opt"):
        evaluate(made_tables(), "all", ["tuner:bayes_op"], seeds=1)
