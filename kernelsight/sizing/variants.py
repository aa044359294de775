"""Variants of deployments: other step sizes, CUDA graphs, prefill and decode replicas, with bounds on their rates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.python_nodes import inside, takes
from kernelsight.sizing.prospects import BUDGET, REPLICAS
from kernelsight.sweeps.advice import wider_graphs

if TYPE_CHECKING:
    from kernelsight.sizing.candidates import Candidate
    from kernelsight.sizing.prospects import Prospect

# max_num_batched_tokens beside the engine's default: of replicas that do both, and of prefill and decode replicas
STEP_TOKENS, STEP_TOKENS_OF_SPLITS = (1024, 2048, 4096, 16384), (16384,)
# most prefill and decode replicas of an instance
MOST_REPLICAS = 7
# most deployments with other settings
MOST_VARIANTS = 1_500
TOO_MANY = f"more than {MOST_VARIANTS:,} deployments have other settings"
# flags in which variants of one deployment differ
CHANGED = (*REPLICAS, BUDGET, "max_cudagraph_capture_size")


@inside("size_answers", "deployments", "scenarios")
@takes("size_bounds")
def variants(
    roots: Sequence[Prospect], load: Mapping[str, Any], most_gpus: Callable[[Prospect], int]
) -> list[dict[str, Any]]:
    """Return the flags of deployments with other step sizes, CUDA graphs, prefill and decode replicas.

    ``most_gpus``: of an instance of one's variants.
    """
    rows = []
    for root in roots:
        flags = {name: value for name, value in root.candidate.flags.items() if name not in load}
        settings = root.trials.settings(root.candidate.scenario_id)
        most = most_gpus(root) // root.candidate.gpu_count
        if settings["scheduling"] == "static" or not most:
            continue
        budget, is_set = settings[BUDGET], BUDGET in flags
        tokens = [] if is_set else [each for each in STEP_TOKENS if each != budget]
        rows += [{**flags, BUDGET: each} for each in tokens]
        if flags.get("num_speculative_tokens"):
            rows.append({**flags, "num_speculative_tokens": 0})
        if "enforce_eager" not in flags:
            rows += [{**flags, **change} for _, change in wider_graphs(settings)]
        if any(name in flags for name in (*REPLICAS, "num_speculative_tokens")):
            continue
        for prefill, decode in itertools.product(range(1, MOST_REPLICAS + 1), repeat=2):
            if prefill + decode <= most:
                split = {**flags, "prefill_replicas": prefill, "decode_replicas": decode}
                tokens = [] if is_set else [each for each in STEP_TOKENS_OF_SPLITS if each != budget]
                rows += [split, *({**split, BUDGET: each} for each in tokens)]
    return rows


def split_of(candidate: Candidate) -> tuple | None:
    """Return what a deployment shares with other numbers of its prefill and decode replicas; None: it has none."""
    return (family_of(candidate), candidate.flags.get(BUDGET)) if REPLICAS[0] in candidate.flags else None


def family_of(candidate: Candidate) -> tuple:
    """Return the flags that variants of one deployment share."""
    return tuple(sorted((name, str(value)) for name, value in candidate.flags.items() if name not in CHANGED))
