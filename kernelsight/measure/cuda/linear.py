"""Builds launches of linear attention (gated delta net): its short convolution and recurrence, by vLLM's kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kernelsight.measure.cuda.libraries import Bench, imported
from kernelsight.measure.device import CannotMeasure

CONVOLUTIONS = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
UTILS = "vllm.v1.attention.backends.utils"


def gated_delta_net(bench: Bench) -> Callable[[], Any]:
    """A convolution where the point has its taps (``width``), else the delta rule; of prompts or of single tokens."""
    sizes = bench.sizes
    rows, sequences, keys = sizes["rows"], sizes["sequences"], sizes["kv_heads"] * sizes["head_dim"]
    values = sizes["heads"] * sizes["v_head_dim"]
    columns = 2 * keys + values if sizes["width"] else values
    if rows % sequences or sizes["columns"] != columns:
        raise CannotMeasure(f"its rows are those of equal sequences, and its columns {columns}")
    single = rows == sequences
    # what a library derives from the starts it keeps by their tensor: all sets share one
    starts = bench.once("starts", lambda: bench.starts(sequences, rows // sequences))
    return (_convolution if sizes["width"] else _delta_rule)(bench, rows, sequences, single, starts)


def _convolution(bench: Bench, rows: int, sequences: int, single: bool, starts: Any) -> Callable[[], Any]:
    library, channels, taps = imported(CONVOLUTIONS, "vllm"), bench.sizes["columns"], bench.sizes["width"]
    tokens, weight, slots = bench.tensor(rows, channels), bench.tensor(channels, taps), bench.scattered(sequences)
    state = bench.tensor(sequences, taps - 1, channels).transpose(1, 2)
    bench.moved = 2 * channels * (2 * rows + 2 * sequences * (taps - 1) + taps)
    if single:
        options = {"activation": "silu", "conv_state_indices": slots}
        return lambda: library.causal_conv1d_update(tokens, state, weight, None, **options)

    def plan() -> Any:
        made = imported(UTILS, "vllm").compute_causal_conv1d_metadata(starts.cpu(), device=starts.device)
        names = ("nums_dict", "batch_ptr", "token_chunk_offset_ptr")
        return SimpleNamespace(**dict(zip(names, made, strict=True))) if isinstance(made, tuple) else made

    options = {
        "conv_states": state, "query_start_loc": starts, "cache_indices": slots, "activation": "silu",
        "has_initial_state": bench.full(True, "bool", sequences), "metadata": bench.once("plan", plan),
    }  # fmt: skip
    return lambda: library.causal_conv1d_fn(tokens.transpose(0, 1), weight, None, **options)


def _delta_rule(bench: Bench, rows: int, sequences: int, single: bool, starts: Any) -> Callable[[], Any]:
    sizes, library = bench.sizes, bench.library
    key_heads, heads, width, value_width = (sizes[name] for name in ("kv_heads", "heads", "head_dim", "v_head_dim"))
    query, key = (bench.tensor(1, rows, key_heads, width) for _ in range(2))
    value, strength = bench.tensor(1, rows, heads, value_width), bench.full(0.5, "bfloat16", 1, rows, heads)
    decay = bench.full(-0.1, "float32", 1, rows, heads)  # a logarithm
    state = bench.full(0.0, "float32", sequences, heads, width, value_width)
    bench.filled_bytes += 4 * sequences * heads * width * value_width
    bench.moved = 2 * rows * (2 * key_heads * width + 2 * heads * value_width + 2 * heads) + 2 * 4 * state.numel()
    options = {"initial_state": state, "cu_seqlens": starts, "use_qk_l2norm_in_kernel": True}
    if single:
        options |= {"inplace_final_state": True, "ssm_state_indices": bench.scattered(sequences)}
        return lambda: library.fused_recurrent_gated_delta_rule(query, key, value, decay, strength, **options)
    options["output_final_state"] = True
    return lambda: library.chunk_gated_delta_rule(query, key, value, decay, strength, **options)
