"""Report of a backtest: scores overall, by group and axis, and excluded runs; in a checkout also the laboratory's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from kernelsight import laboratory
from kernelsight.evaluation.runs.campaigns import campaign_scores, scored_of_campaigns
from kernelsight.evaluation.runs.measured_runs import Runs
from kernelsight.evaluation.runs.run_scores import (
    GROUP,
    concurrency_band,
    group_of,
    grouped,
    is_scored_separately,
    measured_both,
    scored_runs,
    scores,
    stated_again,
)

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
    ``campaigns``.
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
        "dense": scores(row for row in served if not row["is_moe"]),
        "moe": scores(row for row in served if row["is_moe"]),
        "groups": grouped(served, GROUP, group_of),
        "by": {name: grouped(served, (name,), key_of) for name, key_of in AXES.items()},
        "not_simulated": counted(row["status"] for row in scored if not row.get("errors")),
        **(_published().parts_of_report(scored, all_rows, of_campaigns) if laboratory.is_here() else {}),
        "disaggregated": _scores_by_group(disaggregated),
        "separate": [{"reason": reason, **_scores_by_group(members)} for reason, members in sorted(separate.items())],
    }


def _published() -> ModuleType:
    """Return the laboratory's parts of a report, which judge published runs and the recipes that replay them."""
    return laboratory.part("runs.published_runs", "a part of the report")


def _scores_by_group(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return scores overall and by group, and counts of runs that were not simulated, by reason."""
    failed = counted(row["status"] for row in rows if not row.get("errors"))
    return {**scores(rows), "groups": grouped(rows, GROUP, group_of), "not_simulated": failed}


def report_of(
    runs: Runs,
    rows: Sequence[Mapping[str, Any]],
    tier: str | None,
    basis: Mapping[str, str],
) -> dict[str, Any]:
    """Return the report of replayed runs, with counts of rows read and excluded.

    ``basis``: of the flags, by recipe; ``tier``: of kernel latencies, None: auto.
    """
    return report(rows) | {
        **(_published().parts_of_runs(rows, basis) if laboratory.is_here() else {}),
        "stated_again": len(stated_again([row for row in rows if not is_scored_separately(row)])),
        "read": runs.read,
        "excluded": [{"reason": reason, "n": count} for reason, count in runs.excluded],
        "runs": len(rows),
        "partly_measured": sum(not measured_both(row) for row in rows),
        "fitted_on": sum(row["fitting"] and not is_scored_separately(row) for row in rows),
        "tier": tier or "auto",
    }


def counted(reasons: Any) -> list[dict[str, Any]]:
    """Return {"reason", "n"} of each distinct reason, the most frequent first."""
    numbers: dict[str, int] = {}
    for reason in reasons:
        numbers[reason] = numbers.get(reason, 0) + 1
    return [{"reason": reason, "n": n} for reason, n in sorted(numbers.items(), key=lambda item: (-item[1], item[0]))]
