"""From a plan of a few points to what serving is told, on a simulated GPU: planned, measured, fitted and predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsight.cli.main import main
from kernelsight.measure.run import measure_suite
from kernelsight.measure.suite import Point, read_suite
from tests.measure.simulated import Simulated
from tests.measure.test_fitted import moved, norm_us

FLOOR_US, BYTES_PER_US = 4.0, 2.2e6
PLAN = ["calibrate", "plan", "--gpu", "h200_sxm", "--models", "llama-3.1-8b", "--format", "json"]


def truth_us(point: Point) -> float:
    """Kernels that move their rows at one rate above a floor, and launches that take the floor."""
    return FLOOR_US + (moved(point) / BYTES_PER_US if "rows" in point.sizes else 0.0)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("plan") / "few.json"
    assert main([*PLAN, "--points", "3", "-o", str(target)]) == 0
    return target


def test_a_plan_has_as_many_points_of_each_kernel_and_begins_with_empty_launches(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = read_suite(str(plan)).points
    assert {point.implementation for point in points[:3]} == {"empty_graph", "graph_launch", "eager_launch"}
    kernels = [(point.family, point.implementation, point.dtype) for point in points[3:]]
    assert {kernels.count(kernel) for kernel in kernels} == {3}
    assert {"gemm", "norm", "prefill_attention", "decode_attention"} <= {family for family, _, _ in kernels}
    again = plan.with_name("again.json")
    assert main([*PLAN, "--points", "3", "-o", str(again)]) == 0
    assert json.loads(again.read_text())["entries"] == json.loads(plan.read_text())["entries"]
    printed = capsys.readouterr()
    assert "points in 7 seconds, beside empty launches" in printed.err
    assert "not measured, in share of the models' kernel time: all_reduce (" in printed.err
    rows = json.loads(printed.out)
    assert all(row["expected_error_after"] < row["expected_error_before"] for row in rows)
    assert main([*PLAN, "--points", "0", "-o", str(again)]) == 2
    assert "--points is 0; give a whole number of at least 1." in capsys.readouterr().err


def test_a_plan_covers_the_engines_that_are_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "both.json"
    assert main([*PLAN, "--points", "1", "--engines", "sglang,trtllm", "-o", str(target)]) == 0
    assert "with sglang, trtllm on" in json.loads(target.read_text())["doc"]
    capsys.readouterr()
    assert main([*PLAN, "--points", "1", "--engines", "sgl", "-o", str(target)]) == 2
    assert "sglang" in capsys.readouterr().err


@pytest.mark.whole
def test_a_minute_on_a_simulated_gpu_is_served(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = json.loads(plan.read_text())
    stated["entries"] = [one for one in stated["entries"] if one["family"] in ("launch", "norm", "activation")]
    suite, sweep, pack = tmp_path / "few.json", tmp_path / "mine.parquet", tmp_path / "pack.parquet"
    suite.write_text(json.dumps(stated))
    device = Simulated(truth_us, noise=0.01, moved=lambda point: moved(point) if "rows" in point.sizes else 0)
    assert measure_suite(device, read_suite(str(suite)), sweep).measured == 9
    assert main(["calibrate", "fit", "--few", str(sweep), "--onto", "default", "-o", str(pack)]) == 0
    said = capsys.readouterr().err
    assert "6 points of 2 kernels in 2 families" in said
    assert "an empty launch of h200_sxm takes" in said and "floors of all kernels times 1.6" in said
    unmeasured = said.partition("not measured, so as without points: ")[2].split("\n")[0].split(", ")
    assert {"gemm", "moe", "all_reduce"} <= set(unmeasured) and not {"norm", "activation"} & set(unmeasured)
    before = norm_us(capsys, "--tier", "cross-generation", "--pack", str(pack))
    after = norm_us(capsys, "--tier", "points-measured", "--pack", str(pack))
    expected = truth_us(Point("norm", "", "", "warm", (("columns", 4096), ("rows", 64))))
    assert after["tier"] == "points-measured"
    assert abs(after["latency_us"] / expected - 1.0) < 0.15 < abs(before["latency_us"] / expected - 1.0)
    assert after["p05_us"] < expected < after["p95_us"]
