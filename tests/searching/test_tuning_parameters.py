"""Tuning parameters of kernels that nobody measured: all allowed configurations, and what is refused."""

from __future__ import annotations

import itertools
import json

import pytest

from kernelsight.searching import tuning_parameters
from kernelsight.searching.tuning_parameters import allowed, read_parameters, restriction

VALUES = {"x": [16, 32, 64], "y": [1, 2, 4], "share": [0.5, 1.0], "layout": ["row", "col"], "pad": [True, False]}


def written(tmp_path, stated):
    path = tmp_path / "own.json"
    path.write_text(stated if isinstance(stated, str) else json.dumps(stated))
    return path


@pytest.mark.parametrize(
    "text",
    [
        "x * y <= 64",
        "32 <= x * y < 128",
        "x % (16 * y) == 0",
        "layout == 'row' or x > 32",
        "x in [16, 64] and not pad",
        "layout not in ('col',)",
        "max(x, 8 * y, 1) == x",
        "abs(y - 2) * share < 1",
        "x // y ** 2 >= 4",
        "-x + y < -15",
        "x / (y - 1) > 20",
    ],
)
def test_restrictions_mean_what_python_says(text):
    def holds(own):
        try:
            return bool(eval(text, {"max": max, "abs": abs}, own))
        except ZeroDivisionError:
            return False

    expected = [
        own
        for own in (dict(zip(VALUES, row, strict=True)) for row in itertools.product(*VALUES.values()))
        if holds(own)
    ]
    found = allowed(VALUES, [restriction(text, VALUES, "file")], "file")
    rows = [
        dict(zip(found, row, strict=True)) for row in zip(*(column.tolist() for column in found.values()), strict=True)
    ]
    assert rows == expected and expected


def test_every_allowed_configuration_is_a_row_and_none_is_measured(tmp_path):
    stated = {"tune_params": VALUES, "restrictions": ["x * y <= 64", "share < 1"]}
    found = read_parameters(written(tmp_path, stated))
    assert {row["status"] for row in found.rows} == {"unmeasured"} and {row["space"] for row in found.rows} == {"own"}
    assert len({row["parameters"] for row in found.rows}) == len(found.rows) == 6 * 4
    assert json.loads(found.rows[0]["parameters"]) == {"x": 16, "y": 1, "share": 0.5, "layout": "row", "pad": True}
    assert found.rejected == {"not allowed by the restrictions": 72 - 24}


def test_the_form_of_autotuners_is_read(tmp_path):
    parameters = [{"Name": "MWG", "Type": "int", "Values": "[16, 32, 64]"}, {"Name": "KWI", "Values": [2, 8]}]
    conditions = [{"Expression": "MWG % 32 == 0 && KWI > 2 || MWG == 16", "Parameters": ["MWG", "KWI"]}]
    space = {"TuningParameters": parameters, "Conditions": conditions}
    found = read_parameters(written(tmp_path, {"General": {"BenchmarkName": "gemm"}, "ConfigurationSpace": space}))
    rows = [json.loads(row["parameters"]) for row in found.rows]
    assert [(row["MWG"], row["KWI"]) for row in rows] == [(16, 2), (16, 8), (32, 8), (64, 8)]
    assert found.rows[0]["space"] == "gemm"


def test_a_restriction_is_asked_before_all_are_multiplied(monkeypatch):
    """A million of combinations, of which few pass the first restriction."""
    monkeypatch.setattr(tuning_parameters, "MOST_TRIED", 30_000)
    values = {"a": list(range(100)), "b": list(range(100)), "c": list(range(100))}
    found = allowed(values, [restriction("a * 100 + b < 200", values, "file")], "file")
    assert len(found["c"]) == 200 * 100
