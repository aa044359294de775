"""`kernelsight upgrade`: what it prints, and when it ends with status 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LOAD = ("--max-concurrency", "2", "--num-prompts", "8", "--input-len", "512", "--output-len", "16")
MIXTRAL = ("--model", "mixtral-8x7b-v0.1", "--gpu", "h200_sxm", "-tp", "8", *LOAD)


def test_a_swapped_kernel_is_named_with_the_flag_that_undoes_it(command: Any) -> None:
    """vLLM issue 41306: experts on Hopper went from Triton to FlashInfer in 0.20."""
    answer = command("upgrade", "--from", "vllm:0.19", "--to", "vllm:0.20", *MIXTRAL, "--format", "json").json
    assert (answer["from"], answer["to"]) == ("vllm:0.19", "vllm:0.20")
    experts = {row["phase"]: row for row in answer["kernels"] if row["family"] == "moe"}
    assert {(row["from"], row["to"]) for row in experts.values()} == {("fused_moe_triton", "flashinfer_cutlass_moe")}
    assert experts["decode"]["ms_per_step_to"] > experts["decode"]["ms_per_step_from"]
    tpot = answer["metrics"]["tpot_p50_ms"]
    assert tpot["change"] == pytest.approx(tpot["to"] - tpot["from"]) and tpot["low"] < tpot["change"] < tpot["high"]
    (flag,) = answer["flags"]
    assert flag["flag"] == "--moe-backend triton"
    assert flag["tpot_p50_ms_to"] == pytest.approx(tpot["from"], rel=0.01)
    assert {row["name"] for row in answer["settings"]} >= {"gpu_memory_utilization"}


def test_a_limit_that_is_passed_ends_with_3(command: Any, tmp_path: Path) -> None:
    asked = ("upgrade", "--from", "vllm:0.19", "--to", "vllm:0.20", *MIXTRAL)
    failed = command(*asked, "--fail-if", "tpot_p50:+2%", "-o", tmp_path / "metrics.csv")
    assert failed.status == 3
    assert "tpot_p50_ms changes by +" in failed.err and "beyond +2.0%" in failed.err
    assert failed.out.startswith("vllm:0.19 to vllm:0.20: TPOT p50 ")
    assert "tpot_p50_ms" in (tmp_path / "metrics.csv").read_text()
    assert command(*asked, "--fail-if", "tpot_p50:+90%", "output_throughput:-90%").status == 0
