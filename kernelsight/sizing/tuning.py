"""Tunes the deployments nearest to the best: rows of flags with other step sizes, CUDA graphs, or disaggregated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.scenario.launch.commands import PARALLEL
from kernelsight.sizing.candidates import Candidate
from kernelsight.sizing.prospects import Prospect
from kernelsight.sweeps.advice import wider_graphs

# max_num_batched_tokens that are tried beside the engine's default
STEP_TOKENS = (2048, 4096, 16384)
# most deployments tried with other sizes, and disaggregated (the nearest of each GPU); prefill and decode replicas
MOST_TUNED, MOST_SPLIT, POOLS = 5, 4, ((1, 1), (1, 2), (2, 1), (1, 3))
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
    nearest: dict[tuple, Prospect] = {}
    for *_, prospect in ordered:
        nearest.setdefault(tuple(prospect.candidate.gpus), prospect)
    for prospect in list(nearest.values())[:MOST_SPLIT]:
        rows += _split(prospect.candidate, load, most_gpus)
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


def _split(candidate: Candidate, load: Mapping[str, Any], most_gpus: int) -> list[dict[str, Any]]:
    """Return the disaggregated rows, with separate prefill and decode replicas, up to the GPUs of an instance."""
    flags = _deployment_flags(candidate, load)
    if "prefill_replicas" in flags or "num_speculative_tokens" in flags or flags.get("scheduling") == "static":
        return []
    most = most_gpus // candidate.gpu_count
    return [
        {**flags, "prefill_replicas": prefill, "decode_replicas": decode}
        for prefill, decode in POOLS
        if prefill + decode <= most
    ]


def _deployment_flags(candidate: Candidate, load: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in candidate.flags.items() if name not in load}


def _shared(flags: Mapping[str, Any]) -> tuple:
    """Return the flags that deployments share which differ in step and graph sizes alone."""
    return tuple(flags.get(name) for name in ("gpu", *PARALLEL, "prefill_replicas", "decode_replicas"))
