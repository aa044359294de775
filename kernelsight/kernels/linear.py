"""Latency of linear attention (gated delta net): short causal convolution and delta rule, in prefill and decode.

Four kernels, distinguished by the call: FLOP per row and channel (2 x taps for the convolution, 6 x key width for the
delta rule), and whether a sequence has more than one row. All are memory-bound. The convolution and decode move
``traffic`` times the least bytes; the delta rule in prefill writes chunk states and intermediate products, counted in
passes over its values. Bytes pass the multiprocessors at ``bytes_per_clock``, and DRAM where L2 does not hold them.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.latency_model import Coefficients, Columns, power_mean

# FLOP per row and channel above which a call is the delta rule: 8 for a convolution of 4 taps, 6 x 64 at least for it
LEAST_DELTA_WORK = 48.0
REFERENCE_CLOCK_PER_US = 1800.0
NORM_EXPONENT = 3.0
L2_SHARPNESS = 6.0


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
