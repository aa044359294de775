"""From a suite to what serving is told: a simulated GPU whose norms are slow is fitted, and predicted as measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsight.cli.main import main
from kernelsight.kernels.kernel_selection import engine_that_ran
from kernelsight.kernels.pack import pack_table
from kernelsight.measure.run import measure_suite
from kernelsight.measure.suite import Point, suite_of
from tests.measure.simulated import L2_BYTES, Simulated

FLOOR_US, BYTES_PER_US, COLD_BYTES_PER_US = 5.0, 6.0e6, 3.2e6
ROWS, WIDTHS = [1, 8, 64, 256, 1024, 4096], [2048, 4096, 8192]
SUITE = {
    "suite": "norms",
    "rule": {"relative_error": 0.005},
    "entries": [{"family": "norm", "implementation": "fused_add_rms_norm", "axes": {"rows": ROWS, "columns": WIDTHS}}],
}


def truth_us(point: Point) -> float:
    """Norms with a floor thrice as high as the one assumed, from L2 or DRAM as the point asks."""
    in_cache = point.cache == "warm" and moved(point) < 0.8 * L2_BYTES
    return FLOOR_US + moved(point) / (BYTES_PER_US if in_cache else COLD_BYTES_PER_US)


def moved(point: Point) -> int:
    """Return the bytes of a fused addition and norm."""
    return 8 * point.sizes["rows"] * point.sizes["columns"]


def norm_us(capsys: pytest.CaptureFixture[str], *more: str) -> dict:
    step = ["--phase", "decode", "--batch-size", "64", "--context-len", "512"]
    return kernel_us(capsys, "residual_norm", "h200_sxm", *step, *more)


def kernel_us(capsys: pytest.CaptureFixture[str], name: str, gpu: str, *more: str) -> dict:
    """Return the row of a kernel of Llama-3.1-8B as `predict` prints it."""
    capsys.readouterr()
    assert main(["predict", "--model", "llama-3.1-8b", "--gpu", gpu, "--format", "json", *more]) == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    return next(row for row in kernels if row["name"] == name)


@pytest.mark.whole
def test_a_family_that_nobody_publishes_is_fitted_and_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelsight.fitting.pack_fit.PACK_EFFORT", 0.05)
    sweep, pack = tmp_path / "sweep.parquet", tmp_path / "pack.parquet"
    suite = suite_of(SUITE, "norms.json")
    assert measure_suite(Simulated(truth_us, noise=0.02, moved=moved), suite, sweep).measured == len(suite.points) == 36
    assert main(["calibrate", "fit", "--sweep", str(sweep), "-o", str(pack)]) == 0
    assert "norm: few rows of one GPU, so distant shapes are extrapolated" in capsys.readouterr().err
    before, after = norm_us(capsys), norm_us(capsys, "--pack", str(pack))
    expected = truth_us(Point("norm", "", "", "warm", (("columns", 4096), ("rows", 64))))
    assert after["latency_us"] == pytest.approx(expected, rel=0.05)
    assert abs(before["latency_us"] / expected - 1.0) > 0.3
    assert (before["tier"], after["tier"]) == ("cross-generation", "target-measured")
    assert after["p05_us"] < expected < after["p95_us"] < 1.5 * expected


@pytest.mark.parametrize(
    ("engine", "gpu", "expected"),
    [
        ("vllm", "h200_sxm", "kernelsight"),  # the GPU itself was measured, though not under vLLM
        ("trtllm", "h200_sxm", "trtllm"),  # that engine's own build was
        ("vllm", "l40s", "vllm"),  # our kernels of another GPU stand for nothing
    ],
)
def test_our_kernels_answer_where_the_engines_own_were_not_measured(engine: str, gpu: str, expected: str) -> None:
    shared = {"family": "norm", "part": "choice", "level": "gpu", "coefficient": "rows", "unit": "1", "source": "test"}
    rows = pack_table(
        [
            {**shared, "engine": name, "gpu": "h200_sxm", "dtype": "bf16", "implementation": "rms_norm", "value": 3.0}
            for name in ("kernelsight", "trtllm")
        ]
    )
    assert engine_that_ran(rows, "norm", engine, gpu) == expected
