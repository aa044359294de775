"""From a plan of a few points to what serving is told, on a simulated GPU: planned, measured, fitted and predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kernelsight.cli.main import main
from kernelsight.fitting.training import training_rows
from kernelsight.measure.run import measure_suite
from kernelsight.measure.suite import SUSTAINED, Point, Rule, Suite, read_suite
from kernelsight.measure.timing import WORKED_SECONDS
from tests.measure.simulated import Simulated
from tests.measure.test_fitted import kernel_us

FLOOR_US, BYTES_PER_US = 4.0, 2.2e6
PLAN = ["calibrate", "plan", "--gpu", "h200_sxm", "--models", "llama-3.1-8b", "--format", "json"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("plan") / "few.json"
    assert main([*PLAN, "--points", "3", "-o", str(target)]) == 0
    return target


def test_a_plan_begins_with_launches_a_call_of_each_family_a_sustained_product_and_a_call_of_each_group_size(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = read_suite(str(plan)).points
    assert {point.implementation for point in points[:3]} == {"empty_graph", "graph_launch", "eager_launch"}
    families = [point.family for point in points[3:]]
    number = families.index("gemm", 1)
    assert len(set(families[:number])) == number and {"norm", "prefill_attention", "decode_attention"} < set(families)
    assert points[3 + number].cache == SUSTAINED and points[3 + number].sizes["m"] == 8192
    together = [(point.family, point.sizes["gpus"]) for point in points if "gpus" in point.sizes]
    assert sorted(together) == [(name, gpus) for name in ("all_gather", "all_reduce") for gpus in (2, 4)]
    assert families[number + 1 : number + 5] == [name for name, _ in together]
    alone = [point.family for point in points[3:] if "gpus" not in point.sizes and point.cache != SUSTAINED]
    assert {alone.count(family) for family in alone} == {3}
    again = plan.with_name("again.json")
    assert main([*PLAN, "--points", "3", "-o", str(again)]) == 0
    assert json.loads(again.read_text())["entries"] == json.loads(plan.read_text())["entries"]
    printed = capsys.readouterr()
    assert "points in 11 seconds, beside empty launches and a product at the sustained clock" in printed.err
    assert "not measured" not in printed.err
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


def test_a_plan_for_a_mixture_measures_its_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mixture.json"
    words = [*PLAN[:4], "--models", "qwen3-30b-a3b", "--minutes", "0.2", "-o", str(target)]
    assert main(words) == 0
    points = read_suite(str(target)).points
    assert [point.family for point in points[3:]].index("moe") == 0 and len(points) > 20
    experts = [point.sizes for point in points if point.family == "moe"]
    assert {(one["experts"], one["top_k"], one["hidden"]) for one in experts} == {(128, 8, 2048)}
    assert {one["intermediate"] * one["moe_tp"] for one in experts} == {768}
    assert "not measured" not in capsys.readouterr().err


def test_a_product_at_the_sustained_clock_moves_what_is_served_and_no_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU whose product takes twice as long once it has worked for two seconds."""
    bursts = Point("gemm", "cublas", "bf16", "warm", (("k", 4096), ("m", 8192), ("n", 28672)))
    suite = Suite("few", Rule(), (bursts, bursts._replace(cache=SUSTAINED)))
    device = Simulated(lambda point: 8000.0 if point.cache == SUSTAINED else 4000.0, gpu="h100_pcie")
    sweep, pack = tmp_path / "mine.parquet", tmp_path / "pack.parquet"
    assert measure_suite(device, suite, sweep).measured == 2
    worked_s = pq.read_table(sweep)["worked_s"].to_pylist()
    assert worked_s[0] is None and WORKED_SECONDS <= worked_s[1] < 1.2 * WORKED_SECONDS
    for sustained, expected_us in ((False, 4000.0), (True, 8000.0)):
        [latency_us] = training_rows([sweep], "gemm", sustained=sustained)["latency_us"].to_pylist()
        assert latency_us == pytest.approx(expected_us, rel=0.01)
    words = ["--few", str(sweep), "--onto", "default", "--families", "gemm", "-o", str(pack)]
    assert main(["calibrate", "fit", *words]) == 0
    before, after = (
        kernel_us(capsys, "gate_up_proj", "h100_pcie", "--phase", "prefill", "--input-len", "8192", *more)["latency_us"]
        for more in ([], ["--pack", str(pack)])
    )
    assert before < 6000.0 < after < 9000.0
