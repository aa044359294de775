"""What no kernel can beat, held against figures worked out by hand for an H100."""

from __future__ import annotations

import polars as pl
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.fitting.kernel_sweeps.bounds import impossible, least_work, peak_flops_per_us
from kernelsight.fitting.kernel_sweeps.points import first_reason

H100 = next(row for row in facts("gpus").to_pylist() if row["gpu"] == "h100_sxm")
L40S = next(row for row in facts("gpus").to_pylist() if row["gpu"] == "l40s")
ATTENTION = {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 64, "format": "bf16"}
EXPERTS = {"tokens": 5, "hidden": 64, "intermediate": 32, "top_k": 8, "moe_tp": 1, "moe_ep": 1, "expert_matrices": 3}
EXPERTS |= {"distribution": "balanced"}


@pytest.mark.parametrize(
    ("family", "row", "flops"),
    [
        ("gemm", {"m": 2, "n": 3, "k": 5}, 60),
        ("batched_gemm", {"batch": 7, "m": 2, "n": 3, "k": 5}, 420),
        # 4 tokens: 10 pairs; 2 sequences, 8 heads of 64, two products
        ("prefill_attention", ATTENTION | {"new_tokens": 4, "window": 0}, 4 * 2 * 8 * 64 * 10),
        # a window of 2: 1 + 2 + 2 + 2 pairs
        ("prefill_attention", ATTENTION | {"new_tokens": 4, "window": 2}, 4 * 2 * 8 * 64 * 7),
        ("encoder_attention", ATTENTION | {"new_tokens": 4}, 4 * 2 * 8 * 64 * 16),
        ("decode_attention", ATTENTION | {"context": 7, "window": 0}, 4 * 2 * 8 * 64 * 8),
        ("decode_attention", ATTENTION | {"context": 7, "window": 4}, 4 * 2 * 8 * 64 * 4),
        (
            "mla_prefill",
            {"batch": 1, "heads": 2, "head_dim": 192, "v_head_dim": 128, "new_tokens": 4},
            2 * 2 * 320 * 10,
        ),
        ("mla_decode", {"batch": 1, "heads": 2, "kv_lora_rank": 512, "rope_dim": 64, "context": 3}, 2 * 2 * 1088 * 4),
        ("moe", EXPERTS, 2 * 5 * 8 * 3 * 64 * 32),
        ("moe", EXPERTS | {"expert_matrices": 2}, 2 * 5 * 8 * 2 * 64 * 32),
        # shapes of Nemotron have two matrices, whatever the sweep says: by the number of experts of a token, or by both
        # sizes, the second of which is sharded
        ("moe", EXPERTS | {"top_k": 22}, 2 * 5 * 22 * 2 * 64 * 32),
        ("moe", EXPERTS | {"hidden": 2688, "intermediate": 928, "moe_tp": 2}, 2 * 5 * 8 * 2 * 2688 * 928),
        ("moe", EXPERTS | {"hidden": 2688, "intermediate": 928}, 2 * 5 * 8 * 3 * 2688 * 928),
    ],
)
def test_work(family: str, row: dict[str, object], flops: float) -> None:
    rows = pl.DataFrame([row])
    assert rows.select(least_work("flops", family, rows)).item() == flops


def test_the_least_bytes() -> None:
    """A cache is read in its own format; a rank without balanced routing may reach no expert."""
    experts = EXPERTS | {"moe_ep": 8, "format": "bf16"}
    for family, row, least in (
        ("decode_attention", ATTENTION | {"context": 7, "window": 0, "format": "fp8"}, 2 * 2 * 8 * 2 * 64),
        ("moe", experts, 3 * 64 * 32 * 2),
        ("moe", experts | {"distribution": "power_law_1.2"}, 0),
    ):
        rows = pl.DataFrame([row])
        assert rows.select(least_work("bytes", family, rows)).item() == least


@pytest.mark.parametrize(
    ("math", "number_format", "flops_per_s"),
    [("bf16", "bf16", 989.4e12), ("bf16", "fp8", 1978.9e12), ("fp8", "fp8", 1978.9e12), ("fp4", "nvfp4", 989.4e12)],
)
def test_the_peak_is_the_fastest_that_the_labels_allow(math: str, number_format: str, flops_per_s: float) -> None:
    row = pl.DataFrame({"math": [math], "format": [number_format]})
    assert row.select(peak_flops_per_us(H100)).item() * 1e6 == pytest.approx(flops_per_s)


@pytest.mark.parametrize(
    ("ep", "distribution", "latency_us", "fast"),
    [
        (1, "power_law_1.2", 100.0, True),
        # under expert parallelism this rank may have got no token, unless routing was balanced
        (8, "power_law_1.2", 1.0, False),
        (8, "balanced", 10.0, True),
    ],
)
def test_no_routing_beats_the_bound_of_a_moe(ep: int, distribution: str, latency_us: float, fast: bool) -> None:
    row = {
        "tokens": 16384,
        "hidden": 4096,
        "intermediate": 1536,
        "top_k": 8,
        "moe_tp": 1,
        "moe_ep": ep,
        "experts": 128 // ep,
    }
    row |= {
        "expert_matrices": 3,
        "math": "bf16",
        "format": "bf16",
        "distribution": distribution,
        "latency_us": latency_us,
    }
    rows = pl.DataFrame([row | {"reason": None}], schema_overrides={"reason": pl.String})
    assert (first_reason(rows, *impossible("moe", rows, H100))["reason"].item() is not None) is fast


def test_what_l2_can_hold_is_no_bound() -> None:
    # 67 MB of weights: more than the L2 of an H100, less than that of an L40S
    row = {"m": 1, "n": 4096, "k": 8192, "format": "bf16", "math": "bf16", "latency_us": 2.0}
    rows = pl.DataFrame([row | {"reason": None}], schema_overrides={"reason": pl.String})
    assert first_reason(rows, *impossible("gemm", rows, H100))["reason"].item() == "faster_than_memory"
    assert first_reason(rows, *impossible("gemm", rows, L40S))["reason"].item() is None


def test_a_reduction_cannot_beat_the_links() -> None:
    rows = pl.DataFrame({"bytes": [45_000_000] * 2, "gpus": [8] * 2, "latency_us": [80.0, 90.0], "reason": [None] * 2})
    checked = first_reason(rows.cast({"reason": pl.String}), *impossible("all_reduce", rows, H100))
    assert checked["reason"].to_list() == ["faster_than_link", None]


def test_a_family_without_a_bound_rejects_nothing() -> None:
    assert impossible("sparse_attention", pl.DataFrame({"queries": [1]}), H100) == []
