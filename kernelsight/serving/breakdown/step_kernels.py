"""Kernels of each engine step: GPU time and launches, reconstructed from step times and uses of knots.

The loop records the time of each step, and how often each knot was used over the whole run. Both sums are kept: a
step's kernels add up to its GPU time, and a kernel's steps to its total. Within them, kernels without attention follow
from the step's tokens; the rest of a step is prefill or decode attention. In a mixed step, decodes take the time per
request of the last step without prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.serving.breakdown.knot_kernels import KnotKernels, knot_kernels
from kernelsight.serving.costs.cuda_graphs import step_padding

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


PHASES = ("prefill", "decode", "mixed")
PREFILL, DECODE, MIXED = range(3)
# of iterative proportional fitting
ROUNDS = 200
TOLERANCE = 1e-10


class StepKernels(NamedTuple):
    """Steps of one deployment in one scenario and phase, and their kernels.

    ``rows``: places of the steps in the table ``steps``; ``kernels``: (family, name) in order of execution; ``us``,
    ``calls``: GPU time and launches, shape [steps, kernels].
    """

    scenario_id: str
    phase: str
    rows: np.ndarray
    kernels: list[tuple[str, str]]
    us: np.ndarray
    calls: np.ndarray


class Pool(NamedTuple):
    """A deployment, and its draft model if it has one."""

    names: list[str]  # deployment_id of each
    knots: list[KnotKernels]  # kernels of each
    settings: dict[str, Any]  # row of deployment_settings


def gpu_ns_of(steps: pa.Table) -> np.ndarray:
    """Return the GPU time of each step in whole ns: its span without exposed host time and waits between stages."""
    start, end, host, wait = (
        steps[name].to_numpy().astype(np.int64) for name in ("start_ns", "end_ns", "host_ns", "stage_wait_ns")
    )
    return np.maximum(end - start - host - wait, 0)


def phases_of(steps: pa.Table) -> np.ndarray:
    """Return the phase of each step as an index in ``PHASES``."""
    prompts, decodes = steps["prefill_tokens"].to_numpy() > 0, steps["decode_tokens"].to_numpy() > 0
    return np.where(prompts, np.where(decodes, MIXED, PREFILL), DECODE)


def step_kernels(
    steps: pa.Table,
    step_cost_uses: pa.Table,
    replica_totals: pa.Table,
    deployment_settings: pa.Table,
    knots: dict[str, KnotKernels],
) -> Iterator[StepKernels]:
    """Yield the kernels of all steps, by scenario, deployment and phase.

    ``replica_totals`` names the deployment of each replica, ``deployment_settings`` the draft model of a deployment.
    """
    settings = {row["deployment_id"]: row for row in deployment_settings.to_pylist()}
    scenarios = steps["scenario_id"].combine_chunks()
    for scenario in pc.unique(scenarios).to_pylist():
        rows = np.flatnonzero(pc.equal(scenarios, scenario).to_numpy(zero_copy_only=False))
        uses = step_cost_uses.filter(pc.equal(step_cost_uses["scenario_id"], scenario))
        pools: dict[str, list[int]] = {}
        for row in replica_totals.filter(pc.equal(replica_totals["scenario_id"], scenario)).to_pylist():
            pools.setdefault(row["deployment_id"], []).append(row["replica"])
        engine = steps["replica"].to_numpy()[rows]
        counted: set[str] = set()
        for deployment, replicas in pools.items():
            pair = (deployment, settings[deployment]["draft_deployment_id"])
            names_of_pool = [name for name in pair if name in knots and name not in counted]
            counted |= set(names_of_pool)
            step_rows = rows[np.isin(engine, replicas)]
            pool = Pool(names_of_pool, [knots[name] for name in names_of_pool], settings[deployment])
            yield from _of_pool(scenario, steps.take(pa.array(step_rows)), step_rows, uses, pool)


def _of_pool(scenario: str, steps: pa.Table, rows: np.ndarray, uses: pa.Table, pool: Pool) -> Iterator[StepKernels]:
    """Yield the kernels of one pool's steps by phase; ``rows``: the steps' rows in the table of all steps."""
    phase, gpu_us = phases_of(steps), gpu_ns_of(steps) / 1e3
    if not pool.knots:
        return
    estimate = _estimate(steps, phase, gpu_us, pool)
    for number, word in enumerate(PHASES):
        in_phase = np.flatnonzero(phase == number)
        if not in_phase.size:
            continue
        weights = estimate[in_phase]
        totals, calls, kernels = [], [], []
        for knots_of_deployment, name in zip(pool.knots, pool.names, strict=True):
            uses_of_name = uses.filter(pc.and_(pc.equal(uses["deployment_id"], name), pc.equal(uses["phase"], word)))
            spent = knots_of_deployment.spent(
                uses_of_name["step_shape_id"].to_numpy(), uses_of_name["weight"].to_numpy()
            )
            totals.append(spent[0])
            calls.append(spent[1])
            kernels += knots_of_deployment.kernels
        if len(pool.knots) > 1:  # the draft model runs in every step
            weights = np.hstack([weights, np.ones((in_phase.size, len(pool.knots[1].kernels)))])
        us = spread(weights, gpu_us[in_phase], np.concatenate(totals))
        yield _by_name(scenario, word, rows[in_phase], kernels, us, np.concatenate(calls))


def _by_name(
    scenario: str, phase: str, rows: np.ndarray, kernels: list[tuple[str, str, str]], us: np.ndarray, calls: np.ndarray
) -> StepKernels:
    """Add up kernels of one family and name; launches of a phase are spread evenly over its steps."""
    names = list(dict.fromkeys((family, name) for _, family, name in kernels))
    into = np.zeros((len(kernels), len(names)))
    into[np.arange(len(kernels)), [names.index(kernel[1:]) for kernel in kernels]] = 1.0
    launches = np.broadcast_to(calls @ into / rows.size, (rows.size, len(names)))
    launched = np.flatnonzero((calls @ into) != 0.0)
    return StepKernels(
        scenario, phase, rows, [names[i] for i in launched], (us @ into)[:, launched], launches[:, launched]
    )


def _estimate(steps: pa.Table, phase: np.ndarray, gpu_us: np.ndarray, pool: Pool) -> np.ndarray:
    """Return kernel times estimated from each step's tokens alone, shape [steps, kernels]; only proportions matter."""
    prompts, decodes = (steps[name].to_numpy().astype(float) for name in ("prefill_tokens", "decode_tokens"))
    knots, tokens = pool.knots[0], (prompts + decodes).astype(np.int64)
    largest = max(int(tokens.max(initial=0)), pool.settings["graph_max_tokens"])
    decodes_alone, with_prompts = step_padding(largest, pool.settings)
    padded = np.where(prompts > 0, with_prompts[tokens], decodes_alone[tokens])
    linear = knots.at("tokens", padded) + knots.at("logits", decodes + (prompts > 0))
    # a step's row does not state the tokens of the other ranks; the sums over all steps include them
    linear += knots.at("experts", padded)
    rest = np.maximum(gpu_us - linear.sum(axis=1), 0.0)
    # decode attention per request, as in the last step of the replica without prompts
    per_request = np.where(phase == DECODE, rest / np.maximum(decodes, 1.0), 0.0)
    last = np.maximum.accumulate(np.where(phase == DECODE, np.arange(phase.size), 0))
    decoding = np.minimum(np.where(phase == PREFILL, 0.0, per_request[last] * decodes), rest)
    shares = dict.fromkeys(("decode_attention", "decode_window", "mixed_decode"), decoding)
    shares["prefill_attention"] = rest - decoding
    for column, (part, _, _) in enumerate(knots.kernels):
        if part in shares:
            linear[:, column] = shares[part]
    return linear


def spread(weights: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return a matrix with these row and column sums, near ``weights`` in proportion (iterative proportional fitting).

    ``rows`` are first scaled to the total of ``columns``; a column with a negative sum is spread in proportion to rows.
    """
    total = rows.sum()
    by_rows = rows / total if total > 0 else np.full(rows.size, 1.0 / rows.size)
    result = np.outer(by_rows, columns)
    positive = columns > 0.0
    wanted = columns[positive]
    if not wanted.size:
        return result
    # a little of each kernel in each step, so that every pair of sums can be reached
    fitted = np.maximum(weights[:, positive], 0.0)
    fitted = fitted * (wanted / np.maximum(fitted.sum(axis=0), 1e-300)) + 1e-6 * result[:, positive]
    remaining = by_rows * columns.sum() - result[:, ~positive].sum(axis=1)
    for _ in range(ROUNDS):
        sums = fitted.sum(axis=1)
        fitted *= np.divide(remaining, sums, out=np.zeros_like(sums), where=sums > 0)[:, None]
        factors = wanted / np.maximum(fitted.sum(axis=0), 1e-300)
        fitted *= factors
        if np.abs(factors - 1.0).max() < TOLERANCE:
            break
    result[:, positive] = fitted
    return result
