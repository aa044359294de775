"""Prefill attention: values by hand, structure of kernels, cached tokens, windows, bounds and order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.prefill import attention

MATH, UNITS, CLOCK, DRAM, L2 = 989.4e6, 132.0, 1830.0, 3.35e6, 52428800.0
H100 = {
    "math_flops_per_us": MATH, "sm_count": UNITS, "clock_per_us": CLOCK, "memory_bytes_per_us": DRAM, "l2_bytes": L2,
    "exponentials_per_clock": 16.0, "uncut_flops_per_us": MATH, "uncut_16_bit_flops_per_us": MATH,
}  # fmt: skip
START = {one.name: one.start for one in FAMILIES["prefill_attention"].latency_model.coefficients}
COLD = 1e15


def call_of(new: object, cached: object = 0.0, **given: object) -> dict[str, np.ndarray]:
    """Return the columns of causal attention as its lowering computes them; 16-bit keys."""
    sizes = {"batch": 1.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "window": 0.0, **given}
    names = ("new_tokens", "cached_tokens", *sizes)
    values = np.broadcast_arrays(*(np.asarray(value, float) for value in (new, cached, *sizes.values())))
    of = dict(zip(names, values, strict=True))
    new, cached, window = of["new_tokens"], of["cached_tokens"], of["window"]
    growing = np.where(window > 0, np.clip(window - cached, 0.0, new), new)
    pairs = of["batch"] * (growing * cached + growing * (growing + 1) / 2 + (new - growing) * window)
    read = np.where(window > 0, np.minimum(cached, window - 1), cached)
    tokens = 4.0 * new * of["heads"] + 4.0 * (new + read) * of["kv_heads"]
    work = {"flops": 4.0 * of["heads"] * of["head_dim"] * pairs, "bytes": of["batch"] * of["head_dim"] * tokens}
    return {**of, "visible_pairs": pairs, **work, "working_set_bytes": np.full(new.shape, COLD)}


def times(call: dict[str, np.ndarray], gpu: dict[str, float] | None = None, **at: float) -> np.ndarray:
    return attention(np, call, gpu or H100, {**START, **at})[0]


def root(*values: float) -> float:
    return math.sqrt(sum(value * value for value in values))


def test_a_long_prompt_by_hand() -> None:
    time, tiles, _ = attention(np, call_of(8192.0), H100, START)
    # 4 heads share 128 rows, 32 tokens; half a key tile of 64 lies beyond the causal edge
    assert tiles == 8 * 8192 * 4 / 128
    waves, mean, most = 2048 / UNITS, 8193 / 2 + 32, 8192
    pair_us = 1.4 * 4 * 128 / MATH + 0.6 / (16 * UNITS * CLOCK)
    piece = 512 + most * waves
    longest = most * piece / root(most, piece)
    work_us = (waves * mean + 0.8 * longest) * pair_us * UNITS * 128
    query, kv = 4.0 * 8192 * 32 * 128, 4.0 * 8192 * 8 * 128
    byte_us = 1.07 / DRAM
    copies_us = (0.3 * query + 1.0 * kv) * (byte_us + 1 / (10 * UNITS * CLOCK))
    block_us = 2.0 * root(waves, 1.0) * 1800 / CLOCK
    expected = 2.0 + 5.0 + root(work_us + block_us, (query + kv) * byte_us) + copies_us
    assert time == pytest.approx(expected, rel=1e-6)


def test_without_packing_every_query_head_has_its_own_tiles() -> None:
    _, tiles, _ = attention(np, call_of(8192.0), H100, {**START, "packs_group": 0.0, "query_tile": 64.0})
    assert tiles == 32 * 8192 / 64
    _, short, _ = attention(np, call_of(16.0, batch=2.0), H100, {**START, "packs_group": 0.0})
    assert short == 2 * 32


def test_row_padding_adds_part_of_a_tile_to_each_sequence_and_head() -> None:
    _, whole, _ = attention(np, call_of(1000.0), H100, START)
    _, padded, _ = attention(np, call_of(1000.0), H100, {**START, "row_padding": 0.5})
    assert padded - whole == pytest.approx(0.5 * 8)


def test_an_encoder_computes_all_pairs_and_no_causal_edge() -> None:
    new = 4096.0
    causal = call_of(new, kv_heads=32.0)
    whole = {**causal, "visible_pairs": np.array(new * new), "flops": np.array(4.0 * 32 * 128 * new * new)}
    del whole["kv_heads"], whole["window"]
    work = {"longest_factor": 0.05, "tile_overhead_us": 0.1, "query_passes": 0.01, "kv_passes": 0.01}
    edge = (new / 2 + 0.5 + 64) / new
    floor_us = 7.0 + 0.4
    assert (times(causal, **work) - floor_us) / (times(whole, **work) - floor_us) == pytest.approx(edge, rel=0.02)


def test_cached_tokens_cost_what_their_pairs_and_bytes_cost() -> None:
    """1024 tokens after 7168 cost less than a prompt of 8192, and what that prompt's last 1024 rows add to it."""
    whole, before = times(call_of(8192.0)), times(call_of(7168.0))
    chunk = times(call_of(1024.0, 7168.0))
    assert chunk < 0.5 * whole
    # alone, the chunk pays the launch, and its longest tile is a larger part of it
    assert whole - before < chunk < 1.5 * (whole - before)


def test_idle_multiprocessors_take_part_of_a_long_cached_prompt() -> None:
    """One chunk of 64 tokens fills 16 of 132 multiprocessors, with all 32,768 keys each; or all, with 4,500 keys."""
    few = call_of(64.0, 32_768.0)
    alone, split = times(few, splits_keys=0.0), times(few)
    assert split < 0.4 * alone
    # no piece is shorter than 512 keys, and a GPU that is filled four times over splits little
    assert times(call_of(64.0, 16.0)) == pytest.approx(float(times(call_of(64.0, 16.0), splits_keys=0.0)), rel=0.01)
    full = call_of(2048.0, batch=8.0)
    assert times(full) == pytest.approx(float(times(full, splits_keys=0.0)), rel=0.02)


def test_a_window_bounds_the_cost_of_a_token() -> None:
    few, many = times(call_of(16384.0, window=1024.0)), times(call_of(32768.0, window=1024.0))
    assert many == pytest.approx(2 * few, rel=0.02)
    full = times(call_of(32768.0))
    assert many < 0.15 * full
    assert times(call_of(32768.0, window=1024.0), skips_window=0.0) == pytest.approx(full, rel=0.01)
    assert many < times(call_of(32768.0, window=1024.0), window_factor=2.0) < 2.0 * many


def test_what_lies_in_l2_is_not_read_from_dram() -> None:
    call = call_of(64.0, batch=8.0)
    warm = {**call, "working_set_bytes": call["bytes"]}
    assert call["bytes"] < 0.25 * L2
    assert times(warm, query_passes=5.0) < times(call, query_passes=5.0) - 5.0
    large = call_of(64.0, batch=512.0)
    assert times({**large, "working_set_bytes": large["bytes"]}) == pytest.approx(times(large), rel=1e-4)


def test_wide_and_narrow_heads_bend_the_tensor_time_only() -> None:
    for width, name in ((64.0, "narrow_head"), (256.0, "wide_head")):
        call = call_of(8192.0, head_dim=width)
        grown = times(call, **{name: 1.5}) - times(call)
        again = times(call, **{name: 2.0}) - times(call, **{name: 1.5})
        assert grown == pytest.approx(again, rel=0.02)
        assert (times(call_of(8192.0), **{name: 1.5}) == times(call_of(8192.0))).all()
    padded = times(call_of(8192.0, head_dim=72.0), head_step=128.0, narrow_head=1.0)
    assert padded > 1.3 * times(call_of(8192.0, head_dim=72.0), head_step=8.0, narrow_head=1.0)


def test_fp8_gains_less_than_its_peak() -> None:
    fp8 = {**H100, "math_flops_per_us": 2 * MATH, "uncut_flops_per_us": 2 * MATH}
    only_products = {"exponential_factor": 0.1, "tile_overhead_us": 0.1, "query_passes": 0.01, "kv_passes": 0.01}
    whole, half, none = (
        times(call_of(16384.0, batch=8.0), gpu, **only_products, lost_speedup=lost) - 7.0
        for gpu, lost in ((H100, 0.4), (fp8, 0.4), (fp8, 1.0))
    )
    assert whole / half == pytest.approx(2**0.6, rel=0.03)
    assert whole / none == pytest.approx(1.0, rel=0.001)


@pytest.mark.parametrize("window", [0.0, 4096.0])
def test_between_knots_latency_is_nearly_straight(window: float) -> None:
    """Serving reads knots six to an octave of new tokens and three to an octave of cached ones, and joins them."""
    for low in (100.0, 700.0, 3000.0):
        for cached in (0.0, 900.0, 20_000.0):
            ends = np.array([low, low * 2 ** (1 / 6)])
            mean = times(call_of(ends.mean(), cached, window=window))
            assert times(call_of(ends, cached, window=window)).mean() == pytest.approx(float(mean), rel=0.01)


def test_numbers_fit_a_float32() -> None:
    new = np.float32(1e6)
    call = {name: np.float32(value) for name, value in call_of(new, 1e6, batch=1024.0, heads=128.0).items()}
    gpu = {name: np.float32(value) for name, value in H100.items()}
    at = {name: np.float32(value) for name, value in START.items()}
    time, _, _ = attention(np, call, gpu, at)
    assert time.dtype == np.float32
    assert time == pytest.approx(float(times(call_of(1e6, 1e6, batch=1024.0, heads=128.0))), rel=1e-5)
