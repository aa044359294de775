"""Forecasts of a recorded model: answers belong to their prompts, and figures of forecasts say who is right."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest

from kernelsight.laboratory.searches import recorded
from kernelsight.laboratory.searches.tuner_strategies import OPTUNA, PREFIX, best_rows, is_tuner
from kernelsight.searching.arrays import space_arrays
from kernelsight.searching.targets import target_of, truth_of
from tests.searching.made_spaces import made_tables

TABLES = made_tables()
ARRAYS = space_arrays(TABLES.kernel_candidates, TABLES.kernel_measurements, "made")


def test_answers_are_distributions_over_the_bins_by_their_prompt() -> None:
    answers = json.loads(recorded.ANSWERS.read_text())["answers"]
    assert len(answers) == 48 and all(len(name) == 64 for name in answers)
    stated = np.array(list(answers.values()))
    assert stated.shape == (48, 8) and (stated >= 0).all() and (abs(stated.sum(1) - 1.0) < 0.02).all()
    rows, anchor, chats = recorded.questions(ARRAYS, "two")
    assert anchor not in rows and len(chats) == len(rows) >= 20
    for row, chat in chats.items():
        assert str(ARRAYS.parameters[row]) in chat[1]["content"]
        assert f"{ARRAYS.gpus['two'].latency_us[row]:.6g}" not in chat[1]["content"].replace(
            f"{ARRAYS.gpus['two'].latency_us[anchor]:.6g}", ""
        )
    with pytest.raises(KeyError):
        recorded.recorded_bins(chats, answers)


def test_a_forecaster_that_learns_is_scored_above_one_that_knows_nothing() -> None:
    rows, anchor, _ = recorded.questions(ARRAYS, "two")
    logs = np.log(ARRAYS.gpus["two"].latency_us)
    hits = recorded.bins_of(logs[rows], logs[anchor])
    learnt = recorded.forecast_figures(recorded.transfer_bins(ARRAYS, "two", rows, logs[anchor], 10), hits)
    nothing = recorded.forecast_figures(np.full((len(rows), 8), 0.125), hits)
    assert learnt["right"] > nothing["right"] and learnt["crps"] < 0.5 * nothing["crps"]
    assert learnt["aurc"] < nothing["aurc"] and len(learnt["risk"]) == 10


def test_optuna_searches_a_space_as_a_policy() -> None:
    if find_spec("optuna") is None:
        pytest.skip("Optuna is not installed: pip install optuna")
    target = target_of(ARRAYS, "two")
    best = best_rows(PREFIX + OPTUNA, ARRAYS, truth_of(ARRAYS, "two", target.ids), target.ids, 0, 15)
    assert is_tuner(PREFIX + OPTUNA) and len(best) == 15 and best[-1] >= 0
