"""Report of a backtest: scores overall, by group and axis, and excluded runs; in a checkout also the laboratory's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from kernelsight import laboratory
from kernelsight.evaluation.runs.campaigns import campaign_scores, scored_of_campaigns
from kernelsight.evaluation.runs.coverage import METRICS as COVERED
from kernelsight.evaluation.runs.coverage import coverage, spread_lacking, with_spread_of_others
from kernelsight.evaluation.runs.label_coverage import label_coverage
from kernelsight.evaluation.runs.measured_runs import Runs
from kernelsight.evaluation.runs.run_scores import (
    GROUP,
    concurrency_band,
    group_of,
    grouped,
    is_scored_separately,
    measured_both,
    repeats,
    scores,
    stated_again,
)
from kernelsight.evaluation.runs.subsets import KINDS, kinds_of, over_groups, scored_runs
from kernelsight.evaluation.runs.unknown_lengths import assumed_lengths

AXES = {
    "gpu": lambda row: (row["gpu"],),
    "engine": lambda row: (row["engine"],),
    "precision": lambda row: (row["quantization"] or "not stated",),
    "campaign": lambda row: (row["campaign"],),
    "concurrency": lambda row: (concurrency_band(row["max_concurrency"]),),
    "weakest": lambda row: (row.get("weakest", "not stated"),),
    "length": lambda row: (f"{row['isl']}/{row['osl']}",),
}


def report(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores of replayed runs, overall and by group.

    ``rows``: runs with ``status``, ``errors`` if served, ``is_moe``, ``fitting``. Runs of the fitting fifth are not
    scored, and duplicates of a measurement are scored once. Disaggregated runs, runs with inferred speculative decoding
    and those with ``scored_separately``, a reason, are scored separately. Runs without TTFT or TPOT are only in
    ``campaigns`` and in ``coverage``, that of intervals by label.
    """
    of_campaigns, all_rows = scored_of_campaigns(rows), rows
    rows = [row for row in rows if measured_both(row)]
    scored = [dict(row) for row in scored_runs(rows)]
    disaggregated = [row for row in rows if row.get("prefill_workers") and not row.get("scored_separately")]
    separate: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("scored_separately") and not row["fitting"]:
            separate.setdefault(row["scored_separately"], []).append(row)
    served = [row for row in scored if row.get("errors")]
    return {
        **scores(served),
        "campaigns": campaign_scores(of_campaigns),
        "coverage": label_coverage(of_campaigns),
        "dense": scores(row for row in served if not row["is_moe"]),
        "moe": scores(row for row in served if row["is_moe"]),
        "groups": grouped(served, GROUP, group_of),
        "by": {name: grouped(served, (name,), key_of) for name, key_of in AXES.items()},
        "not_simulated": counted(row["status"] for row in scored if not row.get("errors")),
        "assumed": assumed_lengths(all_rows),
        **(_published().parts_of_report(scored) if laboratory.is_here() else {}),
        "disaggregated": _scores_by_group(disaggregated),
        "separate": [{"reason": reason, **_scores_by_group(members)} for reason, members in sorted(separate.items())],
        "speculative": _speculative_scores(rows),
    }


def _published() -> ModuleType:
    """Return the laboratory's parts of a report, which judge published runs and the recipes that replay them."""
    return laboratory.part("runs.published_runs", "a part of the report")


def _scores_by_group(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return scores overall and by group, and counts of runs that were not simulated, by reason."""
    failed = counted(row["status"] for row in rows if not row.get("errors"))
    return {**scores(rows), "groups": grouped(rows, GROUP, group_of), "not_simulated": failed}


def _speculative_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def report_of(
    runs: Runs,
    rows: Sequence[Mapping[str, Any]],
    tier: str | None,
    basis: Mapping[str, str],
) -> dict[str, Any]:
    """Return the report of replayed runs, with counts of rows read and excluded.

    ``basis``: of the flags, by recipe; ``tier``: of kernel latencies, None: auto.
    """
    by_basis = {"by_basis": _published().by_basis(rows, basis)} if laboratory.is_here() else {}
    return report(rows) | {
        **by_basis,
        "stated_again": len(stated_again([row for row in rows if not is_scored_separately(row)])),
        "read": runs.read,
        "excluded": [{"reason": reason, "n": count} for reason, count in runs.excluded],
        "runs": len(rows),
        "partly_measured": sum(not measured_both(row) for row in rows),
        "fitted_on": sum(row["fitting"] and not is_scored_separately(row) for row in rows),
        "repeated": len(repeats([row for row in rows if not row.get("scored_separately")])),
        "tier": tier or "auto",
    }


# classes of runs with a common spread of errors: kind of model, and more requests in flight than this
CROWD = 32.0
CLASSES = (("dense", 0.0), ("dense", CROWD), ("moe", 0.0), ("moe", CROWD))


def level_scores(
    rows: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]], basis: Mapping[str, str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return scores of all, dense and mixture-of-experts runs outside the fitting fifth, with coverage of intervals.

    Also medians over groups, and scores of groups by whether their launch flags were fitted (``basis``, by recipe).
    ``held``: the rows of ``serving_spread`` with which they were simulated. Intervals are scored with the spread of
    other groups' fitting runs: no run of a group widens or narrows that group's intervals.
    """
    rows = [row for row in rows if measured_both(row)]
    served = [row for row in scored_runs(rows) if row.get("errors")]
    by_kind = kinds_of(served)
    respread = [row for name in CLASSES for row in _with_spread_of_others(rows, served, name, held)]
    for kind, flags in KINDS.items():
        for metric, covered in coverage(row for row in respread if row["is_moe"] in flags).items():
            by_kind[kind][metric] = by_kind[kind].get(metric, {}) | covered
    by_flags = {"by_flags": _published().by_fitted_flags(served, basis)} if laboratory.is_here() else {}
    return by_kind | {"over_groups": over_groups(served)} | by_flags


def class_of(row: Mapping[str, Any]) -> tuple[str, float]:
    """Return the class of a run in ``serving_spread``: (model_class, in_flight_above).

    >>> class_of({"is_moe": True, "max_concurrency": 64})
    ('moe', 32.0)
    """
    in_flight = row["max_concurrency"] or row["request_rate"] * (row.get("e2e_mean_ms") or 0.0) / 1e3
    return "moe" if row["is_moe"] else "dense", CROWD if in_flight > CROWD else 0.0


def _with_spread_of_others(
    rows: Sequence[Mapping[str, Any]],
    served: Sequence[Mapping[str, Any]],
    run_class: tuple[str, float],
    held: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the served runs of one class with the spread of other groups in their intervals."""
    class_rows = [row for row in served if class_of(row) == run_class]
    log_sd_of_metric = {
        row["metric"]: row["log_sd"] for row in held if (row["model_class"], row["in_flight_above"]) == run_class
    }
    return with_spread_of_others(class_rows, fitting_runs(rows, run_class), group_of, log_sd_of_metric)


def fitting_runs(rows: Sequence[Mapping[str, Any]], run_class: tuple[str, float]) -> list[Mapping[str, Any]]:
    """Return the served runs of the fitting fifth of one class."""
    return [
        row
        for row in rows
        if row["fitting"] and row.get("errors") and not is_scored_separately(row) and class_of(row) == run_class
    ]


def spread_rows(rows: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of ``serving_spread`` fitted to the fitting fifth of these runs.

    ``held``: the rows of ``serving_spread`` with which they were simulated.
    """
    held_log_sd = {(row["metric"], row["model_class"], row["in_flight_above"]): row["log_sd"] for row in held}
    fitted_rows = []
    for model_class, above in CLASSES:
        members = fitting_runs(rows, (model_class, above))
        for metric in COVERED if members else ():
            key = {"metric": metric, "model_class": model_class, "in_flight_above": above}
            spread = spread_lacking(members, metric, held_log_sd[metric, model_class, above])
            fitted_rows.append({**key, "log_sd": spread, "n": len(members)})
    return fitted_rows


def counted(reasons: Any) -> list[dict[str, Any]]:
    """Return {"reason", "n"} of each distinct reason, the most frequent first."""
    numbers: dict[str, int] = {}
    for reason in reasons:
        numbers[reason] = numbers.get(reason, 0) + 1
    return [{"reason": reason, "n": n} for reason, n in sorted(numbers.items(), key=lambda item: (-item[1], item[0]))]
