"""Subsets of the scored runs: by kind of model, and by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from kernelsight.evaluation.runs.run_scores import METRICS, group_of, is_scored_separately, scores, stated_again

KINDS = {"all": (False, True), "dense": (False,), "moe": (True,)}


def scored_runs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs that are scored: outside the fitting fifth, not scored separately, without duplicates."""
    candidates = [row for row in rows if not is_scored_separately(row)]
    duplicates = stated_again(candidates)
    return [row for row in candidates if not row["fitting"] and row["run_id"] not in duplicates]


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
