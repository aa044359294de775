"""Parts of a backtest's report on published runs: implausible ones, errors by part, and by basis of launch flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.run_scores import GROUP, group_of, grouped, measured_both, scored_runs, scores
from kernelsight.laboratory.runs.error_parts import attribute
from kernelsight.laboratory.runs.implausible_runs import signs_of
from kernelsight.laboratory.runs.label_coverage import label_coverage
from kernelsight.laboratory.runs.run_classes import kinds_of, over_groups, repeats
from kernelsight.laboratory.runs.unknown_lengths import assumed_lengths


def parts_of_report(
    scored: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], of_campaigns: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what is assumed of ``rows``, scores of implausible runs and of others, and the error attribution.

    ``scored``: those of the rows that are scored, ``of_campaigns``: by campaign; ``coverage`` is that of their
    intervals by label. Runs with inferred speculative decoding are scored separately.
    """
    signs = zip(scored, signs_of(scored), strict=True)
    served = [{**row, "sign": sign} for row, sign in signs if row.get("errors")]
    return {
        "coverage": label_coverage(of_campaigns),
        "speculative": speculative_scores([row for row in rows if measured_both(row)]),
        "assumed": assumed_lengths(rows),
        "signs": grouped([row for row in served if row["sign"]], ("sign",), lambda row: (row["sign"],)),
        "without_signs": {
            name: scores(row for row in served if not row["sign"] and row["is_moe"] == is_moe)
            for name, is_moe in (("dense", False), ("moe", True))
        },
        "attribution": attributions(served),
    }


def parts_of_runs(rows: Sequence[Mapping[str, Any]], basis: Mapping[str, str]) -> dict[str, Any]:
    """Return scores by the basis of launch flags, and the number of fitting runs that repeat a scored measurement."""
    repeated = len(repeats([row for row in rows if not row.get("scored_separately")]))
    return {"by_basis": by_basis(rows, basis), "repeated": repeated}


def speculative_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return scores of runs by inferred use of speculative decoding, and the fitted acceptance rates."""
    rates = {
        f"{row['engine']} {row['model']}": row["flags"]["draft_acceptance_rate"]
        for row in rows
        if "draft_acceptance_rate" in row.get("flags", {})
    }
    inferred = [row for row in rows if not row["fitting"] and row.get("speculative") is not None]
    members_of = {
        "with_drafts": [row for row in inferred if row["speculative"]],
        "without_drafts": [row for row in inferred if not row["speculative"]],
    }
    return {"draft_acceptance_rate": rates} | {
        kind: {**scores(members), "groups": grouped(members, GROUP, group_of)} for kind, members in members_of.items()
    }


def attributions(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the error attribution of each group with enough runs, the largest total error of TTFT and TPOT first."""
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    attributed = [{**dict(zip(GROUP, key, strict=True)), **attribute(members)} for key, members in groups.items()]
    attributed = [row for row in attributed if "ttft" in row]
    return sorted(attributed, key=lambda row: -row["n"] * (abs(row["ttft"]["miss"]) + abs(row["tpot"]["miss"])))


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
