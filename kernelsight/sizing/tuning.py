"""Tunes the deployments nearest to the best: rows of flags with other step sizes, CUDA graphs, or disaggregated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.scenario.launch.commands import PARALLEL
from kernelsight.sizing.candidates import Candidate
from kernelsight.sizing.prospects import Prospect
from kernelsight.sweeps.advice import wider_graphs

# max_num_batched_tokens that are tried beside the engine's default
STEP_TOKENS = (2048, 4096, 16384)
# most deployments tried with other sizes, and disaggregated: all, and of each GPU, the nearest
MOST_TUNED, MOST_SPLIT, MOST_SPLIT_OF_A_GPU = 5, 4, 2
# prefill and decode replicas that are always tried, beside those whose ratio follows from the rates of the two
POOLS = ((1, 1), (1, 2), (2, 1), (1, 3))
# levels nearer than this are equal: a step size that is never filled changes nothing
SAME_LOOK = 1e-3

# level of a first look (see RateSearch.look) by the flags that deployments share which differ in sizes alone
Levels = Mapping[tuple, float]


def changed_rows(
    near: Sequence[tuple[float, str, Prospect]], load: Mapping[str, Any], most_gpus: int
) -> tuple[list[dict[str, Any]], Levels]:
    """Return the rows of flags to try, and the levels of first looks with the engine's default sizes.

    ``near``: (level, scenario, prospect) of deployments that may become the best; ``load``: flags of the load;
    ``most_gpus``: of one instance.
    """
    rows, levels = [], {}
    ordered = sorted(near, key=lambda item: item[:2])
    split: dict[tuple, int] = {}
    for *_, prospect in ordered:
        gpus = tuple(prospect.candidate.gpus)
        if sum(split.values()) < MOST_SPLIT and split.get(gpus, 0) < MOST_SPLIT_OF_A_GPU:
            split[gpus] = split.get(gpus, 0) + 1
            rows += _split(prospect, load, most_gpus)
    for level, _, prospect in ordered[:MOST_TUNED]:
        flags = _deployment_flags(prospect.candidate, load)
        settings = prospect.trials.settings(prospect.candidate.scenario_id)
        if "max_num_batched_tokens" in flags or settings["scheduling"] == "static":
            continue
        budget = settings["max_num_batched_tokens"]
        changes = [{"max_num_batched_tokens": tokens} for tokens in STEP_TOKENS if tokens != budget]
        changes += [] if "enforce_eager" in flags else [change for _, change in wider_graphs(settings)]
        rows += [{**flags, **change} for change in changes]
        levels[_shared(flags)] = level
    return rows, levels


def changes_nothing(prospect: Prospect, rate: float, levels: Levels) -> bool:
    """Return whether a changed size gives no better a first look at a rate than the engine's default."""
    flags = prospect.candidate.flags
    if "prefill_replicas" in flags and _shared(flags) not in levels:
        return False
    return prospect.search.look(rate) > levels[_shared(flags)] * (1.0 - SAME_LOOK)


def _split(prospect: Prospect, load: Mapping[str, Any], most_gpus: int) -> list[dict[str, Any]]:
    """Return the disaggregated rows, with separate prefill and decode replicas, up to the GPUs of an instance."""
    flags = _deployment_flags(prospect.candidate, load)
    if "prefill_replicas" in flags or "num_speculative_tokens" in flags or flags.get("scheduling") == "static":
        return []
    capacity, most = prospect.search.capacity, most_gpus // prospect.candidate.gpu_count
    pools = (*POOLS, *_balanced(float(capacity.alone.latencies["ttft"].mean()) / 1e3, capacity.throughput))
    return [
        {**flags, "prefill_replicas": prefill, "decode_replicas": decode}
        for prefill, decode in dict.fromkeys(pools)
        if prefill + decode <= most
    ]


def _balanced(prefill_s: float, throughput: float) -> list[tuple[int, int]]:
    """Return numbers of (prefill, decode) replicas with the ratio of a request's two times, and with more prefill.

    ``prefill_s``: of a prompt alone; a request takes 1 / ``throughput`` s in all. Prompts that wait for each other take
    longer, so that one and two prefill replicas more are tried as well.

    >>> _balanced(0.3, 2.5), _balanced(0.1, 2.5)
    ([(3, 1), (4, 1), (5, 1)], [(1, 3), (2, 3), (3, 3)])
    """
    decode_s = 1.0 / max(throughput, 1e-9) - prefill_s
    ratio = prefill_s / decode_s if decode_s > 0.0 else math.inf
    if not 1e-3 < ratio < 1e3:
        return []
    prefill, decode = (round(ratio), 1) if ratio >= 1.0 else (1, round(1.0 / ratio))
    return [(prefill + more, decode) for more in range(3)]


def _deployment_flags(candidate: Candidate, load: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in candidate.flags.items() if name not in load}


def _shared(flags: Mapping[str, Any]) -> tuple:
    """Return the flags that deployments share which differ in step and graph sizes alone."""
    return tuple(flags.get(name) for name in ("gpu", *PARALLEL, "prefill_replicas", "decode_replicas"))
