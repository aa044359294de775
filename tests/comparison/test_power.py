"""Power of GPUs along a log beside that of its replay: by exporters, by a column of the log, and of other GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsight.comparison.power import Series, power_answer
from kernelsight.number_format import number
from kernelsight.session import Session
from tests.cli.conftest import run_command
from tests.logs.written import START, save

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4"}
LOAD = {"request_rate": 20, "num_prompts": 160, "input_len": 300, "output_len": 40}


@pytest.fixture(scope="module")
def log(session: Session) -> list[dict]:
    """What a client would have written of the simulation, and its power."""
    run = session.simulate(**FLAGS, **LOAD)
    requests = run.sql(
        "select sent_ns / 1e9 as arrival_s, e.prompt_tokens, e.output_tokens, ttft_ms, e2e_ms, "
        "'client_send' as ttft_clock "
        "from request_events e join request_metrics using (scenario_id, request_id) order by 1"
    )
    return requests.to_arrow_table().to_pylist()


def test_a_column_of_the_log_is_compared_window_by_window(session: Session, log: list[dict]) -> None:
    found = session.compare(requests=[{**row, "power_w": 60.0} for row in log], deployment=FLAGS, fit="none")
    power, windows = found.summary["power_w"], found.table("power_vs_production").to_pylist()
    assert power["measured"] == pytest.approx(60.0) and 0 < power["low"] < power["predicted"] < power["high"]
    assert power["error"] == pytest.approx(power["predicted"] / 60.0 - 1.0) and power["measured_gpus"] is None
    assert all(row["measured_w"] == pytest.approx(60.0) and row["gpus"] == 1 for row in windows)
    assert f"its GPUs drew 60 W, predicted {number(power['predicted'])} W" in found.summary["verdict"]
    assert found.table("comparison_findings").to_pylist()[0]["sentence"].count("its GPUs drew") == 1


def test_an_exporter_beside_the_log_is_held_against_it_by_its_own_times(log: list[dict], tmp_path: Path) -> None:
    table = [{**row, "arrival_s": row["arrival_s"] + START} for row in log]
    requests = save(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in table))
    first = min(row["arrival_s"] for row in log)

    def answer_of(gpus: int) -> dict:
        values = [[START + first - 1.0 + at, "35"] for at in range(20)]
        series = [
            {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": str(gpu)}, "values": values}
            for gpu in range(gpus)
        ]
        content = {"status": "success", "data": {"resultType": "matrix", "result": series}}
        metrics = save(tmp_path / f"dcgm{gpus}.json", content)
        words = ("compare", "--log", requests, "--metrics", metrics, "--fit", "none", "--suspects", "none")
        return json.loads(
            run_command(*map(str, words), "--model", FLAGS["model"], "--gpu", "l4", "--format", "json").out
        )

    alone = answer_of(1)
    assert alone["power_w"]["measured"] == pytest.approx(35.0) and alone["power_w"]["error"] is not None
    assert not [said for said in alone["evidence"].get("not_used", ()) if "metrics of the server" in said]
    several = answer_of(2)
    assert several["power_w"]["measured"] == pytest.approx(70.0) and several["power_w"]["error"] is None
    assert "power of 2 GPUs was measured, and the deployment has 1" in several["evidence"]["not_used"][-1]
    assert "its GPUs drew" not in several["verdict"]


def test_energy_of_a_series_counts_what_was_measured_alone() -> None:
    import numpy as np

    series = Series(np.array([0.0, 3.0]), np.array([2.0, 4.0]), np.array([10.0, 100.0]), 1)
    assert series.joules(np.array([0.0, 1.0, 2.5, 4.0, 9.0])).tolist() == [0.0, 10.0, 20.0, 120.0, 120.0]
    assert series.seconds(np.array([-1.0, 2.5, 9.0])).tolist() == [0.0, 2.0, 3.0]
    row = {"start_s": 0.0, "gpus": 1, "measured_gpus": 1, "predicted_low_w": 1.0, "predicted_high_w": 3.0}
    rows = [
        {**row, "end_s": 1.0, "measured_w": 10.0, "predicted_w": 5.0},
        {**row, "end_s": 3.0, "measured_w": 0.0, "predicted_w": 5.0},
    ]
    assert power_answer(rows)["measured"] == pytest.approx(2.5) and power_answer(rows)["error"] == pytest.approx(1.0)


def test_windows_that_were_measured_in_part_are_left_out(session: Session, log: list[dict]) -> None:
    half = [{**row, "power_w": 60.0 if place < 80 else None} for place, row in enumerate(log)]
    windows = session.compare(requests=half, deployment=FLAGS, fit="none").table("power_vs_production").to_pylist()
    assert windows and max(row["end_s"] for row in windows) <= log[79]["arrival_s"] - log[0]["arrival_s"] + 1e-6
