"""Latency of memory-bound kernels: norms, activations, RoPE, copies, embeddings, quantisation, streams, sampling."""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.coefficients import Coefficient
from kernelsight.kernels.latency_model import Columns, Features
from kernelsight.kernels.work import fields, streamed

_FLOOR = "launch and drain of a small kernel inside a CUDA graph"
# starts are from quantisation sweeps of H100, H200 and L40S: no other kernel of these families was measured
_MEMORY = (
    Coefficient("memory_efficiency", "1", 0.87, 0.3, 1.0, "hardware", "share of the peak DRAM bandwidth", 0.1),
    Coefficient(
        "l2_share", "1", 0.8, 0.2, 1.0, "hardware", "share of L2 up to which data just written lies there", 0.3
    ),
    Coefficient("l2_bytes_per_clock", "bytes/clock", 20.0, 5.0, 64.0, "hardware", "L2 rate of a multiprocessor", 0.3),
)
COEFFICIENTS = (
    Coefficient("floor_us", "us", 1.8, 0.3, 14.0, "engine", _FLOOR, 0.3),
    *_MEMORY,
)
SAMPLING_COEFFICIENTS = (
    Coefficient("floor_us", "us", 15.0, 2.0, 120.0, "engine", "several dependent small kernels"),
    *_MEMORY,
    Coefficient("passes", "1", 1.0, 0.1, 200.0, "fixed", "bytes moved against the least"),
    Coefficient("filter_us", "us", 0.0, 0.0, 1e4, "fixed", "launches of a filter"),
    Coefficient("column_ns", "ns", 0.0, 0.0, 1e3, "fixed", "one program walks a row, beside those of other rows"),
    Coefficient("serial_rows", "1", 0.0, 0.0, 1e6, "fixed", "fewer rows are sorted one after another"),
    Coefficient("serial_passes", "1", 1.0, 0.1, 200.0, "fixed", "passes beside sorting one after another"),
    Coefficient("row_us", "us", 0.0, 0.0, 1e4, "fixed", "sorting one row"),
    Coefficient("row_column_ns", "ns", 0.0, 0.0, 1e3, "fixed", "sorting one row, for each of its columns"),
    Coefficient("many_rows_us", "us", 0.0, 0.0, 1e4, "fixed", "sorting all rows at once, whatever their number"),
)
QUANTIZE_COEFFICIENTS = (
    Coefficient("floor_us", "us", 1.6, 0.1, 14.0, "engine", _FLOOR, 0.7),
    *_MEMORY,
    Coefficient("passes", "1", 1.0, 0.1, 20.0, "engine", "bytes moved against the least", 0.7),
    Coefficient("row_clocks", "clocks", 1.0, 0.01, 100.0, "engine", "dispatch of one row's block", 0.7),
)
# a read is several kernels: a product of all streams, its normalisation by 20 iterations, and the weighted sum
STREAMS_COEFFICIENTS = (
    Coefficient("floor_us", "us", 5.0, 0.5, 40.0, "implementation", "launches and drains inside a CUDA graph"),
    *_MEMORY,
    Coefficient("passes", "1", 1.3, 0.5, 20.0, "implementation", "bytes moved against the least", 0.7),
    Coefficient("row_clocks", "clocks", 1.0, 0.01, 1000.0, "implementation", "dispatch of one row's block", 0.7),
)

FEATURES = Features(("rows", "columns", "bytes"), grids=((("rows", 1.0),),))
NORM_COLUMNS = streamed("norm_flops(rows, columns)", "norm_bytes(rows, columns, implementation like '%add%')")
ACTIVATION_COLUMNS = streamed("activation_flops(rows, columns)", "activation_bytes(rows, columns, true)")
ROPE_COLUMNS = streamed("rope_flops(rows, columns)", "rope_bytes(rows, columns)")
KV_WRITE_COLUMNS = streamed("0.0", "kv_write_bytes(rows, columns, weight_bits / 8)")
QUANTIZE_COLUMNS = streamed("quantize_flops(rows, columns)", "quantize_bytes(rows, columns, activation_bits)")
_WRITES = "implementation like '%write%'"
STREAMS_COLUMNS = fields(streams="width") | streamed(
    f"hyper_connection_flops(rows, columns, streams, {_WRITES})",
    f"hyper_connection_bytes(rows, columns, streams, {_WRITES})",
)
EMBEDDING_COLUMNS = streamed("0.0", "embedding_bytes(rows, columns)")
SAMPLING_COLUMNS = streamed("sampling_flops(rows, columns)", "sampling_bytes(rows, columns, implementation = 'argmax')")


def streaming(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us), (rows,) each: t = floor + bytes / rate."""
    return at["floor_us"] + _moving_us(call, gpu, at, xp), None, at["floor_us"]


def quantize(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us), (rows,) each.

    t = floor + sqrt((passes x bytes / rate)^2 + (dispatch of the rows)^2).
    """
    moving_us = at["passes"] * _moving_us(call, gpu, at, xp)
    dispatch_us = call["rows"] * at["row_clocks"] / gpu["clock_per_us"]
    return at["floor_us"] + xp.sqrt(moving_us * moving_us + dispatch_us * dispatch_us), None, at["floor_us"]


def sample(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us), (rows,): t = floor + passes x bytes / rate + terms of a filter.

    A filter sorts one row after another below ``serial_rows``, and all rows at once from there on.
    """
    moving_us = _moving_us(call, gpu, at, xp)
    row_us = at["row_us"] + at["row_column_ns"] * call["columns"] / 1e3
    serial_us = at["serial_passes"] * moving_us + call["rows"] * row_us
    all_us = at["many_rows_us"] + at["passes"] * moving_us
    drawn_us = xp.where(call["rows"] < at["serial_rows"], serial_us, all_us)
    launches_us = at["floor_us"] + at["filter_us"]
    return launches_us + at["column_ns"] * call["columns"] / 1e3 + drawn_us, None, launches_us


def _moving_us(call: Columns, gpu: Columns, at: Columns, xp: Any) -> Any:
    """Return the time of the bytes, microseconds: from L2 while the working set fits, from DRAM once it does not.

    L2 hits are 1 / (1 + x^8), x: ``working_set_bytes`` over ``l2_share`` of the cache. In serving the working set is
    the call's own bytes, because the kernel before wrote its input. Sweeps show a sharp edge (H100: 25 MB at 4.9 TB/s,
    50 MB at 2.8 TB/s). L2 is never slower than DRAM.
    """
    ratio = xp.minimum(call["working_set_bytes"] / (at["l2_share"] * gpu["l2_bytes"]), 1e4)
    fourth = ratio * ratio * ratio * ratio
    hits = 1.0 / (1.0 + fourth * fourth)
    dram = gpu["memory_bytes_per_us"] * at["memory_efficiency"]
    cache = xp.maximum(at["l2_bytes_per_clock"] * gpu["sm_count"] * gpu["clock_per_us"], dram)
    return call["bytes"] * ((1.0 - hits) / dram + hits / cache)
