"""Latency of linear attention (gated delta net): short causal convolution and delta rule, in prefill and decode.

Four kernels, distinguished by the call: FLOP per row and channel (2 x taps for the convolution, 6 x key width for the
delta rule), and whether a sequence has more than one row. All are memory-bound. The convolution and decode move
``traffic`` times the least bytes; the delta rule in prefill writes chunk states and intermediate products, counted in
passes over its values. Bytes pass the multiprocessors at ``bytes_per_clock``, and DRAM where L2 does not hold them.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.coefficients import Coefficient
from kernelsight.kernels.latency_model import Coefficients, Columns, Features, power_mean
from kernelsight.kernels.work import fields

# FLOP per row and channel above which a call is the delta rule: 8 for a convolution of 4 taps, 6 x 64 at least for it
LEAST_DELTA_WORK = 48.0
REFERENCE_CLOCK_PER_US = 1800.0
NORM_EXPONENT = 3.0
L2_SHARPNESS = 6.0

_ROLES = (  # name, words, floor (us), traffic, bytes per clock, us per sequence
    ("conv", "convolution of prompts", 3.7, 1.3, 20.0, 0.03),
    ("update", "convolution of single tokens", 2.8, 1.5, 19.0, 0.001),
    ("chunk", "delta rule of prompts", 16.0, 8.7, 12.0, 0.02),
    ("recurrent", "delta rule of single tokens", 4.2, 1.05, 20.0, 0.001),
)
COEFFICIENTS = (
    Coefficient("l2_share", "1", 0.7, 0.2, 2.0, "hardware", "share of L2 that keeps what was moved", 0.3),
    *(
        coefficient
        for role, words, floor_us, traffic, bytes_per_clock, sequence_us in _ROLES
        for coefficient in (
            Coefficient(f"{role}_floor_us", "us", floor_us, 0.5, 60.0, "implementation", f"{words}: launch and drain"),
            Coefficient(f"{role}_traffic", "1", traffic, 0.3, 100.0, "implementation", f"{words}: passes at the peak"),
            Coefficient(
                f"{role}_bytes_per_clock", "bytes", bytes_per_clock, 0.5, 64.0, "implementation",
                f"{words}: through one multiprocessor",
            ),
            Coefficient(
                f"{role}_sequence_us", "us", sequence_us, 1e-4, 20.0, "implementation", f"{words}: each sequence", 1.0
            ),
        )
    ),
    Coefficient("chunk_kept", "1", 0.35, 0.05, 1.0, "implementation", "delta rule of prompts: share alive", 0.3),
    Coefficient("state_passes", "1", 1.5, 0.2, 8.0, "implementation", "delta rule of prompts: passes over the states"),
    Coefficient("token_us", "us", 0.04, 1e-3, 1.0, "implementation", "delta rule of prompts: one token after another"),
)  # fmt: skip

FEATURES = Features(("rows", "columns", "sequences", "flops", "bytes"))
# a width is the convolution's taps; the recurrence has none
COLUMNS = {
    **fields("rows", "columns", "sequences"),
    "taps": 'coalesce(shape."width", 0)',
    **fields("heads", "kv_heads", key_dim="head_dim", value_dim="v_head_dim"),
    "flops": "case when taps > 0 then convolution_flops(rows, columns, taps) "
    "else delta_rule_flops(rows, heads, key_dim, value_dim) end",
    "bytes": "case when taps > 0 then convolution_bytes(rows, columns, sequences, taps) "
    "else delta_rule_bytes(rows, sequences, heads, kv_heads, key_dim, value_dim) end",
    "working_set_bytes": "bytes",
}


def gated_delta_net(xp: Any, call: Columns, gpu: Columns, at: Coefficients) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us), (rows,) each, of a gated delta net's kernel (Yang et al., arXiv 2412.06464).

    t = floor + sequences x time each + 3-norm(multiprocessors, DRAM, tokens one after another). ``call``: rows,
    columns, sequences, flops, bytes, working_set_bytes.
    """
    rows, sequences, columns = call["rows"], call["sequences"], call["columns"]
    work = call["flops"] / (rows * columns)
    is_delta, single = work > LEAST_DELTA_WORK, rows <= sequences

    def role(name: str) -> Any:
        delta = xp.where(single, at[f"recurrent_{name}"], at[f"chunk_{name}"])
        return xp.where(is_delta, delta, xp.where(single, at[f"update_{name}"], at[f"conv_{name}"]))

    # a state is read and written in FP32: 8 bytes x key width x channels
    states = 8.0 / 6.0 * work * columns * sequences
    over_prompts = role("traffic") * 4.0 * rows * columns + at["state_passes"] * states
    chunked = is_delta & xp.logical_not(single)
    moved = xp.where(chunked, over_prompts, role("traffic") * call["bytes"])
    # in prefill a kernel reads what the one before it wrote; in decode it updates the states of all sequences in place
    kept = xp.where(single, 0.5 * call["working_set_bytes"], moved * xp.where(chunked, at["chunk_kept"], 1.0))
    missed = 1.0 - 1.0 / (1.0 + (kept / (at["l2_share"] * gpu["l2_bytes"])) ** L2_SHARPNESS)
    unit_us = moved / (role("bytes_per_clock") * gpu["sm_count"] * gpu["clock_per_us"])
    dram_us = moved * missed / gpu["memory_bytes_per_us"]
    token_us = at["token_us"] * REFERENCE_CLOCK_PER_US / gpu["clock_per_us"]
    serial_us = xp.where(chunked, token_us * rows / sequences, 0.0)
    busy_us = power_mean(xp, power_mean(xp, unit_us, dram_us, NORM_EXPONENT), serial_us, NORM_EXPONENT)
    floor_us = role("floor_us")
    return floor_us + role("sequence_us") * sequences + busy_us, None, floor_us
