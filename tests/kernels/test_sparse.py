"""Times of sparse attention: scores and selection, attention over a fixed number of keys, and what never falls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelsight.kernels import sparse
from kernelsight.kernels.families import FAMILIES

H100 = {"sm_count": 132.0, "clock_per_us": 1830.0, "memory_bytes_per_us": 3.35e6, "math_flops_per_us": 989.4e6}
H100 |= {"uncut_flops_per_us": 989.4e6, "uncut_16_bit_flops_per_us": 989.4e6}
START = {one.name: one.start for one in FAMILIES["sparse_attention"].latency_model.coefficients}


def call(width: Any, queries: Any, pairs: Any, heads: float = 64.0, **more: float) -> dict[str, Any]:
    queries, pairs = np.asarray(queries, dtype=float), np.asarray(pairs, dtype=float)
    sizes = {"queries": queries, "visible_pairs": pairs, "heads": heads, "width": width}
    return {**sizes, "flops": 2.0 * pairs * heads * width, "bytes": 100.0 * queries, **more}


def time_us(columns: dict[str, Any], gpu: dict = H100, **at: float) -> Any:
    return sparse.sparse_attention(np, columns, gpu, START | at)[0]


def test_an_indexer_is_its_scores_and_the_selection() -> None:
    whole = time_us(call(128.0, 4096, 8.4e6))
    scores = time_us(call(128.0, 4096, 8.4e6, selects=0.0))
    selection = time_us(call(0.0, 4096, 8.4e6)) - START["floor_us"]
    assert whole == pytest.approx(scores + selection, rel=1e-3)
    assert scores == pytest.approx(4.0 + 2 * 8.4e6 * 64 * 128 / (989.4e6 * 0.6), rel=1e-3)
    assert selection == pytest.approx(4096 / 132 * 1.5 + 0.8 * 8.4e6 / (132 * 1830), rel=5e-3)


def test_attention_pays_the_selected_keys_and_whole_waves_of_one_query() -> None:
    """2048 keys a query, whatever it sees; one query takes as long as one on each of the multiprocessors."""
    each_us = 2 * 64 * 1088 * 2048 * 132 / (989.4e6 * 0.6)
    for queries, pairs in ((1, 5.0), (1, 2048.0), (132, 132 * 2048.0)):
        assert time_us(call(1088.0, queries, pairs), selected_keys=2048.0) == pytest.approx(4.0 + each_us, rel=1e-3)
    # measured: 1980 us for 4096 queries, 55.5 us for one (aiconfigurator-core 0.12.0, FlashMLA on H100)
    assert time_us(call(1088.0, 4096, 4096 * 2048.0), selected_keys=2048.0) == pytest.approx(1980.0, rel=0.1)
    assert time_us(call(1088.0, 1, 2048.0), selected_keys=2048.0) == pytest.approx(55.5, rel=0.25)


def test_few_heads_fill_a_tile() -> None:
    assert time_us(call(1088.0, 512, 1e6, heads=8.0)) == time_us(call(1088.0, 512, 1e6, heads=64.0))
    assert time_us(call(1088.0, 512, 1e6, heads=128.0)) > 1.8 * time_us(call(1088.0, 512, 1e6, heads=64.0))


def test_a_tile_of_blackwell_holds_128_heads() -> None:
    """As its sweep has it: 128 heads take 1.15 times as long as 64 on B200, 1.90 times on H100."""
    rates = dict.fromkeys(("math_flops_per_us", "uncut_flops_per_us", "uncut_16_bit_flops_per_us"), 2250e6)
    b200 = {"sm_count": 148.0, "clock_per_us": 1965.0, "memory_bytes_per_us": 8e6, **rates}
    few, many = (time_us(call(1088.0, 512, 1e6, heads=heads), b200) for heads in (16.0, 128.0))
    assert few == many < time_us(call(1088.0, 512, 1e6, heads=256.0), b200)
