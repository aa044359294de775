"""Classes of runs: kinds of models, groups, samples of campaigns, and fitting runs that repeat a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from kernelsight.evaluation.runs.run_scores import (
    MEASURED,
    METRICS,
    ROUNDING_MS,
    SAME,
    group_of,
    is_fitting,
    is_scored_separately,
    measured_both,
    scores,
)
from kernelsight.scenario.model_variants import base_of

KINDS = {"all": (False, True), "dense": (False,), "moe": (True,)}


def repeats(runs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of fitting runs that duplicate the measurement of a scored run (possibly rounded).

    >>> run = dict.fromkeys(SAME, 1) | {"ttft_ms": 341.127, "tpot_ms": 5.0896, "run_id": "r0"}
    >>> repeats([run, run | {"run_id": "r9", "ttft_ms": 341.13, "tpot_ms": 5.09}])
    {'r9'}
    """
    scored: dict[tuple, list[Mapping[str, Any]]] = {}
    runs = [run for run in runs if measured_both(run)]
    for run in runs:
        if not is_fitting(run["run_id"]):
            scored.setdefault(tuple(run[name] for name in SAME), []).append(run)

    def is_repeated(run: Mapping[str, Any]) -> bool:
        others = scored.get(tuple(run[name] for name in SAME), ())
        return any(all(abs(run[name] - other[name]) < ROUNDING_MS for name in MEASURED) for other in others)

    return {run["run_id"] for run in runs if is_fitting(run["run_id"]) and is_repeated(run)}


def kinds_of(served: Iterable[Mapping[str, Any]]) -> dict[str, dict]:
    """Return the scores of all, dense and mixture-of-experts runs."""
    served = list(served)
    return {
        name: scores(row for row in served if row["is_moe"] in is_moe_values) for name, is_moe_values in KINDS.items()
    }


def over_groups(served: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the number of groups and the median over groups of median APEs by metric, for each kind of model."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in served:
        groups.setdefault(group_of(row), []).append(row)
    by_kind = {}
    for name, is_moe_values in KINDS.items():
        group_scores = [scores(members) for members in groups.values() if members[0]["is_moe"] in is_moe_values]
        medians = {
            metric: median(group[metric]["median_ape"] for group in group_scores) if group_scores else None
            for metric in METRICS
        }
        by_kind[name] = {"groups": len(group_scores), **medians}
    return by_kind


def is_mixture(name: str) -> bool:
    """Return whether a model is a mixture of experts, by its config or, of a variant, that of its base.

    >>> is_mixture("Qwen/Qwen3-30B-A3B-FP8"), is_mixture("nvidia/Qwen3-32B-NVFP4"), is_mixture("mixtral-8x7b-v0.1")
    (True, False, True)
    """
    return base_of(name)[1]["experts"] is not None


ORDER = ("engine", "model", "gpu", "tp", "run_id")


def spread_runs(runs: Sequence[Mapping[str, Any]], max_runs: int) -> list[int]:
    """Return indices of at most ``max_runs`` runs of each campaign, spread evenly over engines, models and GPUs.

    Runs that are scored separately are left out.

    >>> runs = [dict.fromkeys(ORDER, 0) | {"campaign": "c", "run_id": str(number)} for number in range(9)]
    >>> spread_runs(runs, 3)
    [1, 4, 7]
    """
    members: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        if not is_scored_separately(run):
            members.setdefault(run["campaign"], []).append(number)
    chosen = []
    for numbers in members.values():
        ordered = sorted(numbers, key=lambda number: tuple(str(runs[number][name]) for name in ORDER))
        stride = max(len(ordered) / max_runs, 1.0)
        chosen += [ordered[int((rank + 0.5) * stride)] for rank in range(min(len(ordered), max_runs))]
    return sorted(chosen)
