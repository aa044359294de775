"""The report of a backtest: scores overall and by group, excluded runs, and the sources of error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kernelsight.evaluation.runs.campaigns import campaign_scores, scored_of_campaigns
from kernelsight.evaluation.runs.coverage import METRICS as COVERED
from kernelsight.evaluation.runs.coverage import coverage, spread_lacking, with_spread_of_others
from kernelsight.evaluation.runs.data_quality import signs_of
from kernelsight.evaluation.runs.error_parts import attribute
from kernelsight.evaluation.runs.measured_runs import Runs
from kernelsight.evaluation.runs.scores import (
    GROUP,
    METRICS,
    concurrency_band,
    grouped,
    is_scored_separately,
    measured_both,
    repeats,
    score,
    scores,
    stated_again,
    with_errors,
)
from kernelsight.evaluation.runs.subsets import (
    KINDS,
    by_basis,
    by_fitted_flags,
    by_group,
    kinds_of,
    over_groups,
    scored_runs,
)
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
    """Return the scores of replayed runs.

    ``rows``: runs with ``status``, ``errors`` if served, ``is_moe``, ``fitting``. Runs of the fitting fifth are not
    scored, and a measurement that several rows state is scored once. Disaggregated runs, runs with inferred speculative
    decoding and those with a reason of their own (``scored_separately``) are scored separately. Runs that lack TTFT or
    TPOT are in ``campaigns`` alone.
    """
    campaigns, all_rows = campaign_scores(scored_of_campaigns(rows)), rows
    rows = [row for row in rows if measured_both(row)]
    scored = [dict(row) for row in scored_runs(rows)]
    disaggregated = [row for row in rows if row.get("prefill_workers") and not row.get("scored_separately")]
    separate: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("scored_separately") and not row["fitting"]:
            separate.setdefault(row["scored_separately"], []).append(row)
    for row, sign in zip(scored, signs_of(scored), strict=True):
        row["sign"] = sign
    served = [row for row in scored if row.get("errors")]
    return {
        **scores(served),
        "campaigns": campaigns,
        "dense": scores(row for row in served if not row["is_moe"]),
        "moe": scores(row for row in served if row["is_moe"]),
        "groups": grouped(served, GROUP, by_group),
        "by": {name: grouped(served, (name,), of) for name, of in AXES.items()},
        "not_simulated": counted(row["status"] for row in scored if not row.get("errors")),
        "assumed": assumed_lengths(all_rows),
        "signs": grouped([row for row in served if row["sign"]], ("sign",), lambda row: (row["sign"],)),
        "without_signs": {
            kind: scores(row for row in served if not row["sign"] and row["is_moe"] == moe)
            for kind, moe in (("dense", False), ("moe", True))
        },
        "attribution": attributions(served),
        "disaggregated": _scores_by_group(disaggregated),
        "separate": [{"reason": reason, **_scores_by_group(members)} for reason, members in sorted(separate.items())],
        "speculative": _speculative_scores(rows),
    }


def _scores_by_group(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failed = counted(row["status"] for row in rows if not row.get("errors"))
    return {**scores(rows), "groups": grouped(rows, GROUP, by_group), "not_simulated": failed}


def _speculative_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores of runs by whether they used speculative decoding, which is inferred, and the rates fitted."""
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
        kind: {**scores(members), "groups": grouped(members, GROUP, by_group)} for kind, members in members_of.items()
    }


def report_of_peer(
    replayed: Mapping[str, Sequence[Mapping[str, Any]]], peer: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Return another tool's scores beside ours: TTFT and TPOT in ms that it predicts, by run.

    ``replayed``: runs by level of host constants. On the runs that the tool predicts there are the first level's scores
    in full, by group too, and under ``levels`` those of all levels.
    """
    served = {level: [row for row in scored_runs(rows) if row.get("errors")] for level, rows in replayed.items()}
    first = next(iter(replayed))
    return compared_with(served[first], calibrated(replayed[first], peer), peer) | {
        "behind": {level: behind(rows, peer) for level, rows in replayed.items()},
        "levels": {level: kinds_of(row for row in rows if row["run_id"] in peer) for level, rows in served.items()},
    }


def behind(rows: Sequence[Mapping[str, Any]], peer: Mapping[str, tuple[float, float]]) -> dict[str, int]:
    """Return how many groups both predict, and how many of them have a worse median TTFT or TPOT than the peer's."""
    groups = compared_with([row for row in scored_runs(rows) if row.get("errors")], peer, peer)["groups"]
    worse = {
        metric: sum(group["ours"][metric]["median_ape"] > group["peer"][metric]["median_ape"] for group in groups)
        for metric in ("ttft", "tpot")
    }
    return {"groups": len(groups), **worse}


def report_of(
    runs: Runs,
    rows: Sequence[Mapping[str, Any]],
    tier: str | None,
    basis: Mapping[str, str],
) -> dict[str, Any]:
    """Return the report of replayed runs, with the numbers of rows read and excluded; ``basis``: of each recipe."""
    return report(rows) | {
        "by_basis": by_basis(rows, basis),
        "stated_again": len(stated_again([row for row in rows if not is_scored_separately(row)])),
        "read": runs.read,
        "excluded": [{"reason": reason, "n": count} for reason, count in runs.excluded],
        "runs": len(rows),
        "fitted_on": sum(row["fitting"] and not is_scored_separately(row) for row in rows),
        "repeated": len(repeats([row for row in rows if not row.get("scored_separately")])),
        "tier": tier or "auto",
    }


# classes of runs whose errors scatter alike: kind of model, and more requests in flight than this
CROWD = 32.0
CLASSES = (("dense", 0.0), ("dense", CROWD), ("moe", 0.0), ("moe", CROWD))


def level_scores(
    rows: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]], basis: Mapping[str, str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the scores of all, dense and mixture-of-experts runs outside the fitting fifth, and of their intervals.

    Beside them the median over groups, and the scores of groups by whether their launch flags were fitted (``basis``).
    ``held``: the rows of ``serving_spread`` with which they were simulated. Intervals are scored with the spread that
    the fitting runs of other groups have: no run of a group widens or narrows the intervals of that group.
    """
    rows = [row for row in rows if measured_both(row)]
    served = [row for row in scored_runs(rows) if row.get("errors")]
    by_kind = kinds_of(served)
    respread = [row for name in CLASSES for row in _with_spread_of_others(rows, served, name, held)]
    for kind, those in KINDS.items():
        for metric, covered in coverage(row for row in respread if row["is_moe"] in those).items():
            by_kind[kind][metric] = by_kind[kind].get(metric, {}) | covered
    return by_kind | {"over_groups": over_groups(served), "by_flags": by_fitted_flags(served, basis)}


def class_of(row: Mapping[str, Any]) -> tuple[str, float]:
    """Return the class of a run, as ``serving_spread`` names it: kind of model, and the requests in flight it exceeds.

    >>> class_of({"is_moe": True, "max_concurrency": 64})
    ('moe', 32.0)
    """
    in_flight = row["max_concurrency"] or row["request_rate"] * (row.get("e2e_mean_ms") or 0.0) / 1e3
    return "moe" if row["is_moe"] else "dense", CROWD if in_flight > CROWD else 0.0


def _with_spread_of_others(
    rows: Sequence[Mapping[str, Any]],
    served: Sequence[Mapping[str, Any]],
    wanted: tuple[str, float],
    held: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    mine = [row for row in served if class_of(row) == wanted]
    log_sd_of_metric = {
        row["metric"]: row["log_sd"] for row in held if (row["model_class"], row["in_flight_above"]) == wanted
    }
    return with_spread_of_others(mine, fitting_runs(rows, wanted), by_group, log_sd_of_metric)


def fitting_runs(rows: Sequence[Mapping[str, Any]], wanted: tuple[str, float]) -> list[Mapping[str, Any]]:
    """Return the served runs of the fitting fifth of one class."""
    return [
        row
        for row in rows
        if row["fitting"] and row.get("errors") and not is_scored_separately(row) and class_of(row) == wanted
    ]


def spread_rows(rows: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what ``serving_spread`` would hold if it were fitted to the fitting fifth of these runs.

    ``held``: the rows of ``serving_spread`` with which they were simulated.
    """
    held_log_sd = {(row["metric"], row["model_class"], row["in_flight_above"]): row["log_sd"] for row in held}
    answer = []
    for model_class, above in CLASSES:
        members = fitting_runs(rows, (model_class, above))
        for metric in COVERED if members else ():
            key = {"metric": metric, "model_class": model_class, "in_flight_above": above}
            spread = spread_lacking(members, metric, held_log_sd[metric, model_class, above])
            answer.append({**key, "log_sd": spread, "n": len(members)})
    return answer


def counted(reasons: Any) -> list[dict[str, Any]]:
    """Return each reason with its count, the most frequent first."""
    numbers: dict[str, int] = {}
    for reason in reasons:
        numbers[reason] = numbers.get(reason, 0) + 1
    return [{"reason": reason, "n": n} for reason, n in sorted(numbers.items(), key=lambda item: (-item[1], item[0]))]


def attributions(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the attribution of each group with enough runs, the largest total error of TTFT and TPOT first."""
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault(by_group(row), []).append(row)
    attributed = [{**dict(zip(GROUP, key, strict=True)), **attribute(members)} for key, members in groups.items()]
    attributed = [row for row in attributed if "ttft" in row]
    return sorted(attributed, key=lambda row: -row["n"] * (abs(row["ttft"]["miss"]) + abs(row["tpot"]["miss"])))


def calibrated(
    rows: Sequence[Mapping[str, Any]], peer: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return another tool's predictions times one factor on TTFT and one on TPOT for each group of runs.

    A factor is the median of measured / predicted over the group's runs of the fitting fifth; 1 without any.
    """
    repeated_runs = repeats(rows)
    ratios: dict[tuple, list[tuple[float, float]]] = {}
    for row in rows:
        if (
            row["fitting"]
            and row["run_id"] in peer
            and row["run_id"] not in repeated_runs
            and not is_scored_separately(row)
        ):
            ttft_ms, tpot_ms = peer[row["run_id"]]
            ratios.setdefault(by_group(row), []).append((row["ttft_ms"] / ttft_ms, row["tpot_ms"] / tpot_ms))
    factors = {
        group: tuple(median(column) for column in zip(*columns, strict=True)) for group, columns in ratios.items()
    }
    columns = {}
    for row in rows:
        if row["run_id"] in peer:
            ttft, tpot = factors.get(by_group(row), (1.0, 1.0))
            columns[row["run_id"]] = (peer[row["run_id"]][0] * ttft, peer[row["run_id"]][1] * tpot)
    return columns


def compared_with(
    rows: Sequence[Mapping[str, Any]],
    calibrated_peer: Mapping[str, tuple[float, float]],
    peer: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Return another tool's scores (as it comes, and calibrated) and ours on the runs that it predicts."""
    both = []
    for row in rows:
        if row["run_id"] in peer:
            theirs = {
                "errors": with_errors(row, *peer[row["run_id"]]),
                "calibrated": with_errors(row, *calibrated_peer[row["run_id"]]),
            }
            both.append({**row, "ours": row["errors"], **theirs})

    def pair(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        others = {
            name: {metric: score([row[name][metric] for row in members]) for metric in METRICS}
            for name in ("calibrated", "ours")
        }
        return {"n": len(members), "peer": scores(members), **others}

    groups: dict[tuple, list] = {}
    for row in both:
        groups.setdefault(by_group(row), []).append(row)
    return {
        "n": len(both),
        "not_predicted": len(rows) - len(both),
        **pair(both),
        "dense": pair([row for row in both if not row["is_moe"]]),
        "moe": pair([row for row in both if row["is_moe"]]),
        "groups": [
            {**dict(zip(GROUP, key, strict=True)), **pair(members)}
            for key, members in sorted(groups.items(), key=lambda item: str(item[0]))
        ],
    }
