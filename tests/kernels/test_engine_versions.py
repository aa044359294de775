"""The version of an engine: which kernel it runs, what it changes in a time, what is said where it was not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import kernelsight as ks
from kernelsight.catalog.tables import facts
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.fitting.splits import shape_columns
from kernelsight.fitting.versions import alike_rows, effects_of, links_of, medians, rows_of_medians
from kernelsight.kernels.engine_versions import KNOTS_US, version_at, version_factor
from kernelsight.kernels.kernel_constants import family_facts, rows_of_part
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import pack_table
from tests.fitting.measured import gemm, write

GENERATION = {"h100_sxm": "hopper", "h200_sxm": "hopper", "l40s": "ada"}
KERNEL = {"engine": "vllm", "implementation": "cublas", "dtype": "bf16"}


def measured(*cells: tuple[str, str, float], kernel: dict[str, str] = KERNEL) -> pl.DataFrame:
    """Rows of a sweep: GPU, version, and measured / fitted at every latency, of 3,000 equal calls each."""
    rows = [
        {**kernel, "gpu": gpu, "engine_version": version, "fitted_us": us, "residual": float(np.log(factor))}
        | {"math": "bf16", "distribution": "", **dict.fromkeys(shape_columns("gemm"), float(number))}
        | {"latency_us": us * factor}
        for gpu, version, factor in cells
        for us in KNOTS_US
        for number in range(3000)
    ]
    return pl.DataFrame(rows)


def fitted(*cells: tuple[str, str, float]) -> pa.Table:
    """A pack of what versions change."""
    frame = measured(*cells)
    return pack_table(rows_of_medians("gemm", medians(frame), links_of("gemm", frame, GENERATION), GENERATION))


def factor(pack: pa.Table, gpu: str, version: str | None) -> float:
    return float(np.exp(version_at(pack, "gemm", KERNEL, gpu, version).logs[1]))


def test_a_measured_version_takes_its_own_time() -> None:
    pack = fitted(("l40s", "0.24.0", 1.2), ("l40s", "0.25.0", 0.8))
    assert factor(pack, "l40s", "0.24") == pytest.approx(1.2, rel=2e-3)
    assert factor(pack, "l40s", None) == factor(pack, "l40s", "0.25.0") == pytest.approx(0.8, rel=2e-3)
    assert version_at(pack, "gemm", KERNEL, "l40s", "0.24").measured


def test_a_version_between_takes_the_earlier_one_and_says_so() -> None:
    pack = fitted(("l40s", "0.24.0", 1.2), ("l40s", "0.31.0", 0.8))
    found = version_at(pack, "gemm", KERNEL, "l40s", "0.30")
    assert (found.version, found.measured) == ("0.24.0", False)
    assert found.log_sd == pytest.approx(np.log(1.2 / 0.8) / 1.645, rel=1e-2)
    assert version_at(pack, "gemm", KERNEL, "l40s", "0.9").version == "0.24.0"


def test_a_gpu_without_the_version_moves_as_its_generation_did() -> None:
    pack = fitted(
        ("h100_sxm", "0.24.0", 1.0), ("h100_sxm", "0.31.0", 0.7), ("h200_sxm", "0.24.0", 0.5), ("l40s", "0.24.0", 1.0)
    )
    assert factor(pack, "h200_sxm", "0.24") == 1.0
    assert factor(pack, "h200_sxm", "0.31") == pytest.approx(0.7, rel=1e-2)
    found = version_at(pack, "gemm", KERNEL, "h200_sxm", "0.31")
    assert (found.version, found.measured) == ("0.24.0", False) and found.log_sd > 0.0
    # moves of other generations foretell nothing
    assert factor(pack, "l40s", "0.31") == factor(pack, "l40s", "0.24") == 1.0
    # a GPU without any sweep takes the mean of others
    assert factor(pack, "a100_sxm", "0.31") == pytest.approx(0.7, rel=2e-3)


def test_versions_of_two_gpus_are_compared_by_equal_calls() -> None:
    """No GPU of the generation ran both versions: that one is twice as fast as the other is told by another kernel."""
    cells = [("h100_sxm", "0.24.0", 1.0), ("h200_sxm", "0.31.0", 0.35)]
    links = links_of("gemm", measured(*cells), GENERATION)
    kernel = tuple(KERNEL.values())
    alone = effects_of(links)
    move = alone[kernel, "hopper", "0.31.0"] - alone[kernel, "hopper", "0.24.0"]
    assert move[1] == pytest.approx(np.log(0.35), rel=0.02)
    other = {**KERNEL, "implementation": "cutlass"}
    links += links_of(
        "gemm", measured(("h100_sxm", "0.24.0", 1.0), ("h200_sxm", "0.24.0", 0.5), kernel=other), GENERATION
    )
    known = effects_of(links)
    move = known[kernel, "hopper", "0.31.0"] - known[kernel, "hopper", "0.24.0"]
    assert move[1] == pytest.approx(np.log(0.7), rel=0.05)


def test_order_of_latencies_is_kept() -> None:
    """However fast a longer call became, it is not faster than a shorter one."""
    latency_us = np.geomspace(0.1, 1e5, 2000)
    pack = fitted(("l40s", "0.24.0", 20.0), ("l40s", "0.25.0", 0.05))
    for version in ("0.24", "0.25"):
        logs = version_at(pack, "gemm", KERNEL, "l40s", version).logs
        moved = latency_us * version_factor(latency_us, logs[None], np.zeros(2000, int))
        assert (np.diff(moved) > 0.0).all()


def test_the_kernel_follows_the_version(tmp_path: Path) -> None:
    """A sweep of a part of the calls does not choose; a whole one chooses from its version on."""

    def points(version: str, implementation: str, sizes: int) -> list[dict[str, Any]]:
        return [
            gemm("l40s", m, 256, 256, 5.0) | {"engine_version": version, "implementation": implementation}
            for m in range(1, sizes + 1)
        ]

    sweep = write(
        tmp_path / "s.parquet",
        [*points("0.22.0", "cublas", 9), *points("0.24.0", "cutlass_fp8", 9), *points("0.31.0", "deepgemm", 2)],
    )
    implementations = facts("kernel_implementations")
    pack = pack_table(choice_rows([sweep], "gemm", ["l40s"], implementations))
    known = family_facts("gemm", implementations, facts("gpus"))
    call = {"engine": "vllm", "gpu": "l40s", "dtype": "bf16"}
    versions = ["0.9", "0.22.0", "0.23", "0.24", "0.31", None]
    chosen = choose(known, pack, "gemm", [call | {"engine_version": version} for version in versions])
    assert [name for name, _ in chosen] == ["cublas"] * 3 + ["cutlass_fp8"] * 3


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "flags", "attention", "experts"),
    [
        ("gpt-oss-20b", "a100_sxm", "vllm:0.11", {}, "triton_attention_vllm", "marlin_moe"),
        ("gpt-oss-20b", "rtx_pro_6000_server", "vllm:0.24", {}, "triton_attention_vllm", "marlin_moe"),
        ("gpt-oss-20b", "rtx_pro_6000_server", "vllm:0.28", {}, "flashinfer", "marlin_moe"),
        ("gpt-oss-20b", "h100_sxm", "vllm:0.24", {}, "flash_attention_3", "triton_kernels_moe"),
        # sinks rule out more kernels than an FP8 cache
        ("gpt-oss-20b", "a100_sxm", "vllm:0.24", {"kv_cache_dtype": "fp8"}, "triton_attention_vllm", "marlin_moe"),
        ("llama-3.1-8b", "a100_sxm", "vllm:0.11", {"kv_cache_dtype": "fp8"}, "triton_attention_vllm", None),
        ("llama-3.1-8b", "a100_sxm", "vllm:0.24", {"kv_cache_dtype": "fp8"}, "flashinfer", None),
        ("llama-3.1-8b", "a100_sxm", "vllm:0.24", {}, "flash_attention_2", None),
        # heads of 256 and 512
        ("gemma-4-26b-a4b", "h100_sxm", "vllm:0.23", {}, "triton_attention_vllm", "fused_moe_triton"),
        ("gemma-4-26b-a4b", "h100_sxm", "vllm:0.24", {}, "flash_attention_4", "fused_moe_triton"),
        ("deepseek-v3", "h200_sxm", "vllm:0.24", {"tp": 8}, "flash_attention_3", "fused_moe_triton"),
        ("deepseek-v3", "h200_sxm", "vllm:0.24", {"tp": 8, "ep": 8}, "flash_attention_3", "cutlass_moe"),
        # FlashAttention's MLA has no FP8 cache
        ("deepseek-v3", "h200_sxm", "vllm:0.24", {"tp": 8, "kv_cache_dtype": "fp8"}, "flashmla", "fused_moe_triton"),
        ("llama-3.1-8b", "b200_sxm", "sglang:0.5.6", {}, "flashinfer", None),
        ("llama-3.1-8b", "b200_sxm", "sglang:0.5.14", {}, "trtllm_gen_fmha", None),
        # no sweep holds attention of AMD: the kernel has a name and no time of its own
        ("mixtral-8x7b-v0.1", "mi300x", "vllm:0.18", {}, "triton_attention_vllm", "aiter_fused_moe"),
        ("mixtral-8x7b-v0.1", "mi300x", "vllm:0.21", {}, "rocm_attention", "aiter_fused_moe"),
        ("deepseek-v3", "mi300x", "vllm:0.18", {"tp": 8}, "triton_attention", "aiter_fused_moe"),
        ("mixtral-8x7b-v0.1", "mi300x", "sglang:0.5.14", {}, "aiter_attention", "aiter_fused_moe"),
    ],
)
def test_sources_decide_kernels(
    model: str, gpu: str, engine: str, flags: dict[str, Any], attention: str | None, experts: str | None
) -> None:
    name, _, version = engine.partition(":")
    deployment = {"model": model, "gpu": gpu, "engine": name, "engine_version": version, **flags}
    step = ks.predict(**deployment, phase="decode", batch_size=8, context_len=2048)
    kernels = {row["family"]: row["implementation"] for row in step.kernels.to_pylist()}
    found = kernels.get("decode_attention", kernels.get("mla_decode"))
    assert (found, kernels.get("moe")) == (attention, experts)


def test_evidence_names_the_kernel_that_another_stands_for() -> None:
    step = ks.predict(model="mixtral-8x7b-v0.1", gpu="mi325x", engine_version="0.21", tp=2, context_len=1024)
    evidence = {row["family"]: row["evidence"] for row in step.kernels.to_pylist()}
    assert evidence["moe"].endswith("aiter_fused_moe, for fused_moe_triton, which no sweep holds")


def test_evidence_says_which_version_was_measured() -> None:
    step = ks.predict(model="llama-3.1-8b", gpu="h100_sxm", engine_version="0.40", context_len=1024)
    evidence = {row["family"]: row["evidence"] for row in step.kernels.to_pylist()}
    assert evidence["gemm"].endswith("measured in vllm 0.31.0, not 0.40")
    measured = ks.predict(model="llama-3.1-8b", gpu="h100_sxm", engine_version="0.31", context_len=1024)
    assert "measured in" not in next(row["evidence"] for row in measured.kernels.to_pylist() if row["family"] == "gemm")
    newest = ks.predict(model="llama-3.1-8b", gpu="h100_sxm", context_len=1024)
    older = ks.predict(model="llama-3.1-8b", gpu="h100_sxm", engine_version="0.24", context_len=1024)
    assert newest.total_us == measured.total_us != older.total_us


def test_versions_that_a_source_likens_to_a_swept_one_take_its_time() -> None:
    # gpt-oss's experts under vLLM: triton_kernels 3.6.0 came with 0.17 and was slower; 0.19.1 and 0.24.0 were swept
    kernel = {"engine": "vllm", "implementation": "triton_kernels_moe", "dtype": "w4a16_mxfp4"}
    with ks.connect() as session:
        pack = session.table("eta_coefficients")
    logs = {
        version: version_at(pack, "moe", kernel, "h200_sxm", version).logs
        for version in ("0.11.1", "0.16.0", "0.17.0", "0.18.0", "0.19.1", "0.24.0")
    }
    assert (logs["0.11.1"] == logs["0.16.0"]).all() and (logs["0.16.0"] == logs["0.24.0"]).all()
    assert (logs["0.17.0"] == logs["0.18.0"]).all() and (logs["0.18.0"] == logs["0.19.1"]).all()
    assert (logs["0.17.0"] > logs["0.16.0"] + 0.05).all() and (logs["0.17.0"] < logs["0.16.0"] + 0.4).all()
    assert not version_at(pack, "moe", kernel, "h200_sxm", "0.11.1").measured
    rows = rows_of_part(pack, "moe", "version").to_pylist()
    likened = [row for row in rows if "triton_kernels 3.6.0" in row["source"]]
    assert {row["engine_version"] for row in likened} == {"0.10.0"} and all(row["log_sd"] for row in likened)
    swept = [row for row in rows if row["engine_version"] == "0.24.0" and row["implementation"] == "triton_kernels_moe"]
    assert {row["gpu"] for row in alike_rows(swept)} == {row["gpu"] for row in likened}
