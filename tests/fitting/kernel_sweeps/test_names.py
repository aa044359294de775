"""Which library kernel stands behind a sweep's name."""

from __future__ import annotations

import polars as pl
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.fitting.kernel_sweeps.importing import with_implementation


def named(family: str, capability: str, engine: str, source: str, dtype: str, version: str = "1", math: str = "bf16"):
    rows = pl.DataFrame(
        {"engine": [engine], "kernel_source": [source], "dtype": [dtype], "engine_version": [version], "math": [math]}
    )
    renamed, unlisted = with_implementation(rows, family, capability)
    return renamed["implementation"].item(), renamed["math"].item(), unlisted


@pytest.mark.parametrize("source", ["torch.nn.functional.linear", "vllm_default"])
def test_renamed_kernels_share_a_name(source: str) -> None:
    assert named("gemm", "8.0", "vllm", source, "bf16")[0] == "cublas"
    assert named("gemm", "8.0", "sglang", "sglang_torch_linear", "bf16")[0] == "cublas"


@pytest.mark.parametrize(
    ("capability", "implementation"),
    [
        ("8.0", "trtllm_mma_fmha"),
        ("9.0", "trtllm_wgmma_fmha"),
        ("10.0", "trtllm_gen_fmha"),
        ("12.0", "trtllm_mma_fmha"),
    ],
)
def test_a_router_goes_by_the_generation(capability: str, implementation: str) -> None:
    assert named("prefill_attention", capability, "trtllm", "torch_flow", "bf16/bf16")[0] == implementation


@pytest.mark.parametrize(
    ("family", "engine", "source", "capability", "implementation"),
    [
        ("prefill_attention", "sglang", "flashinfer", "8.9", "flashinfer"),
        ("prefill_attention", "sglang", "flashinfer", "10.0", "flashinfer_cutlass_fmha"),
        ("prefill_attention", "sglang", "flashinfer", "12.0", "flashinfer"),
        ("moe", "sglang", "sglang_flashinfer_cutlass_moe", "9.0", "flashinfer_cutlass_moe_untuned"),
        ("moe", "sglang", "sglang_flashinfer_cutlass_moe", "12.0", "flashinfer_cutlass_moe"),
    ],
)
def test_one_name_of_a_sweep_is_another_kernel_on_another_generation(
    family: str, engine: str, source: str, capability: str, implementation: str
) -> None:
    assert named(family, capability, engine, source, "bf16")[0] == implementation


def test_math_is_what_ran_not_what_the_label_says() -> None:
    assert named("decode_attention", "9.0", "vllm", "vllm_flash_attn_fa3", "bf16/fp8")[:2] == (
        "flash_attention_3",
        "fp8",
    )
    assert named("decode_attention", "8.9", "sglang", "flashinfer", "bf16/fp8")[:2] == ("flashinfer", "bf16")


def test_the_most_exact_fact_wins() -> None:
    assert named("all_reduce", "9.0", "vllm", "vLLM_custom_graph", "bf16", "0.24.0")[0] == "vllm_all_reduce_sm90"
    assert named("all_reduce", "9.0", "vllm", "vLLM_custom_graph", "bf16", "0.14.0")[0] == "vllm_custom_all_reduce"


def test_an_unlisted_name_is_told() -> None:
    assert named("gemm", "9.0", "vllm", "A.New-Kernel", "bf16") == ("a_new_kernel", "bf16", ["vllm gemm A.New-Kernel"])


def test_two_facts_never_tie() -> None:
    # facts about one name that leave as much open would be chosen between by their order in the file
    listed: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row in facts("kernel_sources").to_pylist():
        narrowed = tuple(row[name] for name in ("compute_capability", "dtype", "engine_version"))
        listed.setdefault((row["engine"], row["family"], row["kernel_source"]), []).append(narrowed)
    for name, patterns in listed.items():
        for one in patterns:
            for other in patterns:
                both_fit = all(a == b or "*" in (a, b) for a, b in zip(one, other, strict=True))
                same_width = [value == "*" for value in one] == [value == "*" for value in other]
                assert one == other or not both_fit or not same_width, (name, one, other)
