"""Work of calls, macro by macro, against figures worked out by hand; every macro is worked out, and is called."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import pytest

from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.moe import POPULARITY_VARIANCE
from kernelsight.kernels.work import work_cursor

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "sql" / "macros" / "work.sql").read_text()
MACROS = re.findall(r"create macro (\w+)\(", TEXT)
# 3 prompts of 4 new tokens after 5 cached ones; 8 heads of 64, 2 KV heads, an 8-bit cache
PROMPT = "3, 4, 5, 0, 8, 2, 64, 1"
WORKED = {
    "gemm_flops(2, 3, 5)": 2 * 2 * 3 * 5,
    # 8-bit rows, 4-bit weights, 16-bit results
    "gemm_bytes(2, 3, 5, 8, 4)": 2 * 5 + 3 * 5 / 2 + 2 * 3 * 2,
    "batched_gemm_flops(7, 2, 3, 5)": 7 * 60,
    "batched_gemm_bytes(7, 2, 3, 5, 16)": 7 * 2 * (2 * 5 + 3 * 5 + 2 * 3),
    # a reach of 8 after 5 cached tokens: 3 queries until it is full; none where more than the reach is cached
    "growing_queries(4, 5, 8)": 3,
    "growing_queries(4, 5, 0)": 4,
    "growing_queries(4, 9, 8)": 0,
    "visible_pairs(4, 0, 0)": 1 + 2 + 3 + 4,
    "visible_pairs(4, 5, 0)": 6 + 7 + 8 + 9,
    "visible_pairs(4, 5, 8)": 6 + 7 + 8 + 8,
    "visible_pairs(4, 5, 2)": 2 + 2 + 2 + 2,
    "cached_keys(5, 0)": 5,
    "cached_keys(5, 3)": 2,
    "attention_flops(8, 64, 10)": 2 * 2 * 8 * 64 * 10,
    # queries and outputs, new keys and values in 16 bits, cached keys and values in 8
    f"prefill_attention_bytes({PROMPT})": 3 * (2 * 2 * 4 * 8 * 64 + 2 * 2 * 4 * 2 * 64 + 2 * 5 * 2 * 64),
    "mla_prefill_flops(2, 192, 128, 10)": 2 * 2 * (192 + 128) * 10,
    # queries, keys of 192; values, outputs of 128; cached keys and values are expanded too
    "mla_prefill_bytes(3, 4, 5, 2, 192, 128)": 3 * 2 * 2 * (4 * 192 + 9 * 192 + 9 * 128 + 4 * 128),
    # 3 tokens of 5 over 4 streams: 8 + 16 products, or each stream from all and the output
    "hyper_connection_flops(3, 5, 4, false)": 2 * 3 * 5 * 4 * (8 + 16),
    "hyper_connection_flops(3, 5, 4, true)": 2 * 3 * 5 * 4 * (4 + 1),
    "hyper_connection_bytes(3, 5, 4, false)": 2 * 3 * 5 * (4 + 1),
    "hyper_connection_bytes(3, 5, 4, true)": 2 * 3 * 5 * (4 + 1 + 4),
    "joins_prompts(1, 'mixed_decode', 0, 1)": 1,
    "joins_prompts(1, 'whole', 1, 1)": 0,
    "joins_prompts(null, 'mixed_decode', 8, 2)": 0,
    "keys_seen(7, 0)": 8,
    "keys_seen(7, 4)": 4,
    "decode_attention_bytes(2, 7, 4, 8, 2, 64, 2)": 2 * (2 * 2 * 8 * 64 + 2 * 4 * 2 * 64 * 2),
    # scores over 512 + 64, outputs over 512
    "latent_flops(10, 16, 512, 64)": 2 * 10 * 16 * (576 + 512),
    "latent_bytes(8, 2, 16, 512, 64, 1)": 8 * 576 + 2 * 2 * 16 * (576 + 512),
    "index_flops(10, 64, 128)": 2 * 10 * 64 * 128,
    "index_bytes(8, 2, 64, 128)": 8 * (128 + 4) + 2 * 64 * 128,
    "selected_bytes(2048)": 2048 * 4,
    "convolution_flops(9, 32, 4)": 2 * 9 * 32 * 4,
    # channels in and out, state of 3 positions in and out, weights of 4 taps
    "convolution_bytes(9, 32, 2, 4)": 2 * 32 * (9 + 9 + 2 * 3 + 2 * 3 + 4),
    "delta_rule_flops(9, 8, 64, 32)": 3 * 2 * 9 * 8 * 64 * 32,
    # queries and keys, values and outputs, two gates; states in FP32, in and out
    "delta_rule_bytes(9, 2, 8, 4, 64, 32)": 2 * 9 * (2 * 4 * 64 + 2 * 8 * 32 + 2 * 8) + 2 * 4 * 2 * 8 * 64 * 32,
    # 2 of 16 experts a token, 8 of them here: two tokens miss one with probability 7/8 x 7/8
    "evenly_reached_experts(2, 8, 2, 2)": 8 * (1 - 49 / 64),
    "evenly_reached_experts(1, 4, 4, 1)": 4,
    # the first token reaches 2 of 16, so 1 of 8; without a second one popularity does not matter
    "popularity_variance()": POPULARITY_VARIANCE,
    "unevenly_reached_experts(1, 16, 2, 2, 0.3)": 1,
    "unevenly_reached_experts(2, 16, 2, 2, 1.0)": 8 * (1 - 7 / 8 / (1 + log(8 / 7))),
    "expert_block_rows()": 128,
    "whole_blocks(128)": 128,
    "whole_blocks(129)": 2 * 128,
    "most_low_latency_tokens()": 1024,
    "sent_token_bytes('fp8', 'fp8', 8)": 1.0,
    "sent_token_bytes('fp8', 'fp8_block', 8.25)": 2.0,
    "sent_token_bytes('bf16', 'bf16', 16)": 2.0,
    # 4 bits and an 8-bit scale for 16 of them
    "nvfp4_token_bytes()": (4 + 8 / 16) / 8,
    "moe_flops(6, 2, 2, 96, 64)": 2 * 6 * 2 / 2 * 96 * 64,
    "moe_token_bytes(6, 2, 2, 64)": 2 * 2 * 6 * 64,
    # of four ranks each gets half of the tokens
    "moe_token_bytes(6, 2, 4, 64)": 2 * 2 * 3 * 64,
    "moe_bytes(5, 96, 64, 4, 6, 2, 2)": 5 * 96 * 64 / 2 + 2 * 2 * 6 * 64,
    "norm_flops(9, 32)": 4 * 9 * 32,
    "norm_bytes(9, 32, false)": 2 * 2 * 9 * 32,
    "norm_bytes(9, 32, true)": 4 * 2 * 9 * 32,
    "activation_flops(9, 32)": 4 * 9 * 32,
    "activation_bytes(9, 32, true)": 3 * 2 * 9 * 32,
    "activation_bytes(9, 32, false)": 2 * 2 * 9 * 32,
    "rope_flops(9, 32)": 3 * 9 * 32,
    "rope_bytes(9, 32)": 2 * 2 * 9 * 32,
    "kv_write_bytes(9, 32, 1)": 9 * 32 * (2 + 1),
    "quantize_flops(9, 32)": 2 * 9 * 32,
    "quantize_bytes(9, 32, 8)": 9 * 32 * (2 + 1),
    "embedding_bytes(9, 32)": 2 * 2 * 9 * 32,
    "sampling_flops(9, 32)": 3 * 9 * 32,
    "sampling_bytes(9, 32, false)": 2 * 4 * 9 * 32,
    "sampling_bytes(9, 32, true)": 4 * 9 * 32,
}


@pytest.mark.parametrize("call", WORKED)
def test_work_by_hand(call: str) -> None:
    assert work_cursor().sql(f"select ({call})::double").fetchall()[0][0] == pytest.approx(WORKED[call], rel=1e-14)


def test_every_macro_is_worked_out_here() -> None:
    assert set(MACROS) == {call.partition("(")[0] for call in WORKED}


def test_every_macro_is_called() -> None:
    queries = " ".join(path.read_text() for path in (ROOT / "sql" / "lower").glob("*.sql"))
    columns = " ".join(sql for family in FAMILIES.values() for sql in family.columns.values())
    bodies = " ".join(part.partition(") as")[2] for part in TEXT.split("create macro"))
    called = set(re.findall(r"(\w+)\(", f"{queries} {columns} {bodies}"))
    assert set(MACROS) <= called


def test_served_and_measured_experts_differ_on_purpose_and_meet_where_none_is_preferred() -> None:
    """With hardly any spread of popularity the gamma distribution is the even draw."""
    row = "select evenly_reached_experts(64, 32, 8, 4), unevenly_reached_experts(64, 128, 8, 4, {})"
    even, preferred = work_cursor().sql(row.format(1.0)).fetchall()[0]
    assert preferred < 0.95 * even
    even, hardly = work_cursor().sql(row.format(1e-6)).fetchall()[0]
    assert hardly == pytest.approx(even, rel=1e-4)
