"""``eta_portability``: how η varies between measured GPUs, and the kernels of an answer that rest on one that does."""

from __future__ import annotations

from pathlib import Path

import pytest

import kernelsight as ks
from kernelsight.catalog.tables import facts
from kernelsight.cli.main import main
from kernelsight.fitting.portability import portability_rows
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.portability import danger_sentences, in_danger
from kernelsight.measure.suite import read_suite
from tests.fitting.measured import gemm, write

TABLES = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
# HBM of A100 and L40S, bytes/us, and the bytes of a product of one row with 4,096 x 4,096 weights
RATES, BYTES = {"a100_sxm": 2.039e6, "l40s": 0.864e6}, 2.0 * 4096 * (4096 + 1 + 1)
CROSS = {"model": "qwen3-8b", "gpu": "l4", "engine": "trtllm"}


def test_eta_of_two_gpus_at_equal_shapes_has_a_mean_and_a_spread(tmp_path: Path) -> None:
    etas = {"a100_sxm": 2.0, "l40s": 8.0}
    rows = [gemm(gpu, 1, 4096, 4096, eta * BYTES / RATES[gpu]) for gpu, eta in etas.items()]
    # another kernel ran on one GPU alone, and a shape that no model has does not count
    rows += [gemm("l40s", 1, 4096, 4096, 4.0 * BYTES / RATES["l40s"], implementation="deepgemm")]
    rows += [gemm("l40s", 1, 64, 64, 1e6)]
    table = training_rows([write(tmp_path / "sweep.parquet", rows)], "gemm", list(etas))
    made = {
        (row.get("implementation"), row["coefficient"]): row["value"]
        for row in portability_rows("gemm", table, *TABLES)
    }
    assert made == {
        ("cublas", "geometric_mean"): pytest.approx(4.0, rel=2e-3),
        ("cublas", "spread"): pytest.approx(4.0, rel=2e-3),
        ("deepgemm", "geometric_mean"): pytest.approx(4.0, rel=2e-3),
        # L40S's η over both kernels: the median of 8 and 4
        (None, "geometric_mean"): pytest.approx((2.0 * 32.0**0.5) ** 0.5, rel=2e-3),
        (None, "spread"): pytest.approx(32.0**0.5 / 2.0, rel=2e-3),
    }


def test_kernels_are_named_that_rest_on_other_gpus_in_the_danger_region() -> None:
    evidence = [
        ("decode_attention", "sweeps of other GPUs: xqa", 30.0),
        ("gemm", "sweeps of other GPUs: cublas", 50.0),
        ("moe", "sweep of l4: trtllm_gen_moe", 10.0),
        # of one generation alone: it carries over within that generation
        ("prefill_attention", "sweeps of other GPUs: trtllm_gen_fmha, not seen on this generation", 6.0),
        ("prefill_attention", "sweeps of other GPUs: trtllm_wgmma_fmha", 4.0),
    ]
    rows = [dict(zip(("family", "evidence", "gpu_us"), row, strict=True)) for row in evidence]
    with ks.connect() as session:
        found = in_danger(rows, lambda: session.table("eta_portability"))
    assert [(row["implementation"], row["share"]) for row in found] == [("xqa", 0.3), ("trtllm_gen_fmha", 0.06)]
    assert danger_sentences(found)[0].startswith("36% of the GPU time: η of decode_attention xqa (30%; η ")
    assert danger_sentences([{**found[0], "share": 0.01}]) == []
    # nothing rests on other GPUs: the table is not asked for
    assert in_danger(rows[2:3], lambda: pytest.fail("asked")) == []


def test_predict_and_simulate_say_it_and_plan_begins_there(tmp_path: Path) -> None:
    with ks.connect() as session:
        step = session.predict(**CROSS, phase="decode", batch_size=16, context_len=1000)
        run = session.simulate(**CROSS, max_concurrency=8, num_prompts=16, input_len=2000, output_len=200)
        measured = session.predict(**CROSS | {"gpu": "l40s"}, phase="decode", batch_size=16, context_len=1000)
    share = sum(kernel["share"] for kernel in step.as_dict()["kernels"] if kernel["family"] == "decode_attention")
    (sentence,) = [text for text in step.assumed if "eta_portability" in text]
    assert "decode_attention xqa" in sentence and abs(float(sentence.split("%")[0]) - 100 * share) < 3.0
    assert any("decode_attention xqa" in text and "of the GPU time" in text for text in run.summary["assumed"])
    assert not any("eta_portability" in text for text in measured.assumed)
    target = tmp_path / "plan.json"
    words = ["calibrate", "plan", "--gpu", "l4", "--engines", "trtllm", "--models", "qwen3-8b", "--minutes", "0.3"]
    assert main([*words, "-o", str(target)]) == 0
    families = [point.family for point in read_suite(str(target)).points if point.family != "launch"]
    # one call of each family, and of the rest more of the one that does not carry over
    called = {family for family in families if family not in ("all_reduce", "all_gather")}
    assert {"gemm", "decode_attention", "prefill_attention", "norm", "rope"} <= called
    assert families.count("decode_attention") > families.count("prefill_attention") > 0
