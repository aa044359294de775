"""Report of a backtest: scores overall, by group and axis, excluded runs, and coverage of intervals by label.

In a checkout it also has the laboratory's parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

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
    repeats,
    scored_runs,
    scores,
    stated_again,
)

# metrics of a run's comparison by the quantity that they measure; of several the first that the run measured
METRICS = {
    "ttft": ("ttft_mean",),
    "tpot": ("tpot_mean", "itl_mean", "itl_p50"),
    "e2e": ("e2e_mean",),
    "throughput": ("throughput",),
}
# ends of the bands of the measured share of GPU time, percent
BANDS = (20, 50, 80)
LABELS = {
    "all": lambda row: "all",
    "tier": lambda row: row["tier"],
    "measured share": lambda row: band(row["measured_share"]),
    "vendor": lambda row: row["vendor"],
    "engine": lambda row: row["engine"],
    "campaign": lambda row: row["campaign"],
    "class": lambda row: "mixture of experts" if row["is_moe"] else "dense",
}


def e2e_ms(run: Mapping[str, Any], ttft_ms: float, tpot_ms: float) -> float:
    """Return the mean E2E of a run from its TTFT and TPOT, ms.

    >>> e2e_ms({"osl": 11}, 100.0, 5.0)
    150.0
    """
    return ttft_ms + tpot_ms * (run["osl"] - 1)


def band(share: float) -> str:
    """Return the band of a measured share of GPU time.

    >>> band(0.0), band(0.3), band(0.8), band(1.0)
    ('0 to 20 %', '20 to 50 %', '80 to 100 %', '80 to 100 %')
    """
    ends = (0, *BANDS, 100)
    number = sum(100.0 * share >= end for end in BANDS)
    return f"{ends[number]} to {ends[number + 1]} %"


def label_coverage(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per label, value and metric: n, coverage_90, width_90 (median p95 / p05) and median_ape.

    ``rows``: scored runs with ``compared``, such as of ``scored_of_campaigns``.
    """
    members: dict[tuple[str, str, str], list[tuple[float, bool, float]]] = {}
    for row in rows:
        for metric, outcome in _outcomes(row).items():
            for label, value_of in LABELS.items():
                members.setdefault((label, value_of(row), metric), []).append(outcome)
    order = {name: place for names in (LABELS, METRICS) for place, name in enumerate(names)}
    ordered = sorted(members.items(), key=lambda item: (order[item[0][0]], item[0][1], order[item[0][2]]))
    found = []
    for (label, value, metric), outcomes in ordered:
        errors, covered, widths = zip(*outcomes, strict=True)
        key = {"label": label, "value": value, "metric": metric, "n": len(outcomes)}
        shares = {"coverage_90": float(np.mean(covered)), "width_90": float(np.median(widths))}
        found.append(key | shares | {"median_ape": float(np.median(np.abs(errors)))})
    return found


def _outcomes(row: Mapping[str, Any]) -> dict[str, tuple[float, bool, float]]:
    """Return (error, whether its interval contains the measurement, high / low) of a run by metric.

    E2E that a client did not report follows from its TTFT, TPOT and output length.
    """
    outcomes = {}
    for metric, names in METRICS.items():
        for name in [name for name in names if name in row["compared"]][:1]:
            comparison = row["compared"][name]
            outcomes[metric] = comparison["error"], comparison["covered"], comparison["high"] / comparison["low"]
    if "e2e" not in outcomes and measured_both(row):
        measured = e2e_ms(row, row["ttft_ms"], row["tpot_ms"])
        predicted = e2e_ms(row, row["ttft_mean_ms"], row["tpot_mean_ms"])
        low, high = row["interval_factors"]["e2e"]
        outcomes["e2e"] = predicted / measured - 1.0, low * predicted <= measured <= high * predicted, high / low
    return outcomes


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
        **(_published().parts_of_report(scored, all_rows) if laboratory.is_here() else {}),
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


def counted(reasons: Any) -> list[dict[str, Any]]:
    """Return {"reason", "n"} of each distinct reason, the most frequent first."""
    numbers: dict[str, int] = {}
    for reason in reasons:
        numbers[reason] = numbers.get(reason, 0) + 1
    return [{"reason": reason, "n": n} for reason, n in sorted(numbers.items(), key=lambda item: (-item[1], item[0]))]
