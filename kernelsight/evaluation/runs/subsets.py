"""Subsets of the scored runs: by kind of model, by group, and by basis of their launch flags (published or fitted)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from kernelsight.evaluation.runs.scores import METRICS, group_of, is_scored_separately, scores, stated_again

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


def by_basis(rows: Sequence[Mapping[str, Any]], basis: Mapping[str, str]) -> dict[str, Any]:
    """Return scores of runs whose recipes are all published, and of the others; and the number of runs by recipe.

    ``basis``: by recipe. A recipe that applies to every run (of the client) does not count.
    """
    served = [row for row in scored_runs(rows) if row.get("errors")]
    runs_of_recipe = touched_by(served, basis)
    doubtful = {name for name, n in runs_of_recipe.items() if basis[name] != "published" and n < len(served)}
    by_class = {
        "published": [row for row in served if not doubtful.intersection(row["recipes"])],
        "fitted_or_assumed": [row for row in served if doubtful.intersection(row["recipes"])],
    }
    return {
        **{name: kinds_of(members) for name, members in by_class.items()},
        "recipes": [
            {"recipe": name, "basis": basis[name], "scored": n}
            for name, n in sorted(runs_of_recipe.items(), key=lambda item: -item[1])
            if basis[name] != "published" and n
        ],
    }


def touched_by(served: Sequence[Mapping[str, Any]], basis: Mapping[str, str]) -> dict[str, int]:
    """Return the number of runs that each recipe applies to."""
    return {name: sum(name in row["recipes"] for row in served) for name in basis}


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


def by_fitted_flags(served: Sequence[Mapping[str, Any]], basis: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return scores of groups with launch flags that were fitted on their own fitting runs, and of the others.

    ``basis``: by recipe. A recipe that applies to every run (of the client) does not count.
    """
    runs_of_recipe = touched_by(served, basis)
    fitted = {name for name, n in runs_of_recipe.items() if basis[name] == "fitted" and n < len(served)}
    fitted_groups = {group_of(row) for row in served if fitted.intersection(row["recipes"])}
    return {
        name: {
            "groups": len({group_of(row) for row in members}),
            **kinds_of(members),
            "over_groups": over_groups(members),
        }
        for name, members in (
            ("fitted", [row for row in served if group_of(row) in fitted_groups]),
            ("not_fitted", [row for row in served if group_of(row) not in fitted_groups]),
        )
    }
