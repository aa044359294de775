"""Parts of the scored runs: by kind of model, by group, and by what their launch flags rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from kernelsight.evaluation.runs.scores import GROUP, METRICS, is_scored_separately, scores, stated_again

KINDS = {"all": (False, True), "dense": (False,), "moe": (True,)}


def by_group(row: Mapping[str, Any]) -> tuple:
    """Return the names of a run's group: model, GPU, engine, precision."""
    return tuple(row[name] for name in GROUP)


def scored_runs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs outside the fitting fifth that are scored together, each measurement once."""
    together = [row for row in rows if not is_scored_separately(row)]
    again = stated_again(together)
    return [row for row in together if not row["fitting"] and row["run_id"] not in again]


def kinds_of(served: Iterable[Mapping[str, Any]]) -> dict[str, dict]:
    """Return the scores of all, dense and mixture-of-experts runs."""
    served = list(served)
    return {kind: scores(row for row in served if row["is_moe"] in those) for kind, those in KINDS.items()}


def by_basis(rows: Sequence[Mapping[str, Any]], basis: Mapping[str, str]) -> dict[str, Any]:
    """Return the scores of runs whose recipes are all published, those of the others, and the runs that each touches.

    ``basis``: of each recipe. A recipe that touches every run (of the client) divides none.
    """
    served = [row for row in scored_runs(rows) if row.get("errors")]
    touched = touched_by(served, basis)
    doubtful = {name for name, n in touched.items() if basis[name] != "published" and n < len(served)}
    parts = {
        "published": [row for row in served if not doubtful.intersection(row["recipes"])],
        "fitted_or_assumed": [row for row in served if doubtful.intersection(row["recipes"])],
    }
    return {
        **{name: kinds_of(members) for name, members in parts.items()},
        "recipes": [
            {"recipe": name, "basis": basis[name], "scored": n}
            for name, n in sorted(touched.items(), key=lambda item: -item[1])
            if basis[name] != "published" and n
        ],
    }


def touched_by(served: Sequence[Mapping[str, Any]], basis: Mapping[str, str]) -> dict[str, int]:
    """Return the number of runs that each recipe touches."""
    return {name: sum(name in row["recipes"] for row in served) for name in basis}


def over_groups(served: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each kind of model the number of groups, and by metric the median over groups of their median APE."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in served:
        groups.setdefault(by_group(row), []).append(row)
    by_kind = {}
    for kind, those in KINDS.items():
        group_scores = [scores(members) for members in groups.values() if members[0]["is_moe"] in those]
        medians = {
            metric: median(one[metric]["median_ape"] for one in group_scores) if group_scores else None
            for metric in METRICS
        }
        by_kind[kind] = {"groups": len(group_scores), **medians}
    return by_kind


def by_fitted_flags(served: Sequence[Mapping[str, Any]], basis: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the scores of groups with launch flags that were fitted on their own fitting runs, and of the others.

    ``basis``: of each recipe. One that touches every run (of the client) makes no difference.
    """
    touched = touched_by(served, basis)
    fitted = {name for name, n in touched.items() if basis[name] == "fitted" and n < len(served)}
    fitted_groups = {by_group(row) for row in served if fitted.intersection(row["recipes"])}
    return {
        name: {
            "groups": len({by_group(row) for row in members}),
            **kinds_of(members),
            "over_groups": over_groups(members),
        }
        for name, members in (
            ("fitted", [row for row in served if by_group(row) in fitted_groups]),
            ("not_fitted", [row for row in served if by_group(row) not in fitted_groups]),
        )
    }
