"""Kernels of each engine step, with the GPU time and launches of each.

The loop notes the time of a step, and how often each interpolation point was paid over the whole run. Both are kept:
a step's kernels add up to its GPU time, and a kernel's steps to its total. Between the two, linear kernels follow from
the step's tokens; the rest of a step is attention, of prompts or of decodes. In a step of both, decodes take what they
took per request in the last step without prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.breakdown.knot_kernels import KnotKernels
from kernelsight.serving.costs.cuda_graphs import padded_tokens

PHASES = ("prefill", "decode", "mixed")
PREFILL, DECODE, MIXED = range(3)
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
    """A deployment, with its draft model where it has one: names, kernels, and tokens of the largest CUDA graph."""

    names: list[str]
    knots: list[KnotKernels]
    graph_max_tokens: int


def gpu_ns_of(steps: pa.Table) -> np.ndarray:
    """Return the GPU time of each step in whole ns: its span without exposed host time and waits between stages."""
    start, end, host, wait = (
        steps[name].to_numpy().astype(np.int64) for name in ("start_ns", "end_ns", "host_ns", "stage_wait_ns")
    )
    return np.maximum(end - start - host - wait, 0)


def phases_of(steps: pa.Table) -> np.ndarray:
    """Return the phase of each step as its place in ``PHASES``."""
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
            pool = Pool(
                names_of_pool, [knots[name] for name in names_of_pool], settings[deployment]["graph_max_tokens"]
            )
            yield from _of_pool(scenario, steps.take(pa.array(step_rows)), step_rows, uses, pool)


def _of_pool(scenario: str, steps: pa.Table, rows: np.ndarray, uses: pa.Table, pool: Pool) -> Iterator[StepKernels]:
    """Yield the phases of the steps of one pool's replicas; ``rows``: their places among all steps."""
    phase, gpu_us = phases_of(steps), gpu_ns_of(steps) / 1e3
    if not pool.knots:
        return
    estimate = _estimate(steps, phase, gpu_us, pool)
    for number, word in enumerate(PHASES):
        chosen = np.flatnonzero(phase == number)
        if not chosen.size:
            continue
        weights = estimate[chosen]
        totals, calls, kernels = [], [], []
        for knots_of_deployment, name in zip(pool.knots, pool.names, strict=True):
            mine = uses.filter(pc.and_(pc.equal(uses["deployment_id"], name), pc.equal(uses["phase"], word)))
            spent = knots_of_deployment.spent(mine["step_shape_id"].to_numpy(), mine["weight"].to_numpy())
            totals.append(spent[0])
            calls.append(spent[1])
            kernels += knots_of_deployment.kernels
        if len(pool.knots) > 1:  # the draft model runs in every step
            weights = np.hstack([weights, np.ones((chosen.size, len(pool.knots[1].kernels)))])
        us = spread(weights, gpu_us[chosen], np.concatenate(totals))
        yield _by_name(scenario, word, rows[chosen], kernels, us, np.concatenate(calls))


def _by_name(
    scenario: str, phase: str, rows: np.ndarray, kernels: list[tuple[str, str, str]], us: np.ndarray, calls: np.ndarray
) -> StepKernels:
    """Add up columns of one family and name; the launches of a phase are the same in each of its steps."""
    names = list(dict.fromkeys((family, name) for _, family, name in kernels))
    into = np.zeros((len(kernels), len(names)))
    into[np.arange(len(kernels)), [names.index(kernel[1:]) for kernel in kernels]] = 1.0
    launches = np.broadcast_to(calls @ into / rows.size, (rows.size, len(names)))
    launched = np.flatnonzero((calls @ into) != 0.0)
    return StepKernels(
        scenario, phase, rows, [names[i] for i in launched], (us @ into)[:, launched], launches[:, launched]
    )


def _estimate(steps: pa.Table, phase: np.ndarray, gpu_us: np.ndarray, pool: Pool) -> np.ndarray:
    """Return what kernels take in each step by its tokens alone, shape [steps, kernels]; only shares matter."""
    prompts, decodes = (steps[name].to_numpy().astype(float) for name in ("prefill_tokens", "decode_tokens"))
    knots, tokens = pool.knots[0], (prompts + decodes).astype(np.int64)
    padded = padded_tokens(int(tokens.max(initial=0)), pool.graph_max_tokens)[tokens]
    linear = knots.at("tokens", padded) + knots.at("logits", decodes + (prompts > 0))
    # how many tokens the other ranks had is not in a row; the sums over all steps are right
    linear += knots.at("experts", padded)
    rest = np.maximum(gpu_us - linear.sum(axis=1), 0.0)
    # what decodes take per request, as in the last step of the replica without prompts
    per_request = np.where(phase == DECODE, rest / np.maximum(decodes, 1.0), 0.0)
    last = np.maximum.accumulate(np.where(phase == DECODE, np.arange(phase.size), 0))
    decoding = np.minimum(np.where(phase == PREFILL, 0.0, per_request[last] * decodes), rest)
    shares = {"decode_attention": decoding, "decode_window": decoding, "prefill_attention": rest - decoding}
    for column, (part, _, _) in enumerate(knots.kernels):
        if part in shares:
            linear[:, column] = shares[part]
    return linear


def spread(weights: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return a matrix near ``weights`` in proportion whose rows and columns have these sums (iterative fitting).

    The sums of ``rows`` are first made those of ``columns``; a column with a negative sum goes by the rows.

    >>> spread(np.ones((2, 2)), np.array([1.0, 3.0]), np.array([2.0, 2.0])).tolist()
    [[0.5, 0.5], [1.5, 1.5]]
    """
    total = rows.sum()
    by_rows = rows / total if total > 0 else np.full(rows.size, 1.0 / rows.size)
    even = np.outer(by_rows, columns)
    ordinary = columns > 0.0
    wanted = columns[ordinary]
    if not wanted.size:
        return even
    # a little of each kernel in each step, so that every pair of sums can be reached
    near = np.maximum(weights[:, ordinary], 0.0)
    near = near * (wanted / np.maximum(near.sum(axis=0), 1e-300)) + 1e-6 * even[:, ordinary]
    remaining = by_rows * columns.sum() - even[:, ~ordinary].sum(axis=1)
    for _ in range(ROUNDS):
        sums = near.sum(axis=1)
        near *= np.divide(remaining, sums, out=np.zeros_like(sums), where=sums > 0)[:, None]
        factors = wanted / np.maximum(near.sum(axis=0), 1e-300)
        near *= factors
        if np.abs(factors - 1.0).max() < TOLERANCE:
            break
    even[:, ordinary] = near
    return even
