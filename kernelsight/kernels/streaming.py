"""Latency of memory-bound kernels: norms, activations, RoPE, copies, embeddings, quantisation, streams, sampling."""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.latency_model import Columns


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
