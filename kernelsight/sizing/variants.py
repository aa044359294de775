"""Variants of deployments: other step sizes, CUDA graphs, prefill and decode replicas, with bounds on their rates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.sweeps.advice import wider_graphs

if TYPE_CHECKING:
    from kernelsight.sizing.candidates import Candidate
    from kernelsight.sizing.prospects import Prospect

# max_num_batched_tokens beside the engine's default: of replicas that do both, and of prefill and decode replicas
STEP_TOKENS, STEP_TOKENS_OF_SPLITS = (1024, 2048, 4096, 16384), (16384,)
# most prefill and decode replicas of an instance
MOST_REPLICAS = 7
# most by which other step sizes, or replicas for one of the two phases, raise the rate of a GPU
MOST_GAIN = 1.4
# most by which the bound on a rate rises where CUDA graphs end below the batch size
GRAPHS_GAIN = 2.0
# safety factor on a bound from the capacity of other numbers of replicas
CAUTION = 1.1
REPLICAS, BUDGET = ("prefill_replicas", "decode_replicas"), "max_num_batched_tokens"
# flags in which variants of one deployment differ
CHANGED = (*REPLICAS, BUDGET, "max_cudagraph_capture_size")


def variants(roots: Sequence[Prospect], load: Mapping[str, Any], most_gpus: int) -> list[dict[str, Any]]:
    """Return the rows of flags of all variants of deployments, of up to ``most_gpus`` GPUs an instance."""
    rows = []
    for root in roots:
        flags = {name: value for name, value in root.candidate.flags.items() if name not in load}
        settings = root.trials.settings(root.candidate.scenario_id)
        if settings["scheduling"] == "static":
            continue
        budget, is_set = settings[BUDGET], BUDGET in flags
        tokens = [] if is_set else [each for each in STEP_TOKENS if each != budget]
        rows += [{**flags, BUDGET: each} for each in tokens]
        if "enforce_eager" not in flags:
            rows += [{**flags, **change} for _, change in wider_graphs(settings)]
        if any(name in flags for name in (*REPLICAS, "num_speculative_tokens")):
            continue
        most = most_gpus // root.candidate.gpu_count
        for prefill, decode in itertools.product(range(1, MOST_REPLICAS + 1), repeat=2):
            if prefill + decode <= most:
                split = {**flags, "prefill_replicas": prefill, "decode_replicas": decode}
                tokens = [] if is_set else [each for each in STEP_TOKENS_OF_SPLITS if each != budget]
                rows += [split, *({**split, BUDGET: each} for each in tokens)]
    return rows


def bounds_of(root: Prospect) -> float:
    """Return the bound on the rate of a deployment's GPUs with any variant, in the unit of the rate."""
    gain = GRAPHS_GAIN if wider_graphs(root.trials.settings(root.candidate.scenario_id)) else MOST_GAIN
    return root.search.capacity.most * gain


def bound_from_others(prospect: Prospect) -> float:
    """Return the bound on a variant's rate from the deployment that it is a variant of, and from known relatives.

    Replicas of both phases serve no more than the prefill replicas do beside as many decode replicas as can be, nor
    than the decode replicas beside as many prefill replicas: where capacities of both are known, the ratio of the
    replicas follows from the two rates.
    """
    root, flags = prospect.root, prospect.candidate.flags
    if root is None:
        return math.inf
    bound = prospect.candidate.gpu_count / root.candidate.gpu_count * bounds_of(root)
    for known in prospect.known:
        others = known.candidate.flags
        gain = CAUTION if flags.get(BUDGET) == others.get(BUDGET) else MOST_GAIN
        bound = min(bound, gain * known.search.capacity.most * max(flags[name] / others[name] for name in REPLICAS))
    return bound


def is_split(flags: Mapping[str, Any]) -> bool:
    """Return whether a deployment has prefill replicas of its own."""
    return REPLICAS[0] in flags


def family_of(candidate: Candidate) -> tuple:
    """Return the flags that variants of one deployment share."""
    return tuple(sorted((name, str(value)) for name, value in candidate.flags.items() if name not in CHANGED))
