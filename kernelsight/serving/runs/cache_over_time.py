"""KV use, prefix-cache hits and the batch of each replica over time: means over windows, including idle time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import rows_by_key, sorted_by

ORDER = ("scenario_id", "replica", "window")
COUNTS = ("steps", "prefill_tokens", "decode_tokens", "cached_tokens", "looked_up_tokens")


@produces("cache_over_time")
def means_of_windows(serving_windows: pa.Table, memory_plan: pa.Table) -> pa.Table:
    """KV use, prefix-cache hits and the batch of each replica over time: means over windows, including idle time."""
    lasting = pc.greater(serving_windows["end_ns"], serving_windows["start_ns"])
    windows = sorted_by(serving_windows.filter(lasting), *ORDER)
    values_of = {name: windows[name].to_numpy() for name in windows.column_names if windows[name].type != pa.string()}
    span_us = (values_of["end_ns"] - values_of["start_ns"]) / 1e3
    plans = rows_by_key(memory_plan, "deployment_id", windows["deployment_id"].combine_chunks())
    capacity = plans["capacity_units"].to_numpy()
    used, looked_up = values_of["kv_block_us"] / span_us, values_of["looked_up_tokens"]
    # running requests are in flight: a difference below 0 is rounding
    waiting_us = np.maximum(values_of["in_flight_us"] - values_of["running_us"], 0.0)
    hits = np.divide(values_of["cached_tokens"], looked_up, out=np.zeros(span_us.size), where=looked_up > 0)
    return pa.table(
        {
            **{name: windows[name] for name in ORDER},
            "start_s": values_of["start_ns"] / 1e9,
            "end_s": values_of["end_ns"] / 1e9,
            "kv_blocks_used_mean": used,
            "kv_blocks_used_max": windows["kv_blocks_used_max"],
            "kv_blocks_free_mean": capacity - used,
            "kv_blocks_free_min": capacity - values_of["kv_blocks_used_max"],
            "kv_share_mean": used / capacity,
            "running_mean": values_of["running_us"] / span_us,
            "running_max": windows["running_max"],
            "waiting_mean": waiting_us / span_us,
            "busy_share": np.minimum(values_of["busy_us"] / span_us, 1.0),
            **{name: windows[name] for name in COUNTS},
            "hit_rate": pa.array(hits, mask=looked_up == 0),
            "preemptions": windows["preemptions"],
        }
    )
