"""Parallel sizes as launched: products are divided, repeated measurements left out, and the reason is stated."""

from __future__ import annotations

import polars as pl
import pytest

from kernelsight.laboratory.runs.sources.parallel_sizes import (
    DATA_PARALLEL,
    RESTORED,
    measured_elsewhere,
    with_launched_sizes,
)

DUMP = "db-dump/2026-04-27; silicon_concurrency=16"
EARLIER = "source_file=2026-03-25.csv; silicon_concurrency=16"
ROW = {
    **{"silicon_data_source": DUMP, "backend": "trtllm", "model_path": "openai/gpt-oss-120b", "system": "h200_sxm"},
    **{"precision": "fp4", "isl": 1024, "osl": 1024, "batch_size": 16, "silicon_ttft_ms": 90.0, "silicon_tpot_ms": 6.0},
    **{"tp_size": 8, "attention_dp_size": 1, "moe_tp_size": 8, "moe_ep_size": 1},
}
SIZES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")


def sizes_of(**stated: object) -> tuple:
    """Return the sizes and the reason of one row."""
    [row] = with_launched_sizes(pl.DataFrame([{**ROW, **stated}])).to_dicts()
    return (*(row[name] for name in SIZES), row["scored_separately"])


@pytest.mark.parametrize(
    ("stated", "launched"),
    [
        ({}, (8, 1, 8, 1, None)),
        (dict(zip(SIZES, (64, 1, 8, 8), strict=True)), (8, 1, 1, 8, RESTORED)),
        # complete before: scored with the others
        (dict(zip(SIZES, (4, 1, 2, 2), strict=True)), (2, 1, 1, 2, None)),
        (dict(zip(SIZES, (1, 64, 8, 8), strict=True)), (1, 8, 1, 8, DATA_PARALLEL)),
        (dict(zip(SIZES, (1, 4, 4, 1), strict=True)), (1, 4, 4, 1, DATA_PARALLEL)),
        # other files state what was launched
        ({"silicon_data_source": EARLIER, **dict(zip(SIZES, (8, 1, 2, 4), strict=True))}, (8, 1, 2, 4, None)),
        ({"backend": "vllm", **dict(zip(SIZES, (4, 4, 1, 16), strict=True))}, (4, 1, 1, 4, RESTORED)),
        (
            {"backend": "vllm", "model_path": "MiniMaxAI/MiniMax-M2.5", **dict(zip(SIZES, (4, 4, 1, 16), strict=True))},
            (4, 4, 1, 16, None),
        ),
        # not stated: left out later
        (dict(zip(SIZES, (2, 0, 0, 0), strict=True)), (2, 0, 0, 0, None)),
    ],
)
def test_products_become_the_sizes_of_the_launch(stated: dict, launched: tuple) -> None:
    assert sizes_of(**stated) == launched


def test_gpus_of_experts_are_those_of_attention() -> None:
    tp, ranks, moe_tp, moe_ep, _ = sizes_of(**dict(zip(SIZES, (1, 16, 4, 4), strict=True)))
    assert tp * ranks == moe_tp * moe_ep == 4


def test_a_measurement_of_an_earlier_row_is_left_out_of_those_scored_separately() -> None:
    stated = {"silicon_data_source": EARLIER, **dict(zip(SIZES, (8, 1, 1, 8), strict=True))}
    product = dict(zip(SIZES, (64, 1, 8, 8), strict=True))
    rows = [
        {**ROW, **stated},
        {**ROW, **stated, "silicon_tpot_ms": 6.001},  # stated twice: neither is restored, both stay
        {**ROW, **product, "silicon_ttft_ms": 90.01},
        {**ROW, **product, "silicon_ttft_ms": 95.0},
        {**ROW, **product, "silicon_ttft_ms": 90.0, "isl": 8192},
    ]
    kept = measured_elsewhere(with_launched_sizes(pl.DataFrame(rows)), pl.lit(16))
    assert [(row["silicon_ttft_ms"], row["isl"]) for row in kept.to_dicts()] == [
        (90.0, 1024),
        (90.0, 1024),
        (95.0, 1024),
        (90.0, 8192),
    ]
