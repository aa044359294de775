"""``backtest`` on a small file of runs: what it prints, what it writes, and runs that cannot be simulated."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kernelsight.evaluation.runs.run_scores import score
from kernelsight.laboratory.cli.backtest_tables import _peer_rows

HEADER = (
    "run_id,campaign,model,gpu,tp,pp,dp,ep,engine,isl,osl,max_concurrency,workers,request_rate,ttft_ms,tpot_ms,source"
)
RUNS = (
    "r0,given,qwen3-0.6b,l4,1,1,1,1,vllm,256,32,2,1,,40,8,mine",
    "r1,given,qwen3-0.6b,l4,1,1,1,1,vllm,256,32,8,1,,60,9,mine",
    "r2,given,qwen3-0.6b,l4,1,1,1,1,vllm,256,32,8,1,,70,9,mine",
    "r3,given,qwen3-0.6b,l4,1,1,1,1,sglang,256,32,,1,5.0,60,9,mine",
    "r4,given,llama-3.1-70b,l4,1,1,1,1,vllm,256,32,8,1,,60,9,mine",
    "r5,given,qwen3-0.6c,l4,1,1,1,1,vllm,256,32,8,1,,60,9,mine",
    "r6,given,qwen3-0.6b,l4,1,1,1,1,vllm,256,32,8,1,,60,9,mine",
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a file of runs; r2 and r6 have the load of r1 (two of the seven are of the fitting fifth or not)."""
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, *RUNS]))
    return path


def test_runs_are_scored_and_those_that_cannot_be_simulated_are_listed(command, runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.parquet"
    answer = command("backtest", "--runs", runs, "--format", "json", "-o", target)
    assert answer.status == 0, answer.err
    found = answer.json
    rows = pq.read_table(target).to_pylist()
    assert [row["run_id"] for row in rows] == [f"r{number}" for number in range(7)]
    fitting = {row["run_id"] for row in rows if row["fitting"]}
    scored = [row for row in rows if row["status"] == "served" and not row["fitting"]]
    assert found["ttft"]["n"] == found["tpot"]["n"] == found["throughput"]["n"] == len(scored) - 1
    assert found["stated_again"] == 1  # r6 states the measurement of r1
    assert found["fitted_on"] == len(fitting)
    assert found["excluded"] == []
    assert sum(fault["n"] for fault in found["not_simulated"]) == len({"r4", "r5"} - fitting)
    by_id = {row["run_id"]: row for row in rows}
    assert (by_id["r0"]["engine_version_used"], by_id["r0"]["host_version"]) == ("newest (0.14)", "0.14")
    assert "unknown model 'qwen3-0.6c'" in by_id["r5"]["status"]
    assert "does not fit on l4" in by_id["r4"]["status"]
    # no kernel of an L4 was measured
    assert {row["weakest"].rpartition(" ")[2] for row in scored} == {"cross-generation"}
    assert {group["weakest"] for group in found["by"]["weakest"]} == {row["weakest"] for row in scored}
    # equal loads are one scenario; their errors differ as their measurements do
    assert by_id["r1"]["scenario_id"] == by_id["r2"]["scenario_id"]
    assert (1 + by_id["r1"]["ttft_error"]) * 60 == pytest.approx((1 + by_id["r2"]["ttft_error"]) * 70)
    for row in scored:
        assert row["ttft_error"] == pytest.approx(row["ttft_mean_ms"] / row["ttft_ms"] - 1)
        parts = ("prefill_kernels_s", "decode_kernels_s", "prefill_communication_s", "decode_communication_s")
        assert sum(row[name] for name in parts) == pytest.approx(row["gpu_s"], rel=1e-6)


def test_the_page_and_the_csv(command, runs: Path) -> None:
    page = command("backtest", "--runs", runs)
    assert page.status == 0
    assert "7 rows read, 7 replayed" in page.out
    assert "median APE / MAPE" in page.out
    assert "not simulated 1: " in page.err
    lines = command("backtest", "--runs", runs, "--format", "csv").out.splitlines()
    assert lines[0].startswith("scope,model,gpu,engine,quantization,n,ttft_median_ape")
    assert lines[1].startswith("all,")


def test_another_tool_stands_beside_us_in_columns_of_its_own() -> None:
    errors = {"peer": {"ttft": [0.5, 0.3], "tpot": [-0.2]}, "ours": {"ttft": [0.1, -0.3], "tpot": [0.05]}}
    scored = {tool: {metric: score(each) for metric, each in own.items()} for tool, own in errors.items()}
    both, nothing = {"n": 2, **scored}, {"n": 0, **{tool: {"ttft": score([]), "tpot": score([])} for tool in errors}}
    rows = _peer_rows(both | {"dense": both, "moe": nothing, "groups": []})
    shown = {"ttft peer": "40.0% / 40.0%  p90 48%  +40%", "ttft ours": "20.0% / 20.0%  p90 28%  -10%"}
    shown |= {"tpot peer": "20.0% / 20.0%  p90 20%  -20%", "tpot ours": "5.0% / 5.0%  p90 5%  +5%"}
    assert rows == [
        {"": "all", "n": 2, **shown},
        {"": "dense", "n": 2, **shown},
        {"": "mixture of experts", "n": 0, **dict.fromkeys(shown, "")},
    ]


def test_constants_are_fitted_on_the_fitting_fifth_and_printed(command, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    lines = [RUNS[1].replace("r1", f"r{number}").replace(",60,9,", f",{60 + number},9,") for number in range(40)]
    path.write_text("\n".join([HEADER, *lines]))
    answer = command("backtest", "--runs", path, "--constants", "group,none,all,transfer", "--format", "json")
    assert answer.status == 0, answer.err
    (group,) = answer.json["fitted_constants"]
    assert (group["model"], group["engine"]) == ("qwen3-0.6b", "vllm")
    assert group["gap"] + group["per_request_us"] > 0 or group["pace"] > 1
    levels = answer.json["levels"]
    assert list(levels) == ["group", "none", "all", "transfer"]
    # all runs are alike: what fits a fifth of them fits the others
    assert levels["group"]["dense"]["tpot"]["median_ape"] < 0.1 < levels["none"]["dense"]["tpot"]["median_ape"]
    assert levels["all"]["all"]["tpot"]["median_ape"] < 0.1
    # no other group has runs: no host time
    assert levels["transfer"] == levels["none"]
    # a level also says how many runs lie within their intervals
    assert answer.json["tpot"].items() <= levels["group"]["all"]["tpot"].items()
    assert 0.0 <= levels["group"]["all"]["e2e"]["coverage_90"] <= 1.0
    assert answer.json["ttft"]["n"] == 40 - answer.json["fitted_on"]


def test_a_tool_that_cannot_be_started_is_told_before_anything_is_simulated(command, runs: Path, monkeypatch) -> None:
    monkeypatch.setattr("kernelsight.laboratory.runs.peer.PACKAGE", "json")
    monkeypatch.setattr("kernelsight.laboratory.runs.peer.WORKER", "kernelsight.evaluation.runs.no_such_worker")
    monkeypatch.setattr("kernelsight.evaluation.runs.backtests.replay", None)
    answer = command("backtest", "--runs", runs, "--against", "aiconfigurator")
    assert answer.status == 1
    assert "AIConfigurator failed" in answer.err


def test_runs_without_ttft_or_tpot_are_counted_at_the_head(command, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, RUNS[1], RUNS[2].replace(",70,9,", ",,9,"), RUNS[3].replace(",60,9,", ",,,")]))
    page = command("backtest", "--runs", path).out
    assert "3 rows read, 3 replayed" in page
    assert "2 lack TTFT, TPOT or lengths and are scored by campaign alone; tier" in page


def test_each_campaign_is_scored_with_constants_of_the_others(command, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    lines = [line.replace(",given,", f",{name},").replace("r", name, 1) for name in ("a", "b") for line in RUNS[:4]]
    path.write_text("\n".join([HEADER, *lines]))
    answer = command(
        *("backtest", "--runs", path, "--leave-out", "campaign", "--sample", "2", "--format", "json"),
    )
    assert answer.status == 0, answer.err
    found = answer.json
    assert found["runs"] == 4
    assert list(found["campaigns"]) == list(found["campaigns_shipped"]) == ["a", "b"]
    assert {name: score["n"] for name, score in found["campaigns"]["a"].items()} == {"ttft_mean": 2, "tpot_mean": 2}
    # what both campaigns measured alike counts once, for the first
    assert found["campaigns"]["b"]["tpot_mean"]["n"] < 2
    engines = {(row["campaign"], row["engine"]) for row in found["left_out_constants"]}
    assert engines == {(name, engine) for name in "ab" for engine in ("vllm", "vllm from 0.14", "sglang", "trtllm")}
    page = command("backtest", "--runs", path, "--sample", "1").out
    assert "by campaign" in page
