"""Kernel breakdown over time: the kernels of each step, split over windows by the step's time in each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.serving.breakdown.knot_kernels import knot_kernels
from kernelsight.serving.breakdown.step_kernels import StepKernels, step_kernels

COLUMNS = ("scenario_id", "window", "phase", "family", "name", "start_s", "end_s", "calls", "total_us")


@produces("kernel_breakdown_over_time")
def kernels_over_time(
    steps: pa.Table,
    step_cost_uses: pa.Table,
    replica_totals: pa.Table,
    serving_windows: pa.Table,
    deployment_settings: pa.Table,
    kernel_latencies: pa.Table,
    step_shapes: pa.Table,
    knot_corrections: pa.Table,
) -> pa.Table:
    """Where the GPU time went, window by window: the kernels of each step."""
    knots = knot_kernels(kernel_latencies, step_shapes, knot_corrections)
    sums: dict[tuple[str, str, str, str], list[np.ndarray]] = {}
    edges: dict[str, np.ndarray] = {}
    start, end = (steps[name].to_numpy().astype(float) for name in ("start_ns", "end_ns"))
    for part in step_kernels(steps, step_cost_uses, replica_totals, deployment_settings, knots):
        if part.scenario_id not in edges:
            edges[part.scenario_id] = widest_windows(serving_windows, part.scenario_id)
        window_edges = edges[part.scenario_id]
        us, calls = _in_windows(part, start[part.rows], end[part.rows], window_edges)
        for column, (family, name) in enumerate(part.kernels):
            key = (part.scenario_id, part.phase, family, name)
            window_sums = sums.setdefault(key, [np.zeros(window_edges.size - 1), np.zeros(window_edges.size - 1)])
            window_sums[0] += us[:, column]
            window_sums[1] += calls[:, column]
    return _as_table(sums, edges)


def widest_windows(serving_windows: pa.Table, scenario: str) -> np.ndarray:
    """Return the edges in ns of a scenario's windows, shape [windows + 1]: as wide as the widest of its replicas'."""
    rows = serving_windows.filter(pc.equal(serving_windows["scenario_id"], scenario))
    start, end, window = (rows[name].to_numpy() for name in ("start_ns", "end_ns", "window"))
    origin, last = float(start.min()), float(end.max())
    # the last window of a replica ends with its last step; all its other windows are equally wide
    later = window > 0
    width = ((start[later] - origin) / window[later]).max() if later.any() else last - origin
    width = max(width, 1.0)
    count = max(int(np.ceil((last - origin) / width - 1e-9)), 1)
    edges = origin + width * np.arange(count + 1)
    edges[-1] = max(last, edges[-2])
    return edges


def _in_windows(
    part: StepKernels, start: np.ndarray, end: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return GPU time in us and launches by window, shape [windows, kernels] each."""
    last = edges.size - 2
    first, final = (
        np.clip(np.searchsorted(edges, moments, side=side) - 1, 0, last)
        for moments, side in ((start, "right"), (end, "left"))
    )
    pieces = np.maximum(final - first, 0) + 1
    step = np.repeat(np.arange(start.size), pieces)
    window = np.arange(step.size) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first[step]
    # the first and the last window also take the time before and after all windows
    low = np.where(window == first[step], start[step], edges[window])
    high = np.where(window == first[step] + pieces[step] - 1, end[step], edges[window + 1])
    share = np.where(pieces[step] == 1, 1.0, (high - low) / np.maximum(end[step] - start[step], 1.0))
    return tuple(
        np.stack([np.bincount(window, share * column[step], last + 1) for column in values.T], axis=1)
        for values in (part.us, part.calls)
    )


def _as_table(sums: dict[tuple[str, str, str, str], list[np.ndarray]], edges: dict[str, np.ndarray]) -> pa.Table:
    columns: dict[str, list] = {name: [] for name in COLUMNS}
    for (scenario, phase, family, name), (us, calls) in sums.items():
        windows = np.flatnonzero((us != 0.0) | (calls != 0.0))
        moments = edges[scenario] / 1e9
        values = (moments[windows], moments[windows + 1], calls[windows], us[windows])
        for column, words in zip(
            ("scenario_id", "phase", "family", "name"), (scenario, phase, family, name), strict=True
        ):
            columns[column] += [words] * windows.size
        columns["window"] += windows.tolist()
        for column, numbers in zip(COLUMNS[5:], values, strict=True):
            columns[column] += numbers.tolist()
    types = {"window": pa.int64(), **dict.fromkeys(COLUMNS[5:], pa.float64())}
    table = pa.table({name: pa.array(columns[name], types.get(name, pa.string())) for name in COLUMNS})
    order = [("scenario_id", "ascending"), ("window", "ascending"), ("phase", "ascending"), ("total_us", "descending")]
    return table.sort_by([*order, ("name", "ascending")])
