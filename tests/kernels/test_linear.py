"""Times of linear attention: which of its kernels a call is, what bounds it, and what never falls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelsight.kernels import linear
from kernelsight.kernels.families import FAMILIES

H100 = {"sm_count": 132.0, "clock_per_us": 1830.0, "l2_bytes": 50 * 2.0**20, "memory_bytes_per_us": 3.35e6}
START = {one.name: one.start for one in FAMILIES["linear_attention"].latency_model.coefficients}
COLD = 1e15


def call(kind: str, rows: Any, sequences: Any, columns: float = 4096.0, kept: float = COLD) -> dict[str, np.ndarray]:
    """Columns of a call as ``linear_attention_calls.sql`` counts them: 4 taps, or keys of 128 and 16 key heads."""
    rows, sequences = np.asarray(rows, dtype=float), np.asarray(sequences, dtype=float)
    if kind == "causal_conv":
        work = {"flops": 8.0 * rows * columns, "bytes": 2.0 * columns * (2 * rows + 6 * sequences + 4)}
    else:
        states = columns * 128.0
        keys = 2.0 * 16 * 128
        moved = 2.0 * rows * (keys + 2 * columns + 2 * columns / 128) + 8.0 * sequences * states
        work = {"flops": 6.0 * rows * states, "bytes": moved}
    return {"rows": rows, "sequences": sequences, "columns": columns, "working_set_bytes": kept, **work}


def time_us(kind: str, rows: Any, sequences: Any, gpu: dict = H100, kept: float = COLD, **at: float) -> Any:
    return linear.gated_delta_net(np, call(kind, rows, sequences, kept=kept), gpu, START | at)[0]


@pytest.mark.parametrize(
    ("kind", "rows", "sequences", "role"),
    [
        ("causal_conv", 4096, 4, "conv"),
        ("causal_conv", 4, 4, "update"),
        ("delta_rule", 4096, 4, "chunk"),
        ("delta_rule", 4, 4, "recurrent"),
    ],
)
def test_a_call_is_one_of_four_kernels(kind: str, rows: int, sequences: int, role: str) -> None:
    before = time_us(kind, rows, sequences)
    for other in ("conv", "update", "chunk", "recurrent"):
        after = time_us(kind, rows, sequences, **{f"{other}_floor_us": START[f"{other}_floor_us"] + 7.0})
        assert after - before == pytest.approx(7.0 if other == role else 0.0, abs=1e-9)


def test_single_tokens_stream_their_states() -> None:
    """512 sequences of 32 heads: states of 128 x 128 FP32 numbers, read and written 1.05 times at the peak."""
    streamed = 1.05 * call("delta_rule", 512, 512)["bytes"] / 3.35e6
    assert streamed > 1.05 * 2 * 512 * 32 * 128 * 128 * 4 / 3.35e6
    assert time_us("delta_rule", 512, 512) == pytest.approx(streamed, rel=0.15)
    # measured: 716.4 us (aiconfigurator-core 0.12.0, SGLang 0.5.14 on H100)
    assert time_us("delta_rule", 512, 512) == pytest.approx(716.4, rel=0.2)


def test_prompts_read_and_write_a_state_for_each_sequence() -> None:
    """Of 4,096 channels and keys of 128: FP32 numbers, so that each sequence more moves 8 bytes of them a pass."""
    slow = {**H100, "memory_bytes_per_us": 1e3}
    few, many = (time_us("delta_rule", 65536, n, slow, chunk_sequence_us=0.0, state_passes=1.5) for n in (64, 4096))
    assert many - few == pytest.approx(1.5 * 8.0 * (4096 - 64) * 4096 * 128 / 1e3, rel=1e-3)


def test_states_that_stay_in_l2_cost_less() -> None:
    moved = float(call("delta_rule", 8, 8)["bytes"])
    warm, cold = time_us("delta_rule", 8, 8, kept=moved), time_us("delta_rule", 8, 8)
    assert warm < cold
    assert warm == pytest.approx(time_us("delta_rule", 8, 8, kept=moved / 100.0), rel=0.02)


def test_one_long_sequence_is_bound_by_its_length() -> None:
    alone, many = (time_us("delta_rule", 65536, n, token_us=1.0) for n in (1, 64))
    assert alone == pytest.approx(65536 * 1800 / 1830, rel=0.01)
    assert many < 0.5 * alone
