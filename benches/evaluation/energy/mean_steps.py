"""Mean steps of measured saturated closed loops: step time, and utilisation of each resource.

A saturated server of U users decodes one token of each user per step, at the mean context of running requests, and
computes U / (output tokens) prompts in it. Weights are read once, whether a step has prompts or not. Step times are
measured, so that errors of predicted times do not enter power.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.evaluation.runs.recipes import flags_of
from kernelsight.evaluation.runs.simulate_runs import plan_runs
from kernelsight.forward.forward_step import whole_step
from kernelsight.kernels.energy import Work, work_of
from kernelsight.kernels.families import FAMILIES, LOWERED

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# runs whose kernels are computed in one query
RUNS_PER_QUERY = 40
ATTENTION = ("prefill_attention", "mla_prefill", "sparse_attention", "linear_attention")


class MeanSteps(NamedTuple):
    """Runs, and the work of their mean step: utilisation of each resource, busy time at full rate over step time."""

    runs: list[dict[str, Any]]
    work: Work


def mean_steps_of(session: Session, runs: Sequence[Mapping[str, Any]]) -> MeanSteps:
    """Return the runs that can be planned, with the work of their mean step; others are left out."""
    recipes = session.table("recipes").to_pylist()
    planned = plan_runs(session, [flags_of(run, recipes)[0] for run in runs])
    pairs = [(dict(run), plan.deployments[0]) for run, plan in zip(runs, planned, strict=True) if plan.scenario]
    works: list[np.ndarray] = []
    for first in range(0, len(pairs), RUNS_PER_QUERY):
        works += _works(session, pairs[first : first + RUNS_PER_QUERY])
    columns = np.array(works).reshape(-1, len(Work._fields)).T
    return MeanSteps([run for run, _ in pairs], Work(*columns))


def step_us(run: Mapping[str, Any]) -> float:
    """Return the mean step time of a saturated closed loop, us: users over output tokens per second."""
    return 1e6 * run["max_concurrency"] / run["output_throughput"]


def _works(session: Session, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[np.ndarray]:
    """Yield the work of each run's mean step, shape [resources], as shares of the step's time."""
    with session.fork() as fork:
        fork.progress = None
        fork.give("deployments", list({row["deployment_id"]: row for _, row in pairs}.values()))
        windows = {row["deployment_id"]: row["window_tokens"] for row in fork.table("kv_layout").to_pylist()}
        cached = {row["deployment_id"]: row["kv_cache_tokens"] for row in fork.table("memory_plan").to_pylist()}
        shapes, prompts = [], []
        for number, (run, deployment) in enumerate(pairs):
            users, context, prompts_per_step = _mean_step(run, cached[deployment["deployment_id"]])
            decodes = whole_step(2 * number, users, context, 0, 0, 0)
            window = windows[deployment["deployment_id"]]
            decodes["decode_window_context"] = min(context, window) if window else context
            prompt = whole_step(2 * number + 1, 0, 0, 1, run["isl"], 0) | {"decode_window_context": None}
            shapes += [{"deployment_id": deployment["deployment_id"], **row} for row in (decodes, prompt)]
            prompts.append(prompts_per_step)
        fork.give("step_shapes", shapes)
        sums = np.zeros((2 * len(pairs), len(Work._fields)))
        for family in LOWERED:
            sums += _summed(fork, family, sums.shape[0])
    for number, (run, _) in enumerate(pairs):
        decodes, prompt = sums[2 * number], sums[2 * number + 1]
        yield (decodes + prompts[number] * prompt) / step_us(run)


def _mean_step(run: Mapping[str, Any], cache_tokens: int) -> tuple[int, int, float]:
    """Return users of one data-parallel rank, their mean context in tokens, and prompts computed per step.

    Running requests are weighted by output length.
    """
    users = max(round(run["max_concurrency"] / run["dp"]), 1)
    flags = json.loads(run["stated_flags"] or "{}")
    variation = flags.get("output_len_cv", 0.0)
    distinct_prompts = flags.get("num_prefixes", run["num_prompts"])
    computed_share = 1.0
    # repeated prompts are cached only if all of them fit: otherwise LRU evicts each one just before it is sent again
    if distinct_prompts * (run["isl"] + run["osl"]) <= cache_tokens * run["dp"]:
        repeated, first_sent = (
            max(count - run["max_concurrency"], 0) for count in (run["num_prompts"], distinct_prompts)
        )
        computed_share = first_sent / max(repeated, 1)
    return users, round(run["isl"] + run["osl"] * (1.0 + variation**2) / 2.0), computed_share * users / run["osl"]


def _summed(session: Session, family: str, steps: int) -> np.ndarray:
    """Return the work of a family's calls in each step, microseconds, shape [steps, resources]."""
    calls = session.table(f"{family}_calls")
    if not calls.num_rows:
        return np.zeros((steps, len(Work._fields)))
    latency = session.table(f"{family}_latencies")["latency_us"].to_numpy()
    work = work_of(family, calls, session.table("gpus"), session.table("fabrics"))
    step, count = calls["step_shape_id"].to_numpy(), calls["count"].to_numpy()
    # decodes of the step already read the weights: of prompts only arithmetic and attention's memory count
    reads_weights_again = (step % 2 == 1) & (family not in ATTENTION) & (FAMILIES[family].wire_share is None)
    columns = work._replace(
        memory=np.where(reads_weights_again, 0.0, work.memory),
        compute=np.minimum(work.compute, latency),
        expand=np.where(reads_weights_again, 0.0, work.expand),
    )
    return np.stack([np.bincount(step, count * microseconds, steps) for microseconds in columns], axis=1)


def drawn_power(runs: Sequence[Mapping[str, Any]], gpus: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return measured power of one GPU of each run, its limit, and its idle power (NaN: not known), W."""
    gpu_rows = {row["gpu"]: row for row in gpus.to_pylist()}
    count = np.array([run["tp"] * run["pp"] * run["dp"] for run in runs], float)
    power = np.array([run["mean_power_w"] for run in runs], float) / count
    limit, idle = (np.array([gpu_rows[run["gpu"]][name] for run in runs], float) for name in ("tdp_w", "idle_w"))
    return power, limit, idle


def architectures(runs: Sequence[Mapping[str, Any]], gpus: pa.Table) -> np.ndarray:
    """Return the architecture of each run's GPU, shape [runs]."""
    names = gpus["gpu"].combine_chunks()
    gpu_row = pc.index_in(pa.array([run["gpu"] for run in runs]), names)
    return np.array(gpus["architecture"].combine_chunks().take(gpu_row).to_pylist())
