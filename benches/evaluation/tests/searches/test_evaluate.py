"""The report of an evaluation: its keys, its splits, its figures on a made-up space."""

from __future__ import annotations

import json

import pytest

from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.laboratory.searches import cases
from kernelsight.laboratory.searches.evaluate import evaluate, without_nearest
from kernelsight.searching.arrays import space_arrays
from tests.searching.made_spaces import made_tables

FIGURES = {
    *("policy", "runs", "within_5", "within_2", "n_to_5", "n_to_2"),
    *("regret_10", "regret_20", "regret_50", "regret_100"),
}


@pytest.fixture(scope="module")
def report():
    return evaluate(made_tables(), "all", ["order", "selective"], seeds=1, budget=60)


def test_the_report_has_the_keys_that_are_read(report):
    assert {"policies", "spaces", "calibration", "stops", "without_nearest"} <= set(report)
    assert all(set(row) >= FIGURES for row in report["policies"])
    assert all(set(row) >= {"space", "gpu"} | FIGURES for row in report["spaces"])
    assert [row["policy"] for row in report["policies"]] == ["order", "selective"]
    assert {(row["gpu"], row["policy"]) for row in report["spaces"]} == {
        (gpu, policy) for gpu in ("one", "two", "three") for policy in ("order", "selective")
    }
    assert {"coverage_90", "ece", "crps"} <= set(report["calibration"]["20"])
    assert {"n", "within_2"} <= set(report["stops"])


def test_searches_of_a_smooth_space_end_near_the_optimum(report):
    selective = report["policies"][1]
    assert selective["within_2"] == 1.0
    assert selective["regret_100"] <= 0.02
    assert report["without_nearest"]["policies"][1]["within_5"] == 1.0


def test_the_nearest_gpu_is_the_most_alike():
    tables = made_tables()
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")
    assert without_nearest(arrays, "one") == ("three",)
    assert without_nearest(arrays, "three") == ("one",)
    two = made_tables(("one", "two"))
    assert without_nearest(space_arrays(two.kernel_candidates, two.kernel_measurements, "made"), "one") is None


def test_named_gpus_alone_are_searched_for():
    found = evaluate(made_tables(), ["two"], ["random"], seeds=2, budget=10, splits=["all"])
    assert [(row["gpu"], row["runs"]) for row in found["spaces"]] == [("two", 2)]
    with pytest.raises(UnknownName, match="unknown GPU 'tow'. Did you mean two"):
        evaluate(made_tables(), ["tow"], ["random"], seeds=1)
    with pytest.raises(UnknownName, match="unknown policy 'best'"):
        evaluate(made_tables(), "all", ["best"], seeds=1)
    with pytest.raises(InvalidInput, match="seeds is 0; give a whole number above 0"):
        evaluate(made_tables(), "all", ["random"], seeds=0)


class Killed(Exception):
    """What stops an evaluation in the middle."""


@pytest.mark.parametrize("after", [1, *(pytest.param(n, marks=pytest.mark.whole) for n in (0, 4))])
def test_a_killed_evaluation_goes_on_to_the_same_report(tmp_path, monkeypatch, after):
    given = (made_tables(), "all", ["random", "selective"], 1, 30, 5, ["all"])
    expected = evaluate(*given)
    journal, replay, calls = tmp_path / "e.json.journal", cases._replay, []

    def dying(case):
        if len(calls) == after:
            raise Killed
        calls.append(case)
        return replay(case)

    monkeypatch.setattr(cases, "_replay", dying)
    with pytest.raises(Killed):
        evaluate(*given, journal)
    monkeypatch.setattr(cases, "_replay", lambda case: calls.append(case) or replay(case))
    with pytest.raises(InvalidInput, match="holds a search that did not finish; --resume continues it"):
        evaluate(*given, journal)
    found = evaluate(*given, journal, resume=True)
    assert json.dumps(found) == json.dumps(expected)
    assert len(calls) == len(set(calls)) == 6
    with pytest.raises(InvalidInput, match="belongs to another search"):
        evaluate(*given[:3], 2, *given[4:], journal, resume=True)
