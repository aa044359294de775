"""The verb's words: which split they name, what is refused, and what is printed and written."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelsight.cli.calibrate import evaluate as calibrate_evaluate
from kernelsight.cli.calibrate.evaluate import split_of
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.kernels.kernel_scores import COLUMNS
from kernelsight.fitting.splits import HEADLINE_TRAIN
from tests.asked import refusals
from tests.fitting.measured import gemm, write

WORDS = {"train_gpus": None, "test_gpus": "gb200", "tier": None, "budget": None, "families": None, "final": False}
WORDS |= {
    "test_versions": None,
    "train": None,
    "pack": None,
    "whole_layers": False,
    "points": None,
    "random_points": None,
}


def words(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**WORDS, "format": "table", "output": None, **given})


def test_left_open_the_split_is_the_headline():
    split = split_of(words())
    assert split.train_gpus == HEADLINE_TRAIN
    assert (split.test_gpus, split.tier, split.budget) == (("gb200",), "cross-generation", 0.0)


@pytest.mark.parametrize(
    ("given", "tier", "budget"),
    [
        ({"budget": 0.1}, "target-measured", 0.1),
        ({"tier": "target-measured"}, "target-measured", 0.05),
        ({"tier": "cross-generation"}, "cross-generation", 0.0),
    ],
)
def test_a_budget_and_the_tier_go_together(given: dict[str, Any], tier: str, budget: float):
    split = split_of(words(train_gpus="l40s, h100_sxm,l40s", **given))
    assert split.train_gpus == ("l40s", "h100_sxm")
    assert (split.tier, split.budget) == (tier, budget)


@pytest.mark.parametrize(
    ("given", "sentence"),
    refusals("cli/test_calibrate_evaluate::test_words_that_contradict_each_other_are_refused"),
)
def test_words_that_contradict_each_other_are_refused(given: dict[str, Any], sentence: str):
    with pytest.raises(InvalidInput, match=sentence):
        split_of(words(**given))


def test_a_sweep_that_is_not_there_is_refused_before_anything_is_said(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kernelsight.laboratory.kernels.baselines.systems_folder", lambda: None)
    with pytest.raises(InvalidInput, match="file nowhere.parquet does not exist; `kernelsight calibrate import"):
        calibrate_evaluate.run(words(sweep=["nowhere.parquet"]))
    printed = capsys.readouterr()
    assert printed.out + printed.err == ""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def model(train, test, tier):
        return {
            f: (np.full(t.num_rows, 12.0), np.full(t.num_rows, 6.0), np.full(t.num_rows, 24.0)) for f, t in test.items()
        }

    monkeypatch.setattr("kernelsight.evaluation.kernels.predict.fit_and_predict", model)
    shapes = [(1, 1024, 1024), (1, 512, 512)]
    rows = [gemm(gpu, *shape, 10.0) for gpu in (*HEADLINE_TRAIN, "gb200") for shape in shapes]
    return write(tmp_path / "sweep.parquet", rows + [gemm("gb200", *shapes[0], 10.0, dtype="nvfp4")])


def test_json_is_the_report(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    target = tmp_path / "report.json"
    calibrate_evaluate.run(words(sweep=[str(sweep)], format="json", output=str(target)))
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(target.read_text(encoding="utf-8"))
    assert printed["overall"]["grid"]["n"] == 2
    assert printed["overall"]["serving"]["mape"] == pytest.approx(0.2)
    assert printed["families"][0]["baselines"]["roofline"]["grid"]["coverage_90"] is None
    assert [cell["dtype"] for cell in printed["uncovered"]] == ["nvfp4"]


def test_csv_has_a_row_for_each_scope_and_cell(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    target = tmp_path / "report.csv"
    calibrate_evaluate.run(words(sweep=[str(sweep)], format="csv", output=str(target)))
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert list(csv.DictReader(target.read_text(encoding="utf-8").splitlines())) == rows
    scopes = [row["scope"] for row in rows]
    means = ["overall", "pooled", "unseen_implementation", "covered", "nothing_of_target", "nothing_of_target_seen"]
    cells = ["covered", "seen", "nothing_of_target", "nothing_of_target_seen", "uncovered"]
    assert scopes[::2] == means + cells
    assert {row["shapes"] for row in rows} == {"grid", "serving"}
    covered = next(row for row in rows if row["scope"] == "covered" and row["family"])
    assert float(covered["mape"]) == pytest.approx(0.2)
    assert float(covered["affine_roofline_mape"]) == pytest.approx(0.0, abs=1e-3)
