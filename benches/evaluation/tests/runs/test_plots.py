"""The picture of a backtest: what is drawn, and that it is drawn."""

from __future__ import annotations

import json

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.plots import group_points, points
from kernelsight.laboratory.cli.backtest_plot import check_picture, draw


def row(number: int, **more: object) -> dict:
    """Return a scored run, 10 % too slow in both."""
    run = {"run_id": f"r{number}", "model": "m", "gpu": "g", "engine": "vllm", "max_concurrency": 2**number}
    times = {"ttft_ms": 100.0, "tpot_ms": 10.0, "ttft_mean_ms": 110.0, "tpot_mean_ms": 11.0}
    return {**run, **times, "is_moe": False, "fitting": False, "errors": {"ttft": 0.1, "tpot": 0.1}, **more}


ROWS = [row(1), row(2, is_moe=True), row(3, fitting=True), row(4, errors=None)]
GROUP = {"model": "owner/m", "gpu": "g", "engine": "vllm", "quantization": None}
SCORES = {"ttft": {"median_ape": 0.1}, "tpot": {"median_ape": 0.05}}
ANSWER = {
    "groups": [{**GROUP, "n": 20, **SCORES}, {**GROUP, "gpu": "h", "n": 19, **SCORES}],
    "peer": {"groups": [{**GROUP, "n": 20, "peer": SCORES}]},
}


def test_only_scored_runs_are_drawn() -> None:
    found = points(ROWS)
    assert [(one["run_id"], one["kind"]) for one in found] == [("r1", "dense"), ("r2", "mixture of experts")]
    assert found[0]["ttft_error"] == pytest.approx(10.0)
    assert (found[0]["tpot_measured"], found[0]["tpot_predicted"]) == (10.0, 11.0)


def test_the_picture_holds_four_panels_and_the_groups_of_each_metric(tmp_path) -> None:
    pytest.importorskip("vl_convert")
    target = check_picture(str(tmp_path / "errors.json"))
    draw(ROWS, ANSWER, target)
    *panels, _, groups = json.loads(target.read_text())["concat"]
    assert [len(panel["data"]["values"]) for panel in panels] == [2] * 4
    assert groups["encoding"]["y"]["field"] == "group" and {row["metric"] for row in groups["data"]["values"]} == {
        "TPOT"
    }
    draw(ROWS, ANSWER, tmp_path / "errors.svg")
    assert "predicted against measured" in (tmp_path / "errors.svg").read_text()


def test_groups_of_twenty_runs_are_drawn_beside_the_other_tool() -> None:
    found = [(one["tool"], one["group"], one["metric"], one["median_ape"]) for one in group_points(ANSWER)]
    ours, theirs = ("KernelSight", "m g vllm "), ("AIConfigurator", "m g vllm ")
    assert found == [(*tool, name, value) for tool in (ours, theirs) for name, value in (("TTFT", 10.0), ("TPOT", 5.0))]


def test_a_place_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="folder .* does not exist"):
        check_picture(str(tmp_path / "none" / "x.svg"))
