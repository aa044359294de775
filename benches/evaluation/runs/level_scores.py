"""Scores of runs at levels of host constants, with intervals whose spread is that of other groups' fitting runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.run_scores import group_of, is_scored_separately, measured_both, scored_runs
from kernelsight.laboratory.runs.coverage import METRICS as COVERED
from kernelsight.laboratory.runs.coverage import coverage, spread_lacking, with_spread_of_others
from kernelsight.laboratory.runs.published_runs import by_fitted_flags
from kernelsight.laboratory.runs.run_classes import KINDS, kinds_of, over_groups

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
    return by_kind | {"over_groups": over_groups(served), "by_flags": by_fitted_flags(served, basis)}


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
