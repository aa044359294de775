"""Times of whole steps, of one forward pass each: GPU, what of the host it does not hide, and both."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces
from kernelsight.serving.engine.host import host_of, host_times, step_interval


@produces("step_totals")
def step_totals_of(
    kernel_latencies: pa.Table, step_shapes: pa.Table, deployment_settings: pa.Table, host_settings: pa.Table
) -> pa.Table:
    """GPU, exposed host and total time of each whole step.

    Kernels are added up in whole picoseconds. No step waits for requests here. The interval combines that of the
    kernels and that of the host's constants, whose spread between groups of runs ``host_settings`` states.
    """
    by_id = {row["deployment_id"]: row | {"batch_wait_timeout_ms": 0.0} for row in deployment_settings.to_pylist()}
    overheads = {row["deployment_id"]: row for row in host_settings.to_pylist()}
    kernels = _kernel_sums(kernel_latencies)
    rows = []
    for shape in step_shapes.to_pylist():
        key = shape["deployment_id"], shape["step_shape_id"]
        if shape["part"] != "whole" or key not in kernels:
            continue
        launches, gpu_us, *ends_us = kernels[key]
        host = host_of(overheads[key[0]], by_id[key[0]], launches)
        requests = shape["decode_requests"] + shape["prefill_requests"]
        hidden_us, exposed_us, _ = host_times(requests, shape["tokens"], shape["prefill_requests"], host)
        total_us, p05_us, p95_us, *host_ends_us = step_interval(
            gpu_us, *ends_us, hidden_us, exposed_us, overheads[key[0]]["step_log_sd"]
        )
        rows.append((*key, gpu_us, launches, *host_ends_us, total_us, p05_us, p95_us))
    names = (
        *("deployment_id", "step_shape_id", "gpu_us", "launches", "host_us", "host_p05_us", "host_p95_us"),
        *("total_us", "p05_us", "p95_us"),
    )
    columns = zip(*rows, strict=True) if rows else [[]] * len(names)
    return pa.table({name: list(values) for name, values in zip(names, columns, strict=True)})


def _kernel_sums(latencies: pa.Table) -> dict[tuple[str, int], tuple]:
    """Return launches, GPU time and its 5th and 95th percentile in us, by (deployment_id, step_shape_id)."""
    names = latencies["deployment_id"].combine_chunks().dictionary_encode()
    ids, count = latencies["step_shape_id"].to_numpy(), latencies["count"].to_numpy()
    shapes, row_of = np.unique(np.stack([names.indices.to_numpy(), ids]), axis=1, return_inverse=True)
    row_of = row_of.ravel()
    launches = np.bincount(row_of, count, shapes.shape[1]).astype(np.int64).tolist()
    sums = [
        (np.bincount(row_of, np.floor(latencies[name].to_numpy() * 1e6 + 0.5) * count, shapes.shape[1]) / 1e6).tolist()
        for name in ("latency_us", "latency_p05_us", "latency_p95_us")
    ]
    deployments = names.dictionary.to_pylist()
    keys = [(deployments[code], number) for code, number in shapes.T.tolist()]
    return dict(zip(keys, zip(launches, *sums, strict=True), strict=True))
