"""Scores of runs at levels of host constants, with intervals whose spread is that of other groups' fitting runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.run_scores import group_of, is_scored_separately, measured_both, scored_runs
from kernelsight.laboratory.runs.coverage import METRICS as COVERED
from kernelsight.laboratory.runs.coverage import coverage, spread_lacking, with_spread_of_others
from kernelsight.laboratory.runs.published_runs import by_fitted_flags
from kernelsight.laboratory.runs.run_classes import KINDS, kinds_of, over_groups

# least numbers of users who take turns: runs between two of them have a common spread of errors
USERS = (0.0, 33.0, 65.0)


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
    respread = [row for users in USERS for row in _with_spread_of_others(rows, served, users, held)]
    for kind, flags in KINDS.items():
        for metric, covered in coverage(row for row in respread if row["is_moe"] in flags).items():
            by_kind[kind][metric] = by_kind[kind].get(metric, {}) | covered
    return by_kind | {"over_groups": over_groups(served), "by_flags": by_fitted_flags(served, basis)}


def users_of(row: Mapping[str, Any]) -> float:
    """Return the row of ``serving_spread`` that a run has, its ``users``; loads of one burst: 0, like open loops.

    >>> [users_of({"max_concurrency": 64, "num_prompts": prompts}) for prompts in (None, 640, 64)]
    [33.0, 33.0, 0.0]
    """
    users = row["max_concurrency"] or 0
    takes_turns = row.get("num_prompts") is None or row["num_prompts"] > users
    return max(least for least in USERS if least <= (users if takes_turns else 0))


def _with_spread_of_others(
    rows: Sequence[Mapping[str, Any]],
    served: Sequence[Mapping[str, Any]],
    users: float,
    held: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the served runs of one row of ``serving_spread`` with the spread of other groups in their intervals."""
    like = [row for row in served if users_of(row) == users]
    log_sd_of_metric = {row["metric"]: row["log_sd"] for row in held if row["users"] == users}
    return with_spread_of_others(like, fitting_runs(rows, users), group_of, log_sd_of_metric)


def fitting_runs(rows: Sequence[Mapping[str, Any]], users: float) -> list[Mapping[str, Any]]:
    """Return the served runs of the fitting fifth that have this row of ``serving_spread``."""
    return [
        row
        for row in rows
        if row["fitting"] and row.get("errors") and not is_scored_separately(row) and users_of(row) == users
    ]


def spread_rows(rows: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of ``serving_spread`` fitted to the fitting fifth of these runs.

    ``held``: the rows of ``serving_spread`` with which they were simulated.
    """
    held_log_sd = {(row["metric"], row["users"]): row["log_sd"] for row in held}
    fitted_rows = []
    for users in USERS:
        members = fitting_runs(rows, users)
        for metric in COVERED if members else ():
            spread = spread_lacking(members, metric, held_log_sd[metric, users])
            fitted_rows.append({"metric": metric, "users": users, "log_sd": spread, "n": len(members)})
    return fitted_rows
